"""A prepared work folder (model, sample catalogue, index), made once a run, and stacks over copies of it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from stack_process import PATIENT, Stack, frugalads, running_stack

SAMPLE_ADS = 5000


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scorer bundle, built from the packaged encoder."""
    folder = tmp_path_factory.mktemp("model") / "scorer"
    frugalads("model", "build", "--out", folder)
    return folder


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    """A work folder with everything that `frugalads up` needs, built by the commands of the README."""
    data = tmp_path_factory.mktemp("prepared") / "data"
    (data / "models").mkdir(parents=True)
    shutil.copytree(model_folder, data / "models" / "scorer")
    frugalads("catalogue", "sample", "--ads", SAMPLE_ADS, "--out", data / "sample.jsonl")
    frugalads("catalogue", "import", data / "sample.jsonl", "--out", data / "catalogue")
    frugalads(
        "index", "build",
        "--catalogue", data / "catalogue", "--model", data / "models" / "scorer", "--out", data / "index",
    )  # fmt: skip
    return data


@pytest.fixture
def work_folder(prepared: Path, tmp_path: Path) -> Path:
    """A copy of the prepared folder that a test may damage."""
    return Path(shutil.copytree(prepared, tmp_path / "data"))


@pytest.fixture(scope="module")
def stack(
    request: pytest.FixtureRequest, prepared: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """One running stack for the tests of a module, which may set other options by `ENVIRON`."""
    data = Path(shutil.copytree(prepared, tmp_path_factory.mktemp("stack") / "data"))
    with running_stack(data, environ=getattr(request.module, "ENVIRON", PATIENT)) as running:
        yield running
