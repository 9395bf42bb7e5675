"""LightGBM's text: names, what is refused, and what is wrong with a file."""

from __future__ import annotations

from typing import Any

import lightgbm
import numpy as np
import pytest

from services.core.trees import ForestError, parse_forest, parse_lightgbm
from services.core.trees.limits import MAX_BYTES, MAX_FEATURES, MAX_LINES, MAX_NODES

DRAW = np.random.default_rng(1)
ROWS = DRAW.normal(size=(200, 3))
LABEL = (ROWS[:, 0] + ROWS[:, 1] > 0).astype(float)


def model_text(rounds: int = 3, names: Any = "auto", label: Any = LABEL, **options: Any) -> str:
    data = lightgbm.Dataset(
        ROWS, label, feature_name=names, categorical_feature=options.pop("categorical", "auto")
    )
    settings = {"objective": "binary", "num_leaves": 5, "verbosity": -1, "num_threads": 1, "seed": 1}
    text: str = lightgbm.train(settings | options, data, rounds).model_to_string()
    return text


@pytest.fixture(scope="module")
def text() -> str:
    return model_text()


def test_names_with_odd_characters() -> None:
    names = ["prix_€", "a=b", "Tree=0"]
    assert parse_forest(model_text(names=names).encode()).feature_names == tuple(names)


def test_names_default_to_column_numbers(text: str) -> None:
    assert parse_lightgbm(text.encode()).feature_names == ("Column_0", "Column_1", "Column_2")


def test_parameters_are_not_needed(text: str) -> None:
    short = text[: text.index("end of trees")] + "end of trees\n"
    assert parse_lightgbm(short.encode()).tree_count == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"objective": "multiclass", "num_class": 3, "label": np.arange(200) % 3},
            "num_class: '3' is not 1; .* one binary model per class",
        ),
        ({"boosting": "dart"}, "dart is not supported; train with boosting=gbdt"),
        ({"objective": "regression", "linear_tree": True}, "linear trees .* linear_tree=false"),
        ({"objective": lambda scores, _: (scores - LABEL, np.ones(200))}, "use a built-in objective"),
    ],
)
def test_refused_models(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ForestError, match=message):
        parse_lightgbm(model_text(**options).encode())


def test_categorical_splits_are_refused() -> None:
    ROWS[:, 2] = DRAW.integers(0, 5, 200)
    label = np.isin(ROWS[:, 2], (1, 4)).astype(float)
    with pytest.raises(ForestError, match=r"num_cat: categorical splits .* encode categories"):
        parse_lightgbm(model_text(label=label, categorical=[2], min_data_per_group=1).encode())


def test_a_dump_is_refused() -> None:
    with pytest.raises(ForestError, match=r"a LightGBM dump.*model_to_string"):
        parse_forest(b'{"name": "tree", "tree_info": []}')


def changed(text: str, key: str, value: str) -> str:
    """With the first line of `key` changed."""
    lines = text.split("\n")
    at = next(n for n, line in enumerate(lines) if line.startswith(f"{key}="))
    lines[at] = f"{key}={value}"
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("version", "v3", "version: 'v3' is not 'v4'; load and save the model with LightGBM 4"),
        ("num_tree_per_iteration", "2", "num_tree_per_iteration: '2' is not 1"),
        ("objective", "binary", ""),
        ("objective", "binary sigmoid:0", "objective: 'binary sigmoid:0' is not supported"),
        ("objective", "binary sigmoid:nan", "objective: 'binary sigmoid:nan' is not supported"),
        ("objective", "binary sigmoid:x", "objective, sigmoid: 'x' is not all numbers"),
        ("objective", "binary sqrt", "objective: 'binary sqrt' is not supported"),
        ("objective", "mine", "objective: 'mine' is not supported; use one of regression"),
        ("max_feature_idx", "4", "feature_names: 3 values instead of 5"),
        ("max_feature_idx", str(MAX_FEATURES), f"is outside 0..{MAX_FEATURES - 1}"),
        ("max_feature_idx", "-1", "max_feature_idx: -1 is outside"),
        ("feature_names", "a b a", "feature_names: a name repeats"),
        ("tree_sizes", "1 2", "tree_sizes: 2 values instead of 3"),
        ("tree_sizes", "630 631 0", "tree_sizes: .*, but it has .* bytes"),
        ("Tree", "1", "a line 'Tree=0'|tree 0: is called '1'"),
        ("num_leaves", "6", "tree 0, leaf_value: 5 values instead of 6"),
        ("num_leaves", "0", f"num_leaves: 0 is outside 1..{MAX_NODES}"),
        ("num_leaves", "99999999999", f"num_leaves: 99999999999 is outside 1..{MAX_NODES}"),
        ("num_leaves", "5_0", "num_leaves: '5_0' is not all numbers"),
        ("num_leaves", "٥", "num_leaves: '٥' is not all numbers"),
        ("num_cat", "1", "num_cat: categorical splits"),
        ("is_linear", "1", "is_linear: linear trees"),
        ("split_feature", "0 1 3 0", "feature 3 is outside 0..2"),
        ("split_feature", "0 1 -1 0", "feature -1 is outside 0..2"),
        ("split_feature", "0 1 1.5 0", "split_feature: .* is not all numbers"),
        ("threshold", "0 0 0 nan", "nan as a threshold"),
        ("threshold", "0 0 0", "tree 0, threshold: 3 values instead of 4"),
        ("leaf_value", "0 inf 0 0 0", "inf as a leaf value"),
        ("leaf_value", "0 0 -nan 0 0", "nan as a leaf value"),
        ("decision_type", "1 2 2 2", "decision_type: categorical splits"),
        ("decision_type", "12 2 2 2", "decision_type: 12 is not known"),
        ("decision_type", "-6 2 2 2", "decision_type: -6 is not known"),
        ("left_child", "0 0 0 0", "child 0 is outside 1..8"),
        ("left_child", "1 1 1 1", "child 1 has another parent"),
        ("left_child", "-1 -1 -1 -1", "has another parent|out of reach"),
        ("left_child", "-9 2 3 -1", "child 12 is outside 1..8"),
    ],
)
def test_wrong_values(text: str, key: str, value: str, message: str) -> None:
    altered = changed(text, key, value).encode()
    if not message:
        assert parse_lightgbm(altered).tree_count == 3
        return
    with pytest.raises(ForestError, match=message):
        parse_lightgbm(altered)


@pytest.mark.parametrize("key", ["objective", "max_feature_idx", "tree_sizes", "threshold", "num_leaves"])
def test_missing_lines(text: str, key: str) -> None:
    start = text.index(f"\n{key}=") + 1
    with pytest.raises(ForestError, match=key):
        parse_lightgbm((text[:start] + text[text.index("\n", start) + 1 :]).encode())


def test_repeated_lines(text: str) -> None:
    with pytest.raises(ForestError, match="header: 'objective' appears twice"):
        parse_lightgbm(text.replace("\nobjective=", "\nobjective=regression\nobjective=").encode())


@pytest.mark.parametrize("part", [0, 4, 5, 300, 0.3, 0.6, 0.9])
def test_truncated(text: str, part: float) -> None:
    trees = text[: text.index("end of trees")]
    with pytest.raises(ForestError):
        parse_lightgbm(trees[: int(part * len(trees)) if part < 1 else int(part)].encode())


def test_foreign_bytes() -> None:
    with pytest.raises(ForestError, match="neither LightGBM's text nor XGBoost's JSON or UBJSON"):
        parse_forest(b"\x7fELF")
    with pytest.raises(ForestError, match="not UTF-8 at byte 5"):
        parse_forest(b"tree\n\xff\nend of trees")
    with pytest.raises(ForestError, match=f"at most {MAX_BYTES}"):
        parse_forest(b"tree" + bytes(MAX_BYTES))
    with pytest.raises(ForestError, match=f"more than {MAX_LINES} lines"):
        parse_forest(b"tree" + b"\n" * (MAX_LINES + 1))
