from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest

from services.runtime import forests
from services.runtime.bundles import MANIFEST, open_bundle, write_bundle
from services.runtime.errors import BundleError, UserError
from services.runtime.forests import (
    GOLDEN_FILE,
    LINK_TOLERANCE,
    MAX_BYTES,
    MAX_FEATURES,
    MODEL_FILE,
    LoadedForest,
    open_forest,
    try_load,
    write_forest,
)

KIND = "termination-model"
NAMES = ("lists_scanned", "best_similarity", "kth_gap", "age_s")


@pytest.fixture(scope="module")
def booster() -> Any:
    draw = np.random.default_rng(5)
    rows = draw.normal(size=(400, len(NAMES)))
    rows[::7, 2] = np.nan
    targets = rows[:, 0] - np.nan_to_num(rows[:, 2])
    data = lightgbm.Dataset(rows, targets, feature_name=list(NAMES))
    return lightgbm.train({"num_leaves": 6, "num_threads": 1, "verbosity": -1}, data, 5)


@pytest.fixture(scope="module")
def model(booster: Any) -> bytes:
    return str(booster.model_to_string()).encode()


@pytest.fixture(scope="module")
def golden_rows() -> Any:
    rows = np.random.default_rng(6).normal(size=(20, len(NAMES)))
    rows[0] = np.nan
    rows[1] = np.inf
    return rows


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, model: bytes, golden_rows: Any) -> Path:
    folder = tmp_path_factory.mktemp("forests") / "sound"
    write_forest(folder, KIND, model, feature_names=NAMES, golden_rows=golden_rows, meta={"seed": 5})
    return folder


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the throw-away process, which takes a second, where a test is about something else."""
    monkeypatch.setattr(forests, "parse_in_child", lambda *_: None)


def opened(folder: Path, names: tuple[str, ...] = NAMES) -> LoadedForest:
    return open_forest(folder, KIND, feature_names=names)


def rewritten(source: Path, folder: Path, **changes: object) -> Path:
    """A bundle like `source` but for some of its files (bytes) or metadata, its manifest made to match."""
    bundle = open_bundle(source, KIND, max_bytes=MAX_BYTES)
    files = {name: changes.pop(name, bundle.read(name)) for name in (MODEL_FILE, GOLDEN_FILE)}
    with write_bundle(folder, KIND, {**bundle.meta, **changes}) as staging:
        for name, data in files.items():
            assert isinstance(data, bytes)
            (staging / name).write_bytes(data)
    return folder


def test_a_model_is_opened_by_a_process_that_has_not_seen_it(written: Path, booster: Any) -> None:
    loaded = opened(written)
    rows = np.random.default_rng(7).normal(size=(50, len(NAMES)))
    np.testing.assert_allclose(loaded.forest.predict(rows), booster.predict(rows), rtol=1e-12)
    assert loaded.meta == {"seed": 5, "feature_names": list(NAMES)}
    assert loaded.fingerprint == open_bundle(written, KIND, max_bytes=MAX_BYTES).fingerprint


def test_a_model_is_parsed_in_a_child_first(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def dies(target: str, folder: Path, timeout_s: float) -> None:
        calls.append(target)
        raise BundleError(f"{folder}: its trial load was killed by SIGSEGV")

    monkeypatch.setattr(forests, "parse_in_child", dies)
    monkeypatch.setattr(forests, "parse_forest", lambda _: pytest.fail("parsed here first"))
    with pytest.raises(BundleError, match="SIGSEGV"):
        opened(written)
    assert calls == [forests.PROBE]


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("computed", "message"),
    [
        (
            (NAMES[0], NAMES[2], NAMES[1], NAMES[3]),
            "feature 1 of the model is 'best_similarity', but 'kth_gap' is computed",
        ),
        ((*NAMES[:3], "age_ms"), "feature 3 of the model is 'age_s', but 'age_ms' is computed"),
        (NAMES[:3], "4 features, 3 are computed; feature 3 is 'age_s' and only in the model"),
        ((*NAMES, "hits"), "4 features, 5 are computed; feature 4 is 'hits' and only in what is computed"),
        ((), "4 features, 0 are computed; feature 0 is 'lists_scanned'"),
    ],
)
def test_other_features_are_named(written: Path, computed: tuple[str, ...], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        opened(written, computed)


@pytest.mark.usefixtures("in_this_process")
def test_a_model_of_another_decision_is_refused(written: Path) -> None:
    with pytest.raises(BundleError, match="of kind 'termination-model', not 'refresh-model'"):
        open_forest(written, "refresh-model", feature_names=NAMES)


def test_checksums_come_before_parsing(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = rewritten(written, tmp_path / "m")
    damaged = bytearray((folder / MODEL_FILE).read_bytes())
    damaged[100] ^= 1
    (folder / MODEL_FILE).write_bytes(damaged)
    for name in ("parse_in_child", "parse_forest"):
        monkeypatch.setattr(forests, name, lambda *_: pytest.fail("parsed before it was verified"))
    with pytest.raises(BundleError, match="SHA-256"):
        opened(folder)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("column", "factor", "message"),
    [
        (-2, 1 + 2**-52, r"the raw score of golden row 7 is .*, but .* by the machine that wrote it"),
        (-1, 1 + 1e-6, "the prediction of golden row 7 is"),
        (-1, math.nan, "the prediction of golden row 7 is .*, but nan"),
        (0, -1e9, "golden row 7"),
    ],
)
def test_a_golden_row_that_evaluates_differently_is_refused(
    written: Path, tmp_path: Path, column: int, factor: float, message: str
) -> None:
    golden = np.frombuffer((written / GOLDEN_FILE).read_bytes(), "<f8").reshape(-1, len(NAMES) + 2).copy()
    golden[7, column] *= factor
    with pytest.raises(BundleError, match=message):
        opened(rewritten(written, tmp_path / "m", **{GOLDEN_FILE: golden.tobytes()}))


@pytest.mark.usefixtures("in_this_process")
def test_links_of_another_c_library_may_differ_in_the_last_places(written: Path, tmp_path: Path) -> None:
    golden = np.frombuffer((written / GOLDEN_FILE).read_bytes(), "<f8").reshape(-1, len(NAMES) + 2).copy()
    golden[:, -1] *= 1 + LINK_TOLERANCE / 2
    opened(rewritten(written, tmp_path / "m", **{GOLDEN_FILE: golden.tobytes()}))


@pytest.mark.usefixtures("in_this_process")
def test_a_model_that_was_swapped_for_another_is_refused(written: Path, tmp_path: Path, model: bytes) -> None:
    at = model.index(b"leaf_value=") + len(b"leaf_value=")
    end = model.index(b" ", at)
    other = model[:at] + b"0" * (end - at) + model[end:]  # as long as before: the text says its own lengths
    with pytest.raises(BundleError, match="golden row"):
        opened(rewritten(written, tmp_path / "m", **{MODEL_FILE: other}))


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({GOLDEN_FILE: b""}, "golden.f64: 0 bytes"),
        ({GOLDEN_FILE: b"x" * 49}, "golden.f64: 49 bytes"),
        ({MODEL_FILE: b"tree\nversion=v4\n"}, "model: "),
        ({"feature_names": "none"}, "meta.feature_names must be a list"),
        ({"feature_names": [1, 2, 3, 4]}, "feature 0 is called 1, must be a text"),
        ({"feature_names": [*NAMES, "hits"]}, "feature 4 is 'hits' and only in the model"),
    ],
)
def test_a_bundle_whose_parts_do_not_fit_is_refused(
    written: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(BundleError, match=message):
        opened(rewritten(written, tmp_path / "m", **changes))


@pytest.mark.usefixtures("in_this_process")
def test_names_that_fit_the_caller_but_not_the_model_are_refused(written: Path, tmp_path: Path) -> None:
    names = (*NAMES, "hits")
    folder = rewritten(written, tmp_path / "m", feature_names=list(names))
    with pytest.raises(BundleError, match="the model has 4 features, 5 are named"):
        opened(folder, names)


@pytest.mark.usefixtures("in_this_process")
def test_a_model_whose_own_names_are_in_another_order_is_refused(
    written: Path, tmp_path: Path, model: bytes
) -> None:
    other = model.replace(b"lists_scanned best_similarity", b"best_similarity lists_scanned")
    with pytest.raises(BundleError, match="feature 0 of the model is 'best_similarity', but 'lists_scanned'"):
        opened(rewritten(written, tmp_path / "m", **{MODEL_FILE: other}))


@pytest.mark.usefixtures("in_this_process")
def test_a_model_trained_on_columns_without_names_takes_those_it_is_given(
    tmp_path: Path, golden_rows: Any
) -> None:
    rows = np.random.default_rng(8).normal(size=(200, len(NAMES)))
    unnamed = lightgbm.train(
        {"num_leaves": 4, "verbosity": -1, "num_threads": 1}, lightgbm.Dataset(rows, rows[:, 0]), 2
    )
    text = unnamed.model_to_string().encode()
    write_forest(tmp_path / "m", KIND, text, feature_names=NAMES, golden_rows=golden_rows, meta={})
    assert opened(tmp_path / "m").meta["feature_names"] == list(NAMES)


def test_an_infinite_golden_prediction_is_not_written(tmp_path: Path, model: bytes, golden_rows: Any) -> None:
    huge = re.sub(
        rb"(?<=leaf_value=).+",
        lambda line: b" ".join(b"1.7" + b"0" * (len(word) - 7) + b"e308" for word in line[0].split()),
        model,
    )
    with pytest.raises(BundleError, match="the prediction of a golden row is not finite"):
        write_forest(tmp_path / "m", KIND, huge, feature_names=NAMES, golden_rows=golden_rows, meta={})


def test_the_trial_load_replays_the_golden_rows(written: Path, tmp_path: Path) -> None:
    try_load(written)
    folder = rewritten(written, tmp_path / "m", **{GOLDEN_FILE: b"\0" * 48})
    with pytest.raises(BundleError, match="golden row 0"):
        try_load(folder)


def test_the_trainers_predictions_are_compared_when_written(
    tmp_path: Path, booster: Any, model: bytes, golden_rows: Any
) -> None:
    expected = booster.predict(golden_rows)

    def write(predictions: Any) -> None:
        write_forest(
            tmp_path / "m",
            KIND,
            model,
            feature_names=NAMES,
            golden_rows=golden_rows,
            meta={},
            trainer_predictions=predictions,
        )

    write(expected)
    before = (tmp_path / "m" / MANIFEST).read_bytes()
    for wrong in (expected * (1 + 1e-6), np.where(np.arange(20) == 3, np.nan, expected)):
        with pytest.raises(BundleError, match=r"of golden row \d is .*, but .* by the training library"):
            write(wrong)
    with pytest.raises(BundleError, match=r"shape \(19,\), not \(20,\)"):
        write(expected[1:])
    assert (tmp_path / "m" / MANIFEST).read_bytes() == before


@pytest.mark.parametrize(
    ("names", "rows", "message"),
    [
        (NAMES[:3], np.zeros((1, 4)), "4 features"),
        ((*NAMES[:3], "years"), np.zeros((1, 4)), "feature 3 of the model is 'age_s', but 'years'"),
        ((*NAMES[:3], NAMES[0]), np.zeros((1, 4)), "feature 3 is called 'lists_scanned' like one before it"),
        ((*NAMES[:3], ""), np.zeros((1, 4)), "must be a text of 1..100 characters"),
        ((), np.zeros((1, 4)), "0 feature names, must be 1..4096"),
        (tuple(map(str, range(MAX_FEATURES + 1))), np.zeros((1, 4)), "4097 feature names"),
        (NAMES, np.zeros((0, 4)), r"golden rows of shape \(0, 4\)"),
        (NAMES, np.zeros((3, 5)), r"golden rows of shape \(3, 5\)"),
        (NAMES, np.zeros(4), r"golden rows of shape \(4,\)"),
    ],
)
def test_what_does_not_fit_the_model_is_not_written(
    tmp_path: Path, model: bytes, names: tuple[str, ...], rows: Any, message: str
) -> None:
    with pytest.raises(BundleError, match=message):
        write_forest(tmp_path / "m", KIND, model, feature_names=names, golden_rows=rows, meta={})
    assert not (tmp_path / "m").exists()


def test_a_file_that_is_no_model_is_not_written(tmp_path: Path, golden_rows: Any) -> None:
    with pytest.raises(BundleError, match="model: "):
        write_forest(
            tmp_path / "m", KIND, b"not a model", feature_names=NAMES, golden_rows=golden_rows, meta={}
        )


def test_a_folder_of_something_else_is_not_replaced(tmp_path: Path, model: bytes, golden_rows: Any) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="holds something other"):
        write_forest(tmp_path, KIND, model, feature_names=NAMES, golden_rows=golden_rows, meta={})


def test_the_manifest_can_be_read_by_people(written: Path) -> None:
    document = json.loads((written / MANIFEST).read_text())
    assert document["meta"]["feature_names"] == list(NAMES)
    assert set(document["files"]) == {MODEL_FILE, GOLDEN_FILE}
