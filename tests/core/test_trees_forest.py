"""The forest as a value: what it checks, from many threads, and inside another kernel."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lightgbm
import numpy as np
import numpy.typing as npt
import pytest

from services.core.compiled import compiled
from services.core.trees import Forest, ForestError, evaluator, parse_lightgbm, score_row

Floats = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def rows() -> Floats:
    rows = np.random.default_rng(2).normal(size=(1000, 6))
    rows[::7, 2] = np.nan
    return rows


@pytest.fixture(scope="module")
def forest(rows: Floats) -> Forest:
    label = rows[:, 0] * rows[:, 1] > np.nan_to_num(rows[:, 2])
    data = lightgbm.Dataset(rows, label, feature_name=list("abcdef"))
    options = {"objective": "binary", "num_leaves": 12, "verbosity": -1, "num_threads": 1}
    return parse_lightgbm(lightgbm.train(options, data, 13).model_to_string().encode())


def test_it_says_what_it_is(forest: Forest) -> None:
    assert forest.feature_names == tuple("abcdef")
    assert forest.feature_count == 6
    assert forest.objective == "binary sigmoid:1"
    assert forest.tree_count == 13
    assert 13 < forest.leaf_count <= 13 * 12
    assert forest.nbytes == sum(array.nbytes for array in forest.arrays)


def test_it_does_not_change(forest: Forest) -> None:
    with pytest.raises(AttributeError):
        forest.tree_count = 1  # type: ignore[misc]
    for array in forest.arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = array[0]


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 63, 64, 65, 1000])
def test_a_row_scores_the_same_in_any_batch(forest: Forest, rows: Floats, count: int) -> None:
    np.testing.assert_array_equal(forest.predict(rows[:count]), forest.predict(rows)[:count])


def test_lanes_without_a_row_stay_inside(
    forest: Forest, rows: Floats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As plain Python, where a node beyond the last one raises, with trees that are all the last leaf."""
    nodes, trees, columns, head = (array.copy().view(np.recarray) for array in forest.arrays)
    nodes["threshold"][-1] = -1.0
    trees["root"], trees["depth"] = len(nodes) - 1, 2
    for name in ("_spread", "_step", "_add"):
        monkeypatch.setattr(evaluator, name, getattr(evaluator, name).py_func)
    out = np.empty(3)
    evaluator.raw_rows.py_func((nodes, trees, columns, head), rows[:3], out)  # type: ignore[attr-defined]
    assert out.tolist() == [-float(len(trees))] * 3


def test_memory_order_does_not_matter(forest: Forest, rows: Floats) -> None:
    expected = forest.predict(rows)
    np.testing.assert_array_equal(forest.predict(np.asfortranarray(rows)), expected)
    np.testing.assert_array_equal(forest.predict(rows[::-1])[::-1], expected)
    frozen = rows.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(forest.predict(frozen), expected)
    assert forest.predict_one(np.asfortranarray(rows)[3]) == expected[3]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.zeros((2, 5)), r"shape \(2, 5\) instead of \(n, 6\)"),
        (np.zeros((2, 7)), r"shape \(2, 7\) instead of \(n, 6\)"),
        (np.zeros(6), r"shape \(6,\) instead of \(n, 6\)"),
        (np.zeros((2, 6), np.float32), "float32 is not a float64 array"),
        (np.zeros((2, 6), ">f8"), ">f8 is not a float64 array|float64 is not a float64 array"),
        ([[0.0] * 6], "list is not a float64 array"),
    ],
)
def test_wrong_rows(forest: Forest, wrong: Any, message: str) -> None:
    for method in (forest.predict, forest.predict_raw):
        with pytest.raises(ForestError, match=message):
            method(wrong)


def test_a_wrong_row(forest: Forest) -> None:
    with pytest.raises(ForestError, match=r"shape \(5,\) instead of \(6\)"):
        forest.predict_one(np.zeros(5))
    with pytest.raises(ForestError, match=r"shape \(1, 6\) instead of \(6\)"):
        forest.predict_one(np.zeros((1, 6)))


def test_many_threads(forest: Forest, rows: Floats) -> None:
    expected = forest.predict(rows)

    def work(start: int) -> bool:
        turned = np.roll(rows, start, axis=0)
        return all(
            np.array_equal(np.roll(forest.predict(turned), -start), expected)
            and forest.predict_one(rows[start + n]) == expected[start + n]
            for n in range(40)
        )

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(0, 800, 50)))


@compiled
def _first_above(arrays: Any, rows: Floats, threshold: float) -> int:
    for i in range(len(rows)):
        if score_row(arrays, rows[i]) > threshold:
            return i
    return -1


def test_inside_another_kernel(forest: Forest, rows: Floats) -> None:
    predictions = forest.predict(rows)
    assert _first_above(forest.arrays, rows, 0.6) == np.flatnonzero(predictions > 0.6)[0]
    assert _first_above(forest.arrays, rows, 1.0) == -1
