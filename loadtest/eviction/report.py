"""Rows of the eviction bench, and orders compared seed by seed.

The ratio of two policies' costs is the geometric mean over seeds, its 95 % interval Student's t of the log
ratios: seeds are paired, since both replay the same requests with the same costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from loadtest.intervals import reach
from services.stack.tables import text_table

TEST, SLICE = "test", "slice"
YARDSTICKS = ("lru", "gdsf")


class Cell(NamedTuple):
    """A cost model and a cache size."""

    costs: str
    entries: int


@dataclass(frozen=True)
class Row:
    """One policy on one seed of a cell.

    part: "test", or "slice" for its first requests. cost_vs_lru, misses_vs_lru: relative to LRU in this part.
    object_miss, byte_miss: shares of this part's requests and bytes. evictions: of the whole stream.
    ns_per_op, state_bytes_per_key: of the cell's first seed, with byte keys; the state without them.
    None: not measured for this part, or a bound, which is no order.
    """

    policy: str
    costs: str
    entries: int
    seed: int
    part: str
    cost_vs_lru: float
    misses_vs_lru: float
    object_miss: float
    byte_miss: float
    evictions: int | None
    ns_per_op: float | None
    state_bytes_per_key: float | None


@dataclass(frozen=True)
class Comparison:
    """Cost of a policy relative to another's over all seeds; the interval is None where there is one seed."""

    policy: str
    against: str
    costs: str
    entries: int
    ratio: float
    low: float | None
    high: float | None


def compare(rows: Sequence[Row]) -> list[Comparison]:
    """Every policy against each yardstick, in each cell, on the test part."""
    costs: dict[Cell, dict[str, list[float]]] = {}
    for row in rows:
        if row.part == TEST:
            policies = costs.setdefault(Cell(row.costs, row.entries), {})
            policies.setdefault(row.policy, []).append(row.cost_vs_lru)
    return [
        Comparison(
            policy, against, cell.costs, cell.entries, *ratio_interval(policies[policy], policies[against])
        )
        for cell, policies in costs.items()
        for policy in policies
        for against in YARDSTICKS
    ]


def ratio_interval(
    ours: Sequence[float], theirs: Sequence[float]
) -> tuple[float, float | None, float | None]:
    """Geometric mean of paired ratios and its 95 % interval, None for one pair. All values are above 0."""
    logs = np.log(ours) - np.log(theirs)
    mean = float(logs.mean())
    if len(logs) == 1:
        return math.exp(mean), None, None
    half = reach(logs)
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def table(cell: Cell, rows: Sequence[Row], comparisons: Sequence[Comparison]) -> str:
    """One line a policy: ratios over the seeds, means of everything else."""
    rows = [row for row in rows if (row.costs, row.entries) == cell]
    ratios = {
        (found.policy, found.against): found for found in comparisons if (found.costs, found.entries) == cell
    }
    lines = []
    for policy in dict.fromkeys(row.policy for row in rows):
        tests = [row for row in rows if row.policy == policy and row.part == TEST]
        slices = [row.cost_vs_lru for row in rows if row.policy == policy and row.part == SLICE]
        against = [ratios.get((policy, yardstick)) for yardstick in YARDSTICKS]
        lines.append([policy, *_ratios(against), *_means(tests), _mean(slices, ".3f")])
    columns = (
        f"{cell.costs}, {cell.entries:,} entries", "cost/LRU", "95 %", "cost/GDSF", "95 %", "misses/LRU",
        "missed", "bytes", "ns/op", "B/key", "slice cost/LRU",
    )  # fmt: skip
    return text_table(columns, lines)


def _ratios(against: Sequence[Comparison | None]) -> list[str]:
    cells = []
    for found in against:
        cells.append("-" if found is None else f"{found.ratio:.3f}")
        low, high = (None, None) if found is None else (found.low, found.high)
        cells.append("-" if low is None or high is None else f"{low:.3f}-{high:.3f}")
    return cells


def _means(rows: Sequence[Row]) -> list[str]:
    return [
        _mean([row.misses_vs_lru for row in rows], ".3f"),
        _mean([row.object_miss for row in rows], ".3f"),
        _mean([row.byte_miss for row in rows], ".3f"),
        _mean([row.ns_per_op for row in rows], ".0f"),
        _mean([row.state_bytes_per_key for row in rows], ".0f"),
    ]


def _mean(values: Sequence[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    return format(sum(known) / len(known), form) if known else "-"
