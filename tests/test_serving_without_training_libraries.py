"""Serving needs neither LightGBM nor XGBoost: seen in processes that cannot import them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import lightgbm
import numpy as np
import pytest
import xgboost

from services.runtime.forests import write_forest

ROOT = Path(__file__).parents[1]
ABSENT = ("lightgbm", "xgboost", "treelite")
NAMES = ("a", "b", "c")

SERVE = """
import importlib, json, pkgutil, sys
from pathlib import Path
import numpy as np
for service in ("core", "runtime", "retrieval", "scoring", "eviction", "inference", "catalogue"):
    package = importlib.import_module(f"services.{service}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
from services.runtime.forests import open_forest
rows = np.array(json.loads(sys.argv[1]))
answers = {
    kind: open_forest(Path(kind), kind, feature_names=("a", "b", "c")).forest.predict(rows).tolist()
    for kind in ("termination-model", "refresh-model")
}
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment whose processes, and their children, find no training library."""
    folder = tmp_path_factory.mktemp("absent")
    for name in ABSENT:
        (folder / f"{name}.py").write_text(
            f"raise ModuleNotFoundError('No module named {name}', name={name!r})\n"
        )
    path = os.pathsep.join((str(folder), str(ROOT), str(ROOT / "protos")))
    return os.environ | {"PYTHONPATH": path, "PYTHONWARNINGS": ""}


def python(
    code: str, *arguments: str, environment: dict[str, str], cwd: Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.mark.parametrize("name", ABSENT)
def test_the_environment_lacks_the_libraries(name: str, environment: dict[str, str], tmp_path: Path) -> None:
    done = python(f"import {name}", environment=environment, cwd=tmp_path)
    assert f"ModuleNotFoundError: No module named {name}" in done.stderr


def test_servers_load_and_evaluate_models_without_the_libraries(
    environment: dict[str, str], tmp_path: Path
) -> None:
    draw = np.random.default_rng(0)
    rows, probes = draw.normal(size=(300, 3)), draw.normal(size=(9, 3))
    targets = rows[:, 0] + rows[:, 1]
    stop = lightgbm.train(
        {"num_leaves": 5, "num_threads": 1, "verbosity": -1},
        lightgbm.Dataset(rows, targets, feature_name=list(NAMES)),
        4,
    )
    refresh = xgboost.train(
        {"max_depth": 3, "nthread": 1}, xgboost.DMatrix(rows, targets, feature_names=list(NAMES)), 4
    )
    expected = {
        "termination-model": np.asarray(stop.predict(probes)),
        "refresh-model": refresh.predict(xgboost.DMatrix(probes, feature_names=list(NAMES))),
    }
    for kind, model in (
        ("termination-model", stop.model_to_string().encode()),
        ("refresh-model", bytes(refresh.save_raw("ubj"))),
    ):
        write_forest(
            tmp_path / kind,
            kind,
            model,
            feature_names=NAMES,
            golden_rows=probes,
            meta={},
            trainer_predictions=expected[kind],
        )
    done = python(SERVE, json.dumps(probes.tolist()), environment=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    for kind, predictions in expected.items():
        np.testing.assert_allclose(answers[kind], predictions, rtol=1e-6)
