"""XGBoost's documents: names, what is refused, and what is wrong with a file."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xgboost

from services.core.trees import ForestError, parse_forest, parse_xgboost
from services.core.trees.limits import MAX_BYTES, MAX_CONTAINERS

DRAW = np.random.default_rng(1)
ROWS = DRAW.normal(size=(200, 3))
LABEL = (ROWS[:, 0] + ROWS[:, 1] > 0).astype(float)


def train(label: Any = LABEL, rows: Any = ROWS, names: Any = None, types: Any = None, **options: Any) -> Any:
    settings = {"objective": "binary:logistic", "max_depth": 2, "nthread": 1}
    data = xgboost.DMatrix(
        rows, label, feature_names=names, feature_types=types, enable_categorical=True, nthread=1
    )
    return xgboost.train(settings | options, data, 2)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(train().save_raw("json"))
    return loaded


@pytest.mark.parametrize("encoding", ["json", "ubj"])
def test_names(encoding: str) -> None:
    names = ["prix €", "a=b", '"quoted"\\']
    assert parse_forest(bytes(train(names=names).save_raw(encoding))).feature_names == tuple(names)
    assert parse_forest(bytes(train().save_raw(encoding))).feature_names == ("f0", "f1", "f2")


CODES = np.column_stack([ROWS[:, :2], DRAW.integers(0, 5, 200)])


@pytest.mark.parametrize("encoding", ["json", "ubj"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"objective": "multi:softprob", "num_class": 3, "label": np.arange(200) % 3},
            "num_class: 3 outputs are not supported; train one model",
        ),
        (
            {"objective": "reg:squarederror", "label": ROWS[:, :2], "multi_strategy": "multi_output_tree"},
            "num_target: 2 outputs are not supported; train one model",
        ),
        ({"booster": "dart", "rate_drop": 0.5}, "'dart' is not supported; train with booster=gbtree"),
        ({"booster": "gblinear"}, "'gblinear' is not supported; train with booster=gbtree"),
        (
            {"rows": CODES, "types": ["q", "q", "c"], "label": CODES[:, 2] % 2},
            "categorical features .* encode categories",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")  # xgboost's own remarks on unused options
def test_refused_models(options: dict[str, Any], message: str, encoding: str) -> None:
    with pytest.raises(ForestError, match=message):
        parse_xgboost(bytes(train(**options).save_raw(encoding)))


def learner(document: dict[str, Any]) -> Any:
    return document["learner"]


def model(document: dict[str, Any]) -> Any:
    return document["learner"]["gradient_booster"]["model"]


def tree(document: dict[str, Any]) -> Any:
    return model(document)["trees"][1]


def test_the_altered_documents_start_sound(document: dict[str, Any]) -> None:
    assert tree(document)["left_children"] == [1, 3, 5, -1, -1, -1, -1]
    assert parse_xgboost(json.dumps(document).encode()).tree_count == 2


@pytest.mark.parametrize(
    ("part", "key", "value", "message"),
    [
        (lambda d: d, "version", [2, 1, 0], "version: .* is not 3; load and save the model with XGBoost 3"),
        (lambda d: d, "learner", [], "learner: missing, or not of type dict"),
        (learner, "feature_names", ["a", "b"], "feature_names: not the 3 names"),
        (learner, "feature_names", ["a", "b", "a"], "feature_names: a name repeats"),
        (learner, "feature_names", ["a", "b", 3], "feature_names: not the 3 names"),
        (learner, "feature_types", ["q", "q", "c"], "feature_types: categorical features"),
        (learner, "objective", {"name": "multi:softmax"}, "objective: 'multi:softmax' is not supported; use"),
        (learner, "objective", {}, "name: missing"),
        (model, "trees", [], "num_trees: 2 for 0 trees"),
        (model, "gbtree_model_param", {"num_trees": "-2"}, "num_trees: '-2' is not a count"),
        (model, "gbtree_model_param", {"num_trees": 2}, "num_trees: missing, or not of type str"),
        (model, "iteration_indptr", [1, 1, 2], "iteration_indptr: does not rise from 0 to 2"),
        (model, "iteration_indptr", [0, 2, 1], "iteration_indptr: does not rise from 0 to 2"),
        (model, "cats", {"enc": [1]}, "cats: categorical features"),
        (model, "tree_info", [0, 1], "tree_info: trees of several outputs"),
        (tree, "tree_param", {"num_nodes": "7", "size_leaf_vector": "2"}, "vector leaves are not supported"),
        (tree, "tree_param", {"num_nodes": "8"}, "tree 1, left_children: 7 values for 8 nodes"),
        (tree, "tree_param", {"num_nodes": "7", "num_deleted": "1"}, "0 nodes are out of reach, 1 expected"),
        (tree, "tree_param", {"num_nodes": "9999999999"}, "num_nodes: '9999999999' is not a count"),
        (tree, "left_children", [1, 3, 5, -1, -1, -1], "left_children: 6 values for 7 nodes"),
        (tree, "left_children", [1, 0, 5, -1, -1, -1, -1], "child 0 is outside 1..6"),
        (tree, "left_children", [1, 2, 5, -1, -1, -1, -1], "child 2 has another parent"),
        (tree, "left_children", [1, 7, 5, -1, -1, -1, -1], "child 7 is outside 1..6"),
        (tree, "left_children", [1, -1, 5, -1, -1, -1, -1], "2 nodes are out of reach, 0 expected"),
        (tree, "left_children", [1, "3", 5, -1, -1, -1, -1], "left_children: a value is not an integer"),
        (tree, "left_children", [1, 3.0, 5, -1, -1, -1, -1], "left_children: a value is not an integer"),
        (tree, "right_children", [2, -1, 6, -1, -1, -1, -1], "child -1 is outside 1..6"),
        (tree, "split_indices", [0, 3, 0, 0, 0, 0, 0], "feature 3 is outside 0..2"),
        (tree, "split_indices", [0, -1, 0, 0, 0, 0, 0], "feature -1 is outside 0..2"),
        (tree, "split_type", [0, 1, 0, 0, 0, 0, 0], "split_type: categorical features"),
        (tree, "split_conditions", [0, 1e39, 0, 0, 0, 0, 0], "split_conditions: .* not finite"),
        (tree, "split_conditions", [0, 10**400, 0, 0, 0, 0, 0], "split_conditions: .* beyond float32"),
        (tree, "split_conditions", [0, float("nan"), 0, 0, 0, 0, 0], "split_conditions: .* not finite"),
        (tree, "split_conditions", [0, [1], 0, 0, 0, 0, 0], "split_conditions: a value is not a number"),
        (tree, "default_left", [0, None, 0, 0, 0, 0, 0], "default_left: a value is not an integer"),
        (tree, "default_left", [0, 2, 0, 0, 0, 0, 0], "default_left: a value is neither 0 nor 1"),
        (tree, "default_left", 1, "default_left: missing, or not of type list"),
    ],
)
def test_wrong_values(
    document: dict[str, Any], part: Callable[[Any], Any], key: str, value: Any, message: str
) -> None:
    altered = copy.deepcopy(document)
    part(altered)[key] = value
    with pytest.raises(ForestError, match=message):
        parse_xgboost(json.dumps(altered).encode())


@pytest.mark.parametrize(
    ("base_score", "objective", "message"),
    [
        ("5E-1", "binary:logistic", ""),  # as XGBoost 3.0 writes it
        ("[5E-1]", "binary:logistic", ""),
        ("[1E0]", "binary:logistic", "base_score: 1.0 is outside the range of binary:logistic"),
        ("[0E0]", "count:poisson", "base_score: 0.0 is outside the range of count:poisson"),
        ("[nan]", "reg:squarederror", "base_score: nan is outside"),
        ("[1E0,2E0]", "reg:squarederror", r"base_score: '\[1E0,2E0\]' is not one number"),
        ("[]", "reg:squarederror", r"base_score: '\[\]' is not one number"),
    ],
)
def test_base_score(document: dict[str, Any], base_score: str, objective: str, message: str) -> None:
    altered = copy.deepcopy(document)
    learner(altered)["learner_model_param"]["base_score"] = base_score
    learner(altered)["objective"]["name"] = objective
    encoded = json.dumps(altered).encode()
    if not message:
        rows = ROWS[:9]
        expected = xgboost.Booster(model_file=bytearray(encoded)).inplace_predict(rows)
        np.testing.assert_array_equal(parse_xgboost(encoded).predict(rows), expected.astype(float))
        return
    with pytest.raises(ForestError, match=message):
        parse_xgboost(encoded)


def test_pruned_nodes_are_allowed() -> None:
    booster = train(tree_method="exact", gamma=3.0, max_depth=6, objective="reg:squarederror")
    deleted = [t["tree_param"]["num_deleted"] for t in model(json.loads(booster.save_raw("json")))["trees"]]
    assert any(int(count) for count in deleted)
    expected = booster.inplace_predict(ROWS).astype(float)
    np.testing.assert_array_equal(parse_xgboost(bytes(booster.save_raw("ubj"))).predict(ROWS), expected)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a": 1', "JSON: Expecting"),
        (b'{"a": "\xff"}', "JSON: 'utf-8' codec"),
        (b'{"a":' + b"[" * 100_000, "JSON: nested too deeply"),
        (b'{"a":' + b"9" * 5000 + b"}", "JSON: Exceeds the limit"),
        (b'{"a":[' + b"[" * MAX_CONTAINERS, f"JSON: more than {MAX_CONTAINERS} containers"),
        (b"{" + bytes(MAX_BYTES), f"at most {MAX_BYTES}"),
        (b"{}", "version: missing"),
        (b"[]", "version: missing"),
    ],
)
def test_wrong_documents(data: bytes, message: str) -> None:
    with pytest.raises(ForestError, match=message):
        parse_xgboost(data)
