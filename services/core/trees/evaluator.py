"""Evaluation of boosted trees in about a microsecond, for models inside a search loop or on every cache hit.

Problem. From Python the libraries take 30 to 200 us for one row (`frugalads bench trees`); the decisions they
would take save less than that. A forest of 100 trees is 3,000 comparisons of which one row needs 600, each
waiting for the last: the cost is latency and mispredicted branches, not arithmetic.

Layout. All nodes lie in one array of 16-byte records, each tree in breadth-first order, siblings adjacent.
A step is

    node <- first(node) + (value(column(node)) > threshold(node))

without a branch: predication, and several of it interleaved, are from N. Asadi, J. Lin and A. de Vries,
"Runtime Optimizations for Tree-Based Machine Learning Models", TKDE 26 (2014). They interleave rows; a search
has one row, so here eight trees descend side by side, and eight chains of dependent loads are in flight.
Each takes as many steps as the deepest of the eight, and a leaf steps onto itself: its column is number 0,
which holds NaN, and NaN is greater than nothing. What a leaf has in place of a threshold is its value.
Batches do go tree by tree, eight rows side by side, in blocks of rows whose values stay in a near cache.

Missing values cost nothing per node. A row is first spread over *columns*: one for each pair of a feature
and a way to treat its missing values that some split uses. A column holds the feature's value, or, when the
value is missing, -inf (smaller than any threshold: left), +inf (right) or 0:

    library   missing type     a value is missing when    column holds
    LightGBM  None             NaN or |x| <= 1e-35f       0
              Zero             NaN or |x| <= 1e-35f       -inf or +inf, as default_left says
              NaN              NaN                        -inf or +inf
    XGBoost   -                NaN                        -inf or +inf

`band` is 1e-35f or -1, and "missing" is: not |x| > band. LightGBM splits off missing values alone by a
threshold of inf with right as default, where even +inf goes left: such a split compares with the largest
finite number, in a column whose values are capped there.

Arithmetic. LightGBM compares float64 x <= t and adds leaves in float64, in the order of trees. XGBoost
casts x to float32, compares x < t and adds to its base score in float32. As rounding is monotone,
float32(x) < t holds exactly for the x up to some float64, which the parser computes (`xgboost_model`);
comparing is the same here for both. A sum of two float32 values rounded to float64 and then float32 is
their float32 sum (53 >= 2 * 24 + 2 bits), so one accumulator serves both. Raw scores are therefore equal to
the libraries' bit for bit, in any batch. The links use exp, log and log1p of the platform's libm in the
library's own precision: equal bit for bit where it uses the same libm (glibc wheels), else within 2 units
in the last place of that precision, the error bound of those functions.

Complexity: O(trees * depth) per row, whatever the values. Nothing is approximate.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..compiled import compiled

LANES = 8
_BLOCK = 64

NODE = np.dtype([("threshold", "f8"), ("column", "u4"), ("first", "u4")])
"""A split: its children are first and first + 1. A leaf: threshold is its value, column 0, first itself."""
TREE = np.dtype([("root", "u4"), ("depth", "u4"), ("steps", "u4")])
"""steps is the largest depth of the eight trees that descend together."""
COLUMN = np.dtype([("band", "f8"), ("missing", "f8"), ("cap", "f8"), ("feature", "u8")])
HEAD = np.dtype([("start", "f8"), ("divisor", "f8"), ("scale", "f8"), ("link", "u4"), ("single", "u4")])
"""One record: start of the sum, what predictions divide it by, slope of the logistic, link, float32 sums."""

Records: TypeAlias = npt.NDArray[Any]
FloatArray: TypeAlias = npt.NDArray[np.float64]
ForestArrays: TypeAlias = tuple[Records, Records, Records, Records]
"""(nodes, trees, columns, head): what kernels take. The number of trees is a multiple of LANES."""

IDENTITY, LOGISTIC, EXP, SQUARE, SOFTPLUS, STEP = range(6)


@compiled
def _spread(columns: Records, row: FloatArray, values: FloatArray) -> None:
    for c in range(columns.size):
        column = columns[c]
        x = row[column.feature]
        values[c] = min(x, column.cap) if abs(x) > column.band else column.missing


@compiled
def _step(nodes: Records, values: FloatArray, n: np.uint32) -> np.uint32:
    node = nodes[n]
    first: np.uint32 = node.first
    return first + np.uint32(values[node.column] > node.threshold)


@compiled
def _add(total: float, value: float, single: bool) -> float:
    total += value
    return np.float64(np.float32(total)) if single else total


@compiled
def raw_row(forest: ForestArrays, row: FloatArray) -> float:
    """Sum of the leaves that `row` reaches, before the link and any averaging (`Forest.predict_raw`)."""
    nodes, trees, columns, head = forest
    single = head[0].single != 0
    values = np.empty(columns.size)
    _spread(columns, row, values)
    total: float = head[0].start
    for k in range(0, trees.size, LANES):
        a, b, c, d = trees[k].root, trees[k + 1].root, trees[k + 2].root, trees[k + 3].root
        e, f, g, h = trees[k + 4].root, trees[k + 5].root, trees[k + 6].root, trees[k + 7].root
        for _ in range(trees[k].steps):
            a, b = _step(nodes, values, a), _step(nodes, values, b)
            c, d = _step(nodes, values, c), _step(nodes, values, d)
            e, f = _step(nodes, values, e), _step(nodes, values, f)
            g, h = _step(nodes, values, g), _step(nodes, values, h)
        for n in (a, b, c, d, e, f, g, h):
            total = _add(total, nodes[n].threshold, single)
    return total


@compiled
def link(head: Records, raw: float) -> float:
    """The prediction of a raw score."""
    kind = head[0].link
    total: float = raw / head[0].divisor
    if kind == IDENTITY:
        return total
    if head[0].single != 0:  # XGBoost, in float32
        x = np.float32(total)
        if kind == LOGISTIC:
            return np.float64(np.float32(1) / (math.exp(min(-x, np.float32(88.7))) + np.float32(1)))
        if kind == EXP:
            return np.float64(math.exp(x))
        return 1.0 if x > 0 else 0.0
    if kind == LOGISTIC:
        return 1.0 / (1.0 + math.exp(-head[0].scale * total))
    if kind == EXP:
        return math.exp(total)
    if kind == SQUARE:
        return abs(total) * total
    return math.log1p(math.exp(total))


@compiled
def score_row(forest: ForestArrays, row: FloatArray) -> float:
    """The forest's prediction for one row, to call inside other kernels.

    forest: a Forest's `arrays`. row: float64, a value for each feature; NaN is missing. Nothing is checked.
    """
    return link(forest[3], raw_row(forest, row))


@compiled
def raw_rows(forest: ForestArrays, rows: FloatArray, out: FloatArray) -> None:
    """`raw_row` of every row of float64[n, features] into float64[n], tree by tree."""
    nodes, trees, columns, head = forest
    single = head[0].single != 0
    values = np.full((_BLOCK, columns.size), np.nan)
    total = np.empty(_BLOCK)
    for low in range(0, rows.shape[0], _BLOCK):
        count = min(_BLOCK, rows.shape[0] - low)
        for r in range(count):
            _spread(columns, rows[low + r], values[r])
        total[:] = head[0].start
        for k in range(trees.size):
            root, depth = trees[k].root, trees[k].depth
            for r in range(0, count, LANES):  # beyond `count`, on NaN or an earlier block's rows
                a, b, c, d, e, f, g, h = root, root, root, root, root, root, root, root
                for _ in range(depth):
                    a, b = _step(nodes, values[r], a), _step(nodes, values[r + 1], b)
                    c, d = _step(nodes, values[r + 2], c), _step(nodes, values[r + 3], d)
                    e, f = _step(nodes, values[r + 4], e), _step(nodes, values[r + 5], f)
                    g, h = _step(nodes, values[r + 6], g), _step(nodes, values[r + 7], h)
                lane = r
                for n in (a, b, c, d, e, f, g, h):
                    total[lane] = _add(total[lane], nodes[n].threshold, single)
                    lane += 1
        out[low : low + count] = total[:count]


@compiled
def score_rows(forest: ForestArrays, rows: FloatArray, out: FloatArray) -> None:
    """`score_row` of every row of float64[n, features] into float64[n]."""
    raw_rows(forest, rows, out)
    for i in range(out.size):
        out[i] = link(forest[3], out[i])
