"""A scorer bundle of the real weights, built once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.scorer.bundle import Scorer, load_scorer
from models.scorer.calibration import DEFAULT
from models.scorer.convert import Weights, build_scorer


@pytest.fixture(scope="session")
def weights() -> Weights:
    return Weights.of_package()


@pytest.fixture(scope="session")
def bundle_folder(weights: Weights, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "scorer"
    build_scorer(weights, folder, DEFAULT)
    return folder


@pytest.fixture(scope="session")
def scorer(bundle_folder: Path) -> Scorer:
    return load_scorer(bundle_folder, threads=1)
