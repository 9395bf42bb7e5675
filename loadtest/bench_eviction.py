"""What each eviction order costs on one request stream: computation to redo, misses, time and memory.

A cell is a cost model and a cache size; in it every order replays the same requests. Seeds differ in the
costs of the keys and, for `zipf`, in the requests.

What warms the caches is not measured: the first half of a trace, on which the constants of our order were
chosen, or load phase and a quarter of the reads of `zipf` (`loadtest/eviction/streams.py`). The other orders
are as their papers set them.

The first SLICE_REQUESTS measured requests of the first seed are judged once more, beside the exact optimum
for sizes of 1, which may choose what of the past it holds when they begin; the orders hold what they held.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadtest.eviction.bounds import clairvoyant, optimum
from loadtest.eviction.costs import COSTS, RANK_CORRELATION, SIZES, draw_costs, draw_sizes
from loadtest.eviction.report import SLICE, TEST, Cell, Row, compare, table
from loadtest.eviction.speed import REQUESTS, ROUNDS, Speed, speeds
from loadtest.eviction.streams import ZIPF, Stream, stream_of
from loadtest.files import written_whole
from loadtest.progress import progress
from loadtest.report import run_header
from services.core.eviction.orders import ORDERS
from services.core.eviction.replay import replay
from services.runtime.errors import UserError

SLICE_REQUESTS = 100_000
MAX_SEEDS = 1000
MAX_ENTRIES = 10_000_000
TRACE_ENTRIES = (10_000, 40_000)
ZIPF_ENTRIES = (277_300,)  # LRU hits .96


@dataclass(frozen=True)
class Options:
    """What to measure. trace: a file, or "zipf". entries: empty for those of the stream."""

    trace: str
    costs: Sequence[str]
    sizes: str
    correlation: str
    entries: Sequence[int]
    seeds: int


class Outcome(NamedTuple):
    """What one policy did. hit: one a request of the workload."""

    policy: str
    hit: NDArray[np.bool_]
    evictions: int | None


@dataclass(frozen=True)
class Workload:
    """A stream with one cost and one size a key. capacity: in the unit of sizes."""

    stream: Stream
    costs: NDArray[np.int64]
    sizes: NDArray[np.int64]
    capacity: int

    @classmethod
    def drawn(cls, stream: Stream, options: Options, cell: Cell, seed: int) -> Workload:
        """Costs and sizes from the seed; a capacity of `entries` keys of mean size."""
        random = np.random.default_rng((seed, 1))
        requests = np.bincount(stream.keys, minlength=stream.count)
        costs = draw_costs(cell.costs, requests, options.correlation, random)
        sizes = draw_sizes(options.sizes, stream.count, random)
        return cls(stream, costs, sizes, round(cell.entries * float(sizes.mean())))

    def missed(self, hit: NDArray[np.bool_], weights: NDArray[np.int64]) -> int:
        """Sum of the weights, one a key, of the measured requests that did not hit."""
        warm = self.stream.warm
        return int(weights[self.stream.keys[warm:]][~hit[warm:]].sum())


def main(options: Options, json_file: str | None) -> int:
    """Measures, prints a table a cell and, on request, writes one JSON document."""
    rows = measure(options)
    comparisons = compare(rows)
    for cell in dict.fromkeys(Cell(row.costs, row.entries) for row in rows):
        sys.stdout.write(table(cell, rows, comparisons) + "\n\n")
    sys.stdout.write(
        f"{options.trace}; {options.sizes} sizes; correlation of cost and popularity: {options.correlation}\n"
        f"cost: of the misses, geometric mean of {options.seeds} seeds; 95 % intervals by paired t\n"
    )
    if json_file is not None:
        header = run_header(asdict(options), 0)
        header["split"] = (
            "the first half of a trace warms the caches, of zipf load phase and a quarter of the reads"
        )
        header["comparisons"] = [asdict(comparison) for comparison in comparisons]
        document = {"header": header, "rows": [asdict(row) for row in rows]}
        with written_whole(Path(json_file)) as stream:
            stream.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
    return 0


def measure(options: Options) -> list[Row]:
    """All rows, by seed and cell.

    Raises UserError for a value out of bounds, a trace that cannot be read, or a cache that misses nothing.
    """
    _check(options)
    entries_of_stream = options.entries or (ZIPF_ENTRIES if options.trace == ZIPF else TRACE_ENTRIES)
    cells = [Cell(costs, entries) for costs in options.costs for entries in entries_of_stream]
    measured: dict[Cell, dict[str, Speed]] = {}
    rows: list[Row] = []
    with progress("replay", options.seeds * len(cells)) as show:
        for seed in range(options.seeds):
            stream = stream_of(options.trace, seed)
            for number, cell in enumerate(cells, 1):
                workload = Workload.drawn(stream, options, cell, seed)
                outcomes = _outcomes(workload)
                if outcomes[0].evictions == 0:
                    raise UserError(
                        f"entries: {cell.entries} hold all {stream.count} keys: nothing is evicted"
                    )
                if seed == 0:
                    measured[cell] = _speeds(workload)
                    rows += _rows(*_sliced(workload, outcomes), cell, seed, SLICE, {})
                rows += _rows(workload, outcomes, cell, seed, TEST, measured[cell])
                show(seed * len(cells) + number)
    return rows


def _check(options: Options) -> None:
    for name, value, known in (
        *(("costs", model, COSTS) for model in options.costs),
        ("sizes", options.sizes, SIZES),
        ("correlation", options.correlation, RANK_CORRELATION),
    ):
        if value not in known:
            raise UserError(f"{name}: {value!r} is none of {', '.join(known)}")
    if not 1 <= options.seeds <= MAX_SEEDS:
        raise UserError(f"seeds: {options.seeds} is outside 1..{MAX_SEEDS}")
    for entries in options.entries:
        if not 1 <= entries <= MAX_ENTRIES:
            raise UserError(f"entries: {entries} is outside 1..{MAX_ENTRIES}")


def _outcomes(workload: Workload) -> list[Outcome]:
    """LRU is the first."""
    keys, costs, sizes, capacity = workload.stream.keys, workload.costs, workload.sizes, workload.capacity
    outcomes = []
    for order in ORDERS:
        done = replay(order, keys, costs, sizes, capacity)
        outcomes.append(Outcome(order, done.hit, done.evictions))
    hit, evictions = clairvoyant(keys, costs, sizes, capacity)
    return [*outcomes, Outcome("clairvoyant", hit, evictions)]


def _speeds(workload: Workload) -> dict[str, Speed]:
    """Of the orders, filled with what only warms."""
    stream = workload.stream
    return speeds(
        stream.keys[: stream.warm + ROUNDS * REQUESTS], workload.costs, workload.sizes, workload.capacity
    )


def _sliced(workload: Workload, outcomes: Sequence[Outcome]) -> tuple[Workload, list[Outcome]]:
    """The slice as a workload of its own, what each policy hit there and, for sizes of 1, the optimum."""
    stream = workload.stream
    part = slice(stream.warm, stream.warm + SLICE_REQUESTS)
    keys = stream.keys[part]
    sliced = [Outcome(outcome.policy, outcome.hit[part], None) for outcome in outcomes]
    if workload.sizes.max() == 1 and len(np.unique(keys)) > workload.capacity:  # else it misses nothing
        seen = np.zeros(stream.count, np.bool_)
        seen[stream.keys[: stream.warm]] = True
        hit = optimum(keys, workload.costs, workload.capacity, seen)
        sliced.append(Outcome("optimum", hit, None))
    return replace(workload, stream=Stream(keys, stream.count, 0)), sliced


def _rows(
    workload: Workload,
    outcomes: Sequence[Outcome],
    cell: Cell,
    seed: int,
    part: str,
    measured: dict[str, Speed],
) -> list[Row]:
    """One row a policy."""
    ones = np.ones_like(workload.costs)
    cost = {made.policy: workload.missed(made.hit, workload.costs) for made in outcomes}
    misses = {made.policy: workload.missed(made.hit, ones) for made in outcomes}
    if cost["lru"] == 0 or (part == TEST and 0 in cost.values()):  # a bound may miss nothing on a slice
        raise UserError(f"entries: {cell.entries} leave nothing to be missed")
    none = np.zeros(len(workload.stream.keys), np.bool_)
    requests, requested_bytes = workload.missed(none, ones), workload.missed(none, workload.sizes)
    return [
        Row(
            policy=made.policy,
            costs=cell.costs,
            entries=cell.entries,
            seed=seed,
            part=part,
            cost_vs_lru=cost[made.policy] / cost["lru"],
            misses_vs_lru=misses[made.policy] / misses["lru"],
            object_miss=misses[made.policy] / requests,
            byte_miss=workload.missed(made.hit, workload.sizes) / requested_bytes,
            evictions=made.evictions,
            ns_per_op=measured[made.policy].ns_per_op if made.policy in measured else None,
            state_bytes_per_key=measured[made.policy].state_bytes_per_key
            if made.policy in measured
            else None,
        )
        for made in outcomes
    ]
