"""Fixtures: a scoring server that does what a test tells it, and certificates for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from certificate_files import Certificates, issued_files
from scripted_server import ScriptedServer, serving


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """A scripted server without TLS."""
    with serving() as server:
        yield server


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """What the servers of these tests trust and show."""
    return issued_files(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def foreign_certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """The same from an authority that nobody here trusts."""
    return issued_files(tmp_path_factory.mktemp("foreign"))
