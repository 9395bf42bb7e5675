"""Runs the bench: split, record, train, tune, measure, report."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from loadtest.files import written_whole
from loadtest.report import run_header
from models.termination.calibration import Family, Trace, density_families, marginal_family
from models.termination.gain import train
from models.termination.labels import nearest_distances
from services.core.hnsw.replay import Trace as Walks
from services.core.ivf.search import record
from services.runtime.errors import UserError

from . import hnsw, rivals, shift, timing
from .cells import OWN, Reading, covered, default_of, read_cell, resamples
from .indexes import Built, build, depth_for
from .rows import Row, table
from .summary import summary
from .vectors import load

WIDTH = 1.6
"""Lists that searches are recorded over, in units of the fixed budget of the highest target."""
_SHARES = (0.3, 0.35)  # of the queries to train and to tune; the rest tests
_LEAST_WIDTH = 16
_TIMED = 400  # test queries

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Options:
    """What to measure. batch: queries a timed call."""

    vectors: str
    index: str
    ks: Sequence[int]
    targets: Sequence[float]
    seeds: int
    batch: int


def main(options: Options, json_file: str | None) -> int:
    """Measures, prints a table a seed and the summary; the document is written whole after every seed."""
    rows: list[Row] = []
    for seed in range(1, options.seeds + 1):
        measured = measure_seed(options, seed)
        sys.stdout.write(table(measured) + "\n")
        sys.stdout.flush()
        rows += measured
        if json_file is not None:
            _write(options, seed, rows, Path(json_file))
    sys.stdout.write(summary(rows) + "\n")
    return 0


def _write(options: Options, seeds: int, rows: Sequence[Row], file: Path) -> None:
    header = run_header(asdict(options), seed=seeds)
    document = {"header": header, "rows": [asdict(row) for row in rows]}
    with written_whole(file) as stream:
        stream.write(json.dumps(document, indent=2, allow_nan=False) + "\n")


def measure_seed(options: Options, seed: int) -> list[Row]:
    """All rows of one split and index."""
    vectors, queries = load(options.vectors, seed)
    if max(options.ks) >= len(vectors) or len(queries) < 300:
        raise UserError(f"{options.vectors}: {len(vectors)} vectors and {len(queries)} queries are too few")
    _say(f"seed {seed}: {len(vectors)} vectors, {len(queries)} queries; building")
    built = hnsw.build(vectors) if options.index == hnsw.HNSW else build(options.index, vectors, seed)
    _say("exact neighbours")
    near = nearest_distances(queries, vectors, options.ks)
    first, second = (int(share * len(queries)) for share in (_SHARES[0], sum(_SHARES)))
    moved = shift.shifted(queries[second:], seed)
    beyond = nearest_distances(moved, vectors, options.ks)
    rows: list[Row] = []
    for row, k in enumerate(options.ks):
        ready = _ready(built, queries, near[row], (first, second), vectors, k, max(options.targets))
        learned = ready.traced(0, first)
        families = _families(built, learned, k, seed)
        del learned
        tune, test = ready.traced(first, second), ready.traced(second, len(queries))
        draws = resamples(len(test.found), seed)
        for target in options.targets:
            _say(f"k = {k}, target {target:g}")
            readings = read_cell(tune, test, k, target, families, ready.depth, draws)
            if readings:
                own = [family for name in OWN for family in families.get(name, ())]
                share = covered(tune, test, k, target, own) if k > 1 else None
                measured = _Measured(built, queries[second:], test, ready.depth, seed, moved, beyond[row])
                rows += _rows(options, measured, k, target, readings, share)
    return rows


@dataclass(frozen=True)
class _Ready:
    """Searches for one k, ready to be recorded: traced(low, high) those of a range of the queries."""

    depth: int
    traced: Callable[[int, int], Trace]


def _ready(
    built: Built | hnsw.Built,
    queries: Floats,
    near: Floats,
    bounds: tuple[int, int],
    vectors: Floats,
    k: int,
    target: float,
) -> _Ready:
    first, second = bounds
    if isinstance(built, hnsw.Built):
        nodes = hnsw.width(built, queries[first:second], near[first:second], k, target)
        _say(f"k = {k}: recording over {nodes} nodes")
        return _Ready(0, lambda low, high: hnsw.traced(built, queries[low:high], k, near[low:high], nodes))
    depth = depth_for(built, queries[:first], near[:first], vectors, k)
    width = _width(built, queries[first:second], near[first:second], k, depth, target)
    _say(f"k = {k}: {len(built.lists.sizes)} lists; recording over {width}, depth {depth}")
    return _Ready(
        depth, lambda low, high: record(built.lists, queries[low:high], k, depth, near[low:high], width)
    )


def _width(built: Built, queries: Floats, near: Floats, k: int, depth: int, target: float) -> int:
    """Lists to record over: WIDTH times the budget that reaches the highest target for some queries."""
    lists = len(built.lists.sizes)
    some = slice(0, min(500, len(queries)))
    found = record(built.lists, queries[some], k, depth, near[some], lists).found.mean(axis=0) / k
    reached = found >= min(target, float(found[-1]))
    return min(lists, max(_LEAST_WIDTH, int(np.ceil(WIDTH * (1 + int(reached.argmax()))))))


def _families(built: Built | hnsw.Built, trace: Trace, k: int, seed: int) -> dict[str, list[Family]]:
    if isinstance(trace, Walks):
        return hnsw.families(trace, k, seed)
    assert isinstance(built, Built)
    families: dict[str, list[Family]] = {
        "marginal": [marginal_family(train({k: trace}, seed), k)],
        "density": density_families(k),
    }
    for family in rivals.families(trace, k, seed, len(built.lists.sizes)):
        families.setdefault(family.name, []).append(family)
    return families


@dataclass(frozen=True)
class _Measured:
    """The searches of the test split: index, queries, what they went through, depth; queries of another kind,
    and what counts as found for them."""

    built: Built | hnsw.Built
    queries: Floats
    test: Trace
    depth: int
    seed: int
    moved: Floats
    beyond: Floats


def _rows(
    options: Options,
    on: _Measured,
    k: int,
    target: float,
    readings: Sequence[Reading],
    share: float | None,
) -> list[Row]:
    fixed, default = readings[0], default_of(readings)
    times = timing.measure(
        on.built,
        on.queries[:_TIMED],
        k,
        int(fixed.policy.parameters[0]),
        on.depth,
        {reading.name: reading.policy for reading in readings},
        min(options.batch, len(on.queries)),
        [reading.name for reading in readings if reading.name not in OWN],
        on.seed,
    )
    achieved = shift.recalls(
        on.built, on.moved, on.beyond, k, {reading.name: reading.policy for reading in readings}
    )
    stock = times[timing.FAISS]
    calls = resamples(len(stock.calls), on.seed)
    rows = []
    for reading in readings:
        taken, done = times[reading.name], reading.calibrated
        recalls = done.recalls[resamples(len(done.recalls), on.seed)].mean(axis=1)
        rows.append(
            Row(
                policy=reading.name,
                index=options.index,
                k=k,
                target=target,
                recall=float(done.recalls.mean()),
                recall_ci=_interval(recalls),
                coverage=float((done.recalls >= target - 1e-9).mean()),
                mean_us=taken.mean,
                p50_us=taken.p50,
                p99_us=taken.p99,
                distances=float(done.codes.mean()),
                p99_distances=float(np.percentile(done.codes, 99)),
                model_calls=float(done.asked.mean()),
                predict_us=timing.decision_us(on.test, k, reading.policy),
                queries=len(done.recalls),
                seed=on.seed,
                lists=float(done.lists.mean()),
                equal_distances=reading.codes,
                ratio=fixed.codes / reading.codes,
                ratio_ci=_interval(fixed.draws / reading.draws),
                over_default=reading.codes / default.codes,
                over_default_ci=_interval(reading.draws / default.draws),
                p99_ratio=float(
                    np.percentile(reading.equal.codes, 99) / np.percentile(fixed.equal.codes, 99)
                ),
                faiss_us=stock.mean,
                faiss_ratio=stock.mean / taken.mean,
                faiss_ci=_interval(stock.calls[calls].mean(axis=1) / taken.calls[calls].mean(axis=1)),
                default=reading is default,
                covered=share if reading is default else None,
                shifted=achieved[reading.name],
            )
        )
    return rows


def _interval(draws: npt.NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.percentile(draws, (2.5, 97.5))
    return float(low), float(high)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
