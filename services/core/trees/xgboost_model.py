"""XGBoost's JSON and UBJSON models, read by us: the library crashes on many an altered file.

Format: `doc/model.schema` and `src/tree/io_utils.h` of XGBoost 3. Both encodings hold one document. A tree
is a set of parallel arrays over its nodes; left_children is -1 in a leaf, whose value then stands in
split_conditions. Nodes that pruning deleted stay in the arrays, out of reach; num_deleted counts them.

XGBoost compares float32(x) < t with a float32 t. Rounding to the nearest is monotone, so that holds for the
x up to and including a float64 q. With p the float32 below t and m = (p + t) / 2, which float64 holds
exactly: every x < m rounds to p or below, every x > m to t or above, and m itself goes to the one of even
mantissa. So q is m where float32(m) < t, and the float64 below m otherwise. Splits then compare x <= q like
LightGBM's.

base_score is stored as a prediction; the margin it starts sums with is its link inverted, in float32 with
the library's own logf (binary:logitraw and binary:hinge take it as it is).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt

from ..compiled import compiled
from .documents import read_document
from .evaluator import EXP, IDENTITY, LOGISTIC, STEP
from .forest import Forest
from .layout import Column, Output, Tree
from .limits import MAX_FEATURES, ForestError

_LINKS = {
    "reg:squarederror": IDENTITY,
    "reg:squaredlogerror": IDENTITY,
    "reg:pseudohubererror": IDENTITY,
    "reg:absoluteerror": IDENTITY,
    "reg:quantileerror": IDENTITY,
    "reg:logistic": LOGISTIC,
    "reg:gamma": EXP,
    "reg:tweedie": EXP,
    "count:poisson": EXP,
    "survival:cox": EXP,
    "survival:aft": EXP,
    "binary:logistic": LOGISTIC,
    "binary:logitraw": IDENTITY,
    "binary:hinge": STEP,
    "rank:ndcg": IDENTITY,  # predict returns raw scores of rankers, too
    "rank:map": IDENTITY,
    "rank:pairwise": IDENTITY,
}
_CATEGORICAL = "categorical features are not supported; encode categories as numbers before training"
_Type = TypeVar("_Type")


def parse_xgboost(data: bytes) -> Forest:
    """The forest of a JSON or UBJSON model (`save_model`, `save_raw`): all rounds, as `Booster.predict` uses.

    After early stopping, slice the booster to its best round before saving: `booster[: best_iteration + 1]`.
    An objective function of one's own leaves no trace in the file; the objective named there decides, as it
    does for the library.

    Raises:
        ForestError: not such a document, or a model of a kind that is not supported.
    """
    document = read_document(data)
    if isinstance(document, dict) and "tree_info" in document:
        raise ForestError(
            "model: a LightGBM dump, which writes infinite thresholds as 1e300 and does not say how it was "
            "boosted; save the text of Booster.model_to_string()"
        )
    version = _get(document, "version", list)
    if version[:1] != [3]:
        raise ForestError(f"version: {str(version)[:40]} is not 3; load and save the model with XGBoost 3")
    learner = _get(document, "learner", dict)
    booster = _get(learner, "gradient_booster", dict)
    kind = _get(booster, "name", str)
    if kind != "gbtree":
        raise ForestError(f"gradient_booster.name: {kind[:40]!r} is not supported; train with booster=gbtree")
    parameters = _get(learner, "learner_model_param", dict)
    for key in ("num_class", "num_target"):
        if _count(parameters, key, default="1") > 1:
            raise ForestError(
                f"{key}: {parameters[key]} outputs are not supported; train one model for each output"
            )
    objective = _get(_get(learner, "objective", dict), "name", str)
    if objective not in _LINKS:
        raise ForestError(f"objective: {objective[:60]!r} is not supported; use one of {', '.join(_LINKS)}")
    model = _get(booster, "model", dict)
    if _get(model, "cats", dict, {}).get("enc"):
        raise ForestError(f"cats: {_CATEGORICAL}")
    trees = _get(model, "trees", list)
    counted = _count(_get(model, "gbtree_model_param", dict), "num_trees")
    if counted != len(trees):
        raise ForestError(f"num_trees: {counted} for {len(trees)} trees")
    rounds = _get(model, "iteration_indptr", list, [])
    if rounds and (rounds[0] != 0 or rounds[-1] != counted or any(a >= b for a, b in pairwise(rounds))):
        raise ForestError(f"iteration_indptr: does not rise from 0 to {counted}")
    if any(group != 0 for group in _get(model, "tree_info", list)):
        raise ForestError(
            "tree_info: trees of several outputs are not supported; train one model for each output"
        )
    names = _names(learner, _count(parameters, "num_feature"))
    output = Output(_LINKS[objective], start=_base_margin(parameters, objective), single=True)
    return Forest.of([_tree(f"tree {n}", tree) for n, tree in enumerate(trees)], names, objective, output)


def _get(fields: object, key: str, kind: type[_Type], default: _Type | None = None) -> _Type:
    value = fields.get(key, default) if isinstance(fields, Mapping) else None
    if not isinstance(value, kind):
        raise ForestError(f"{key}: missing, or not of type {kind.__name__}")
    return value


def _count(fields: Mapping[str, object], key: str, default: str | None = None) -> int:
    """A number that the format keeps as a string."""
    text = _get(fields, key, str, default)
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ForestError(f"{key}: {text[:40]!r} is not a count")
    return int(text)


def _names(learner: Mapping[str, object], count: int) -> list[str]:
    if not 0 < count <= MAX_FEATURES:
        raise ForestError(f"num_feature: {count} is outside 1..{MAX_FEATURES}")
    names = _get(learner, "feature_names", list, []) or [f"f{n}" for n in range(count)]
    if len(names) != count or not all(isinstance(name, str) for name in names):
        raise ForestError(f"feature_names: not the {count} names of the features")
    if "c" in _get(learner, "feature_types", list, []):
        raise ForestError(f"feature_types: {_CATEGORICAL}")
    return names


@compiled
def _log(x: np.float32) -> float:
    """The platform's logf."""
    return math.log(x)


def _base_margin(parameters: Mapping[str, object], objective: str) -> float:
    text = _get(parameters, "base_score", str)
    one = np.float32(1)
    with np.errstate(all="ignore"):
        try:
            base = np.float32(text.removeprefix("[").removesuffix("]"))
        except ValueError:
            raise ForestError(f"base_score: {text[:40]!r} is not one number") from None
        link = _LINKS[objective]
        margin = -_log(one / base - one) if link == LOGISTIC else _log(base) if link == EXP else float(base)
    if not math.isfinite(margin):
        raise ForestError(f"base_score: {base} is outside the range of {objective}")
    return margin


def _tree(name: str, fields: object) -> Tree:
    parameters = _get(fields, "tree_param", dict)
    if _count(parameters, "size_leaf_vector", default="1") > 1:
        raise ForestError(
            f"{name}, size_leaf_vector: vector leaves are not supported; train one model per output"
        )
    size = _count(parameters, "num_nodes")
    left = _integers(fields, name, "left_children", size)
    if any(_integers(fields, name, "split_type", size)):
        raise ForestError(f"{name}, split_type: {_CATEGORICAL}")
    conditions = _floats(fields, name, "split_conditions", size)
    if not np.isfinite(conditions).all():
        raise ForestError(f"{name}, split_conditions: a threshold or leaf value is not finite")
    splits = [child != -1 for child in left]
    features = _integers(fields, name, "split_indices", size)
    missing_left = _integers(fields, name, "default_left", size)
    if not set(missing_left) <= {0, 1}:
        raise ForestError(f"{name}, default_left: a value is neither 0 nor 1")
    return Tree(
        left,
        _integers(fields, name, "right_children", size),
        np.where(splits, _float64_thresholds(conditions), conditions).tolist(),
        [
            Column(feature, -1.0, -math.inf if to_left else math.inf) if split else None
            for split, feature, to_left in zip(splits, features, missing_left, strict=True)
        ],
        _count(parameters, "num_deleted", default="0"),
    )


def _float64_thresholds(conditions: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """The largest float64 that float32 rounds below each finite condition."""
    with np.errstate(over="ignore"):
        below = np.nextafter(conditions, np.float32(-np.inf)).astype(np.float64)
        below[np.isneginf(below)] = -(2.0**128)  # what rounding takes the next float32 to be
        middle = (below + conditions) / 2
        rounds_below = middle.astype(np.float32) < conditions
    return np.where(rounds_below, middle, np.nextafter(middle, -np.inf))


def _array(fields: object, name: str, key: str, size: int) -> Sequence[object]:
    values = _get(fields, key, list)
    if len(values) != size:
        raise ForestError(f"{name}, {key}: {len(values)} values for {size} nodes")
    return values


def _integers(fields: object, name: str, key: str, size: int) -> list[int]:
    values = _array(fields, name, key, size)
    if not all(isinstance(value, int) for value in values):
        raise ForestError(f"{name}, {key}: a value is not an integer")
    return cast("list[int]", values)


def _floats(fields: object, name: str, key: str, size: int) -> npt.NDArray[np.float32]:
    values = _array(fields, name, key, size)
    if not all(isinstance(value, int | float) for value in values):
        raise ForestError(f"{name}, {key}: a value is not a number")
    try:
        with np.errstate(over="ignore"):
            return np.array(values, np.float64).astype(np.float32)
    except OverflowError:
        raise ForestError(f"{name}, {key}: a value is beyond float32") from None
