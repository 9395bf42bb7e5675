"""LightGBM's text model, read by us: the library aborts the process on many an altered file.

Format: `src/boosting/gbdt_model_text.cpp` and `src/io/tree.cpp` of LightGBM 4 (version v4). Lines
`key=value`: a header, a block per tree that `Tree=<number>` opens, `end of trees`, then parameters. In a
tree of k leaves the arrays of splits have k - 1 values, those of leaves k; a child c >= 0 is split c, a
child c < 0 is leaf ~c. decision_type of a split: bit 0 categorical, bit 1 missing values go left, bits 2-3
missing type (none, zero, NaN).

Before it compares, `predict` sets every |x| <= 1e-35f of a row to 0 (`Predictor`,
`application/predictor.hpp`). Columns do that where missing types None and Zero ask for it anyway. For NaN
the threshold is moved instead: one within +-1e-35f, of which training writes only the ends, to that end of
the band which is on its side of 0.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from .evaluator import EXP, IDENTITY, LOGISTIC, SOFTPLUS, SQUARE
from .forest import Forest
from .layout import LEAF, Column, Output, Tree
from .limits import MAX_BYTES, MAX_FEATURES, MAX_LINES, MAX_NODES, ForestError

ZERO_BAND = float(np.float32(1e-35))
"""LightGBM's kZeroThreshold: a float32 literal."""

_LINKS = {
    "regression": IDENTITY,
    "regression_l1": IDENTITY,
    "huber": IDENTITY,
    "fair": IDENTITY,
    "quantile": IDENTITY,
    "mape": IDENTITY,
    "lambdarank": IDENTITY,  # predict returns raw scores of rankers, too
    "rank_xendcg": IDENTITY,
    "binary": LOGISTIC,
    "cross_entropy": LOGISTIC,
    "cross_entropy_lambda": SOFTPLUS,
    "poisson": EXP,
    "gamma": EXP,
    "tweedie": EXP,
}
_CATEGORICAL = "categorical splits are not supported; encode categories as numbers before training"
_Number = TypeVar("_Number", int, float)


def parse_lightgbm(data: bytes) -> Forest:
    """The forest of a model text (`Booster.model_to_string`, `save_model`): all iterations in it.

    Raises:
        ForestError: not such a text, or a model of a kind that is not supported.
    """
    if len(data) > MAX_BYTES:
        raise ForestError(f"model: {len(data)} bytes, at most {MAX_BYTES}")
    if data.count(b"\n") > MAX_LINES:
        raise ForestError(f"model: more than {MAX_LINES} lines")
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        raise ForestError(f"model: not UTF-8 at byte {error.start}") from None
    try:
        end = lines.index("end of trees")
    except ValueError:
        raise ForestError(
            "model: the line 'end of trees' is missing; the file is cut short, or its lines end with \\r"
        ) from None
    starts = [n for n in range(end) if lines[n].startswith("Tree=")]
    if lines[0] != "tree" or not starts:
        raise ForestError("model: a LightGBM text begins with 'tree' and has a line 'Tree=0'")
    if "[boosting: dart]" in lines[end:]:
        raise ForestError("boosting: dart is not supported; train with boosting=gbdt")
    header = _fields("header", lines[1 : starts[0]])
    names = _header_names(header)
    blocks = [lines[low:high] for low, high in zip(starts, [*starts[1:], end], strict=True)]
    trees = [_tree(number, block) for number, block in enumerate(blocks)]
    sizes = _numbers(header, "header", "tree_sizes", int, len(trees))
    divisor = float(len(trees)) if "average_output" in header else 1.0
    forest = Forest.of(trees, names, header["objective"], _output(header["objective"], divisor))
    for number, (size, block) in enumerate(zip(sizes, blocks, strict=True)):
        held = sum(len(line.encode()) + 1 for line in block)
        if size != held:  # the library cuts the text by them
            raise ForestError(f"tree {number}, tree_sizes: {size}, but it has {held} bytes")
    return forest


def _fields(name: str, lines: list[str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition("=")
        if key in fields and key:
            raise ForestError(f"{name}: {key[:40]!r} appears twice")
        fields[key] = value
    return fields


def _header_names(header: dict[str, str]) -> list[str]:
    if header.get("version") != "v4":
        raise ForestError(
            f"version: {header.get('version')!r} is not 'v4'; load and save the model with LightGBM 4"
        )
    for key in ("num_class", "num_tree_per_iteration"):
        if header.get(key) != "1":
            raise ForestError(
                f"{key}: {header.get(key)!r} is not 1; multi-class models are not supported, "
                "train one binary model per class"
            )
    if "objective" not in header:
        raise ForestError(
            "objective: none, as after training with a function of one's own; use a built-in objective"
        )
    (last,) = _numbers(header, "header", "max_feature_idx", int, 1)
    if not 0 <= last < MAX_FEATURES:
        raise ForestError(f"max_feature_idx: {last} is outside 0..{MAX_FEATURES - 1}")
    return _words(header, "header", "feature_names", last + 1)


def _output(objective: str, divisor: float) -> Output:
    kind, *options = objective.split(" ")
    if kind == "regression" and options == ["sqrt"]:
        return Output(SQUARE, divisor=divisor)
    scale = 1.0
    if kind == "binary" and len(options) == 1 and options[0].startswith("sigmoid:"):
        (scale,) = _numbers(
            {"sigmoid": options[0].removeprefix("sigmoid:")}, "objective", "sigmoid", float, 1
        )
        options = []
    if kind not in _LINKS or options or not 0.0 < scale < math.inf:
        raise ForestError(f"objective: {objective[:60]!r} is not supported; use one of {', '.join(_LINKS)}")
    return Output(_LINKS[kind], divisor=divisor, scale=scale)


def _tree(number: int, lines: list[str]) -> Tree:
    name = f"tree {number}"
    fields = _fields(name, lines)
    if fields["Tree"] != str(number):
        raise ForestError(f"{name}: is called {fields['Tree'][:20]!r}")
    (leaves,) = _numbers(fields, name, "num_leaves", int, 1)
    if not 1 <= leaves <= MAX_NODES:
        raise ForestError(f"{name}, num_leaves: {leaves} is outside 1..{MAX_NODES}")
    if fields.get("num_cat") != "0":
        raise ForestError(f"{name}, num_cat: {_CATEGORICAL}")
    if fields.get("is_linear", "0") != "0":
        raise ForestError(f"{name}, is_linear: linear trees are not supported; train with linear_tree=false")
    splits = leaves - 1
    values = _numbers(fields, name, "leaf_value", float, leaves)
    if not splits:
        return Tree([LEAF], [LEAF], values, [None])
    left = _numbers(fields, name, "left_child", int, splits)
    right = _numbers(fields, name, "right_child", int, splits)
    kinds = _numbers(fields, name, "decision_type", int, splits)
    thresholds = _numbers(fields, name, "threshold", float, splits)
    features = _numbers(fields, name, "split_feature", int, splits)
    compared = [_split(name, *split) for split in zip(features, kinds, thresholds, strict=True)]
    ends = [LEAF] * leaves
    return Tree(
        [*_node_numbers(left, splits), *ends],
        [*_node_numbers(right, splits), *ends],
        [*(threshold for _, threshold in compared), *values],
        [*(column for column, _ in compared), *[None] * leaves],
    )


def _node_numbers(children: list[int], splits: int) -> Iterator[int]:
    """Splits first, then leaves."""
    return (child if child >= 0 else splits + ~child for child in children)


def _split(name: str, feature: int, decision_type: int, threshold: float) -> tuple[Column, float]:
    if decision_type & 1:
        raise ForestError(f"{name}, decision_type: {_CATEGORICAL}")
    if decision_type & ~2 == 0:
        return Column(feature, ZERO_BAND, 0.0), threshold
    missing, cap = -math.inf if decision_type & 2 else math.inf, math.inf
    if threshold == math.inf:  # missing values against all others
        threshold = cap = sys.float_info.max
    if decision_type & ~2 == 4:
        return Column(feature, ZERO_BAND, missing, cap), threshold
    if decision_type & ~2 == 8:
        return Column(feature, -1.0, missing, cap), _outside_band(threshold)
    raise ForestError(f"{name}, decision_type: {decision_type} is not known")


def _outside_band(threshold: float) -> float:
    if 0.0 <= threshold < ZERO_BAND:
        return ZERO_BAND
    return math.nextafter(-ZERO_BAND, -math.inf) if -ZERO_BAND <= threshold < 0.0 else threshold


def _words(fields: dict[str, str], name: str, key: str, count: int) -> list[str]:
    if key not in fields:
        raise ForestError(f"{name}: {key} is missing")
    text = fields[key]
    found = text.count(" ") + 1 if text else 0  # before they are made
    if found != count:
        raise ForestError(f"{name}, {key}: {found} values instead of {count}")
    return text.split(" ")


def _numbers(
    fields: dict[str, str], name: str, key: str, kind: Callable[[str], _Number], count: int
) -> list[_Number]:
    words = _words(fields, name, key, count)
    try:
        if fields[key].isascii() and "_" not in fields[key]:
            return [kind(word) for word in words]
    except ValueError:
        pass
    raise ForestError(f"{name}, {key}: {fields[key][:40]!r} is not all numbers")
