"""Altered model files end in a clear error or in a model that evaluates; none in a crash, a hang or a read
outside an array. Seen with the kernels as plain Python, where each of these shows, then as machine code.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost
from core.altered_models import AIMED, DAMAGES, altered_files
from core.evaluate_altered import probes

from services.core.trees import ForestError, parse_forest
from services.runtime import forests
from services.runtime.bundles import open_bundle, write_bundle
from services.runtime.errors import BundleError

COUNT = 2000
SEED = 20
TESTS = Path(__file__).parents[1]
LIMIT_BYTES = 1 << 20
INTERPRETED = {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(TESTS)}


@pytest.fixture(scope="module")
def sound() -> dict[str, bytes]:
    """Small models of every format, with missing values, by file name."""
    draw = np.random.default_rng(3)
    rows = draw.normal(size=(300, 5))
    rows[::5, 1] = np.nan
    targets = rows[:, 0] - np.nan_to_num(rows[:, 1]) * rows[:, 2]
    files = {}
    for name, labels in (("regression", targets), ("binary", (targets > 0).astype(float))):
        booster = lightgbm.train(
            {"objective": name, "num_leaves": 6, "num_threads": 1, "verbosity": -1},
            lightgbm.Dataset(rows, labels),
            3,
        )
        text: str = booster.model_to_string()
        files[f"lightgbm-{name}.txt"] = text[: text.index("\nparameters:")].encode() + b"\n"
        objective = {"regression": "reg:squarederror", "binary": "binary:logistic"}[name]
        model = xgboost.train(
            {"objective": objective, "max_depth": 3, "nthread": 1}, xgboost.DMatrix(rows, labels), 3
        )
        for ending in ("json", "ubj"):
            files[f"xgboost-{name}.{ending}"] = bytes(model.save_raw(ending))
    return files


@pytest.fixture(scope="module")
def folder(sound: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    for name, data in sound.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture(scope="module")
def outcome(folder: Path) -> dict[str, Any]:
    """What `evaluate_altered.py` found with interpreted kernels."""
    done = subprocess.run(
        [sys.executable, "-m", "core.evaluate_altered", folder, str(COUNT), str(SEED)],
        env=os.environ | INTERPRETED,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_every_altered_file_is_refused_clearly_or_evaluates(outcome: dict[str, Any]) -> None:
    assert outcome["faults"] == []
    assert outcome["rejected"] + len(outcome["accepted"]) == COUNT
    assert outcome["rejected"] > COUNT / 4, "the alterations hardly alter"
    assert len(outcome["accepted"]) > COUNT / 20, "the kernels hardly saw an altered model"


def test_machine_code_scores_accepted_models_alike_and_predicts_numbers(
    outcome: dict[str, Any], sound: dict[str, bytes]
) -> None:
    seen = 0
    for what, data in altered_files(sound, COUNT, SEED):
        if what in outcome["accepted"]:
            forest = parse_forest(data)
            # XGBoost's base score passes through logf here and through log there.
            np.testing.assert_allclose(
                forest.predict_raw(probes(forest)), outcome["accepted"][what], rtol=1e-6, err_msg=what
            )
            # A sum beyond the range of its type is infinite, as in the libraries; nothing is NaN.
            assert not np.isnan(forest.predict(probes(forest))).any(), what
            seen += 1
    assert seen == len(outcome["accepted"])


def test_an_altered_file_does_not_pass_the_manifest(sound: dict[str, bytes], tmp_path: Path) -> None:
    bundles = {}
    for name, data in sound.items():
        with write_bundle(tmp_path / name, "model", {}) as staging:
            (staging / "model").write_bytes(data)
        bundles[name] = tmp_path / name
    for what, data in altered_files(sound, COUNT // 2, SEED + 1):
        folder = bundles[what.split()[1]]
        (folder / "model").write_bytes(data)
        with pytest.raises(BundleError, match="model: "):
            open_bundle(folder, "model", max_bytes=LIMIT_BYTES)
    for name, data in sound.items():
        (bundles[name] / "model").write_bytes(data)
        open_bundle(bundles[name], "model", max_bytes=LIMIT_BYTES)


def test_behind_a_matching_manifest_only_a_model_that_meets_its_golden_rows_opens(
    sound: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forests, "parse_in_child", lambda *_: None)  # a second each
    names = ("a", "b", "c", "d", "e")
    golden_rows = np.random.default_rng(9).normal(size=(40, 5))
    bundles = {}
    for name, data in sound.items():
        forests.write_forest(
            tmp_path / name, "model", data, feature_names=names, golden_rows=golden_rows, meta={}
        )
        bundles[name] = open_bundle(tmp_path / name, "model", max_bytes=LIMIT_BYTES)
    opened = refused = 0
    for what, data in altered_files(sound, 60, SEED + 2):
        bundle = bundles[what.split()[1]]
        with write_bundle(tmp_path / "altered", "model", bundle.meta) as staging:
            (staging / forests.MODEL_FILE).write_bytes(data)
            (staging / forests.GOLDEN_FILE).write_bytes(bundle.read(forests.GOLDEN_FILE))
        try:
            forest = forests.open_forest(tmp_path / "altered", "model", feature_names=names).forest
        except BundleError:
            refused += 1
        else:
            expected = parse_forest(sound[what.split()[1]]).predict_raw(golden_rows)
            np.testing.assert_array_equal(forest.predict_raw(golden_rows), expected, err_msg=what)
            opened += 1
    assert refused > opened > 0


def _bombs() -> Iterator[tuple[str, bytes]]:
    """Short files that ask for much."""
    deep = 200_000
    yield "nested JSON arrays", b"[" * deep
    yield "nested JSON objects", b'{"learner":' * deep
    yield "nested UBJ arrays", b"{L\0\0\0\0\0\0\0\7learner" + b"[" * deep
    yield "nested UBJ objects", b"{L\0\0\0\0\0\0\0\1a" * deep
    for mark in b"lLdDUiISZTFNC{[":
        yield f"UBJ array of 2**62 {mark:c}", b"{L\0\0\0\0\0\0\0\7learner[$%c#L@\0\0\0\0\0\0\0" % mark
        yield f"UBJ object of 2**62 {mark:c}", b"{$%c#L@\0\0\0\0\0\0\0" % mark
    yield "a UBJ key of 2**62 bytes", b"{L@\0\0\0\0\0\0\0learner"
    yield "a long number", b'{"learner":' + b"9" * 1_000_000 + b"}"
    head = b"tree\nversion=v4\nnum_class=1\nnum_tree_per_iteration=1\nlabel_index=0\n"
    tree = b"feature_names=a\nfeature_infos=[0:1]\ntree_sizes=1\n\nTree=0\n"
    for count in (b"2147483647", b"9" * 100_000):
        yield "many features", head + b"max_feature_idx=" + count + b"\nobjective=regression\n" + tree
        yield (
            "many leaves",
            head + b"max_feature_idx=0\nobjective=regression\n" + tree + b"num_leaves=" + count,
        )
    yield "nothing", b""
    yield "a line end", b"\n"
    yield "a brace", b"{"
    yield "zeros", bytes(1_000_000)


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in _bombs()])
def test_a_short_file_that_asks_for_much_is_refused_cheaply(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ForestError, match=r"."):
            parse_forest(data)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 64 << 20


def test_alterations_are_repeatable_and_all_take_place(sound: dict[str, bytes]) -> None:
    first, second = (list(altered_files(sound, 300, 4)) for _ in range(2))
    assert first == second
    assert {what.split()[2] for what, _ in first} == {one.__name__ for one in (*DAMAGES, *AIMED)}
    assert {what.split()[1] for what, _ in first} == set(sound)
    assert all(data != sound[what.split()[1]] for what, data in first)


CARELESS = """
import services.core.trees as trees
class Careless:
    feature_count = 5
    def __init__(self, data): self.data = data
    def predict_raw(self, rows):
        if {fault}: {act}
        return rows[:, 0] * 0
trees.parse_forest = Careless
import json, sys
from core import evaluate_altered
evaluate_altered.interpreted = lambda forest: forest
evaluate_altered.CPU_S = 0.05
json.dump(evaluate_altered.main(sys.argv[1], 12, 1), sys.stdout)
"""


@pytest.mark.parametrize(
    ("act", "name"),
    [
        ("raise IndexError('index 9 is out of bounds')", "IndexError"),
        ("bytearray(1 << 31)", "MemoryError"),
        ("exec('while True: pass')", "_Hang"),
    ],
)
def test_a_careless_evaluator_would_be_found_out(folder: Path, act: str, name: str) -> None:
    code = CARELESS.format(fault="len(self.data) % 3 == 0 and self.data not in sound", act=act)
    prelude = "import pathlib, sys\nsound = [p.read_bytes() for p in pathlib.Path(sys.argv[1]).iterdir()]\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + code, folder],
        env=os.environ | INTERPRETED,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    faults = json.loads(done.stdout)["faults"]
    assert faults
    assert all(f"{name}: " in fault for fault in faults)
