"""From parsed trees to the evaluator's arrays, proving on the way that each is a tree.

Invariants of every forest that leaves this file: children lie inside their tree; a root reaches every node
of its tree exactly once, so a walk ends; features exist; leaf values are finite, and no threshold is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .evaluator import COLUMN, HEAD, IDENTITY, LANES, NODE, TREE, ForestArrays, Records
from .limits import MAX_NODES, MAX_TREES, ForestError

LEAF = -1


class Column(NamedTuple):
    """A feature, what stands for its missing values (not |x| > band), and the cap of the others."""

    feature: int
    band: float
    missing: float
    cap: float = math.inf


@dataclass(frozen=True, slots=True)
class Tree:
    """Nodes of one tree in any order, the root first; lists of equal length.

    left, right: node numbers, LEAF in a leaf. values: threshold of a split (x <= threshold goes left), value
    of a leaf. columns: what a split compares, None in a leaf. unused: nodes that the root must not reach.
    """

    left: Sequence[int]
    right: Sequence[int]
    values: Sequence[float]
    columns: Sequence[Column | None]
    unused: int = 0


class Output(NamedTuple):
    """What becomes of the leaves: see `evaluator.HEAD`."""

    link: int = IDENTITY
    start: float = 0.0
    divisor: float = 1.0
    scale: float = 1.0
    single: bool = False


def flatten(trees: Sequence[Tree], feature_count: int, output: Output) -> ForestArrays:
    """Read-only arrays for the evaluator.

    Raises:
        ForestError: an invariant of this file does not hold, or a limit is exceeded.
    """
    if not 0 < len(trees) <= MAX_TREES:
        raise ForestError(f"trees: {len(trees)} is outside 1..{MAX_TREES}")
    if sum(len(tree.left) for tree in trees) > MAX_NODES:
        raise ForestError(f"nodes: more than {MAX_NODES}")
    columns = {Column(0, math.inf, math.nan): 0}  # holds NaN for every row: leaves
    nodes: list[tuple[float, int, int]] = []
    heads: list[tuple[int, int]] = []
    for number, tree in enumerate(trees):
        heads.append((len(nodes), _place(tree, f"tree {number}", feature_count, columns, nodes)))
    while len(heads) % LANES:
        heads.append((len(nodes), 0))
        nodes.append((0.0, 0, len(nodes)))
    return (
        _frozen(np.array(nodes, NODE)),
        _frozen(
            np.array(
                [
                    (root, depth, max(depth for _, depth in heads[k - k % LANES : k - k % LANES + LANES]))
                    for k, (root, depth) in enumerate(heads)
                ],
                TREE,
            )
        ),
        _frozen(np.array([(band, missing, cap, feature) for feature, band, missing, cap in columns], COLUMN)),
        _frozen(np.array([(output.start, output.divisor, output.scale, output.link, output.single)], HEAD)),
    )


def _frozen(array: Records) -> Records:
    array.flags.writeable = False
    return array


def _place(
    tree: Tree, name: str, feature_count: int, columns: dict[Column, int], nodes: list[tuple[float, int, int]]
) -> int:
    """Append a tree's nodes in breadth-first order; its depth."""
    size = len(tree.left)
    if not size:
        raise ForestError(f"{name}: no nodes")
    base = len(nodes)
    order, depths = [0], [0]
    seen = bytearray(size)
    for n, depth in zip(order, depths, strict=False):  # both grow in the loop
        value, column = tree.values[n], tree.columns[n]
        if math.isnan(value) or (column is None and math.isinf(value)):
            raise ForestError(
                f"{name}, node {n}: {value} as a {'leaf value' if column is None else 'threshold'}"
            )
        if column is None:
            nodes.append((value, 0, len(nodes)))
            continue
        if not 0 <= column.feature < feature_count:
            raise ForestError(f"{name}, node {n}: feature {column.feature} is outside 0..{feature_count - 1}")
        nodes.append((value, columns.setdefault(column, len(columns)), base + len(order)))
        for child in (tree.left[n], tree.right[n]):
            if not 0 < child < size:
                raise ForestError(f"{name}, node {n}: child {child} is outside 1..{size - 1}")
            if seen[child]:
                raise ForestError(f"{name}, node {n}: child {child} has another parent")
            seen[child] = 1
            order.append(child)
            depths.append(depth + 1)
    if len(order) + tree.unused != size:
        raise ForestError(f"{name}: {size - len(order)} nodes are out of reach, {tree.unused} expected")
    return depths[-1]
