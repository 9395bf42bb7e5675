"""Fixtures that every test may use."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

from redis_process import FLAVOURS, RedisProcess, running

settings.register_profile(
    "default",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("default")

DATA = Path(os.environ.get("FRUGALADS_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.fixture(params=FLAVOURS)
def redis_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisProcess]:
    """A fresh server, once on Valkey and once on Redis."""
    with running(request.param, tmp_path) as server:
        yield server


@pytest.fixture
def valkey_server(tmp_path: Path) -> Iterator[RedisProcess]:
    """A fresh Valkey, where one server kind is enough."""
    with running("valkey", tmp_path) as server:
        yield server


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The real data; skips locally, fails in CI, when it is absent."""
    if not DATA.is_dir():
        if os.environ.get("CI"):
            raise AssertionError(f"the real data is missing at {DATA}")
        pytest.skip(f"no real data at {DATA} (set FRUGALADS_DATA)")
    return DATA
