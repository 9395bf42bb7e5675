"""Runs the bench: split, record, train, tune, measure, report."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from loadtest.files import written_whole
from loadtest.report import run_header
from models.termination.calibration import Family, density_families, marginal_family
from models.termination.gain import GainModel, train
from models.termination.labels import nearest_distances
from services.core.ivf.search import record
from services.core.stopping.replay import Trace
from services.runtime.errors import UserError
from services.stack.tables import text_table

from . import rivals, timing
from .cells import Reading, read_cell, resamples
from .indexes import Built, build, depth_for
from .vectors import load

WIDTH = 1.6
"""Lists that searches are recorded over, in units of the fixed budget of the highest target."""
_SHARES = (0.3, 0.35)  # of the queries to train and to tune; the rest tests
_ROUNDS = 3
_LEAST_WIDTH = 16
_TIMED = 800  # test queries

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


@dataclass(frozen=True)
class Row:
    """A rule in a cell. recall to p99_distances: at the calibrated point. At equal recall: ratio, distances
    of `fixed` over the rule's; p99_ratio, 99th percentiles of the rule over `fixed`; the times; predict_us;
    faiss_ratio, time of stock FAISS over the rule's."""

    policy: str
    index: str
    k: int
    target: float
    recall: float
    recall_ci: tuple[float, float]
    coverage: float
    mean_us: float
    p50_us: float
    p99_us: float
    distances: float
    p99_distances: float
    model_calls: float
    predict_us: float
    queries: int
    seed: int
    lists: float
    equal_distances: float
    ratio: float
    ratio_ci: tuple[float, float]
    over_density_ci: tuple[float, float] | None
    p99_ratio: float
    faiss_ratio: float
    faiss_us: float


def main(options: Options, json_file: str | None) -> int:
    """Measures, prints a table a seed, and writes the document."""
    rows: list[Row] = []
    for seed in range(1, options.seeds + 1):
        measured = measure_seed(options, seed)
        sys.stdout.write(table(measured) + "\n")
        sys.stdout.flush()
        rows += measured
    if json_file is not None:
        header = run_header(asdict(options), seed=options.seeds)
        document = {"header": header, "rows": [asdict(row) for row in rows]}
        with written_whole(Path(json_file)) as stream:
            stream.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
    return 0


def measure_seed(options: Options, seed: int) -> list[Row]:
    """All rows of one split and index."""
    vectors, queries = load(options.vectors, seed)
    if max(options.ks) >= len(vectors) or len(queries) < 300:
        raise UserError(f"{options.vectors}: {len(vectors)} vectors and {len(queries)} queries are too few")
    _say(f"seed {seed}: {len(vectors)} vectors, {len(queries)} queries; building")
    built = build(options.index, vectors, seed)
    _say("exact neighbours")
    near = nearest_distances(queries, vectors, options.ks)
    first, second = (int(share * len(queries)) for share in (_SHARES[0], sum(_SHARES)))
    depths = [
        depth_for(built, queries[:first], near[row, :first], vectors, k) for row, k in enumerate(options.ks)
    ]
    widths = [
        _width(built, queries[first:second], near[row, first:second], k, depths[row], max(options.targets))
        for row, k in enumerate(options.ks)
    ]
    _say(f"{len(built.lists.sizes)} lists; recording over {widths}, depths {depths}")

    def traced(row: int, low: int, high: int) -> Trace:
        part = queries[low:high]
        return record(built.lists, part, options.ks[row], depths[row], near[row, low:high], widths[row])

    rows: list[Row] = []
    for row, k in enumerate(options.ks):
        learned = traced(row, 0, first)
        model = train({k: learned}, seed)
        families = _families(learned, k, model, seed, len(built.lists.sizes))
        del learned
        tune, test = traced(row, first, second), traced(row, second, len(queries))
        draws = resamples(len(test.seen), seed)
        for target in options.targets:
            _say(f"k = {k}, target {target:g}")
            readings = read_cell(tune, test, k, target, families, depths[row], draws)
            if readings:
                rows += _rows(options, built, queries[second:], test, k, target, depths[row], readings, seed)
    return rows


def _width(built: Built, queries: Floats, near: Floats, k: int, depth: int, target: float) -> int:
    """Lists to record over: WIDTH times the budget that reaches the highest target for some queries."""
    lists = len(built.lists.sizes)
    some = slice(0, min(500, len(queries)))
    found = record(built.lists, queries[some], k, depth, near[some], lists).found.mean(axis=0) / k
    reached = found >= min(target, float(found[-1]))
    return min(lists, max(_LEAST_WIDTH, int(np.ceil(WIDTH * (1 + int(reached.argmax()))))))


def _families(trace: Trace, k: int, model: GainModel, seed: int, lists: int) -> dict[str, list[Family]]:
    families: dict[str, list[Family]] = {
        "marginal": [marginal_family(model, k)],
        "density": density_families(k),
    }
    for family in rivals.families(trace, k, seed, lists):
        families.setdefault(family.name, []).append(family)
    return families


def _rows(
    options: Options,
    built: Built,
    queries: Floats,
    test: Trace,
    k: int,
    target: float,
    depth: int,
    readings: list[Reading],
    seed: int,
) -> list[Row]:
    fixed = readings[0]
    density = next((reading for reading in readings if reading.name == "density"), None)
    times = timing.measure(
        built,
        queries[:_TIMED],
        k,
        int(fixed.policy.parameters[0]),
        depth,
        {reading.name: reading.policy for reading in readings},
        min(options.batch, len(queries)),
        _ROUNDS,
        seed,
    )
    rows = []
    for reading in readings:
        ratio = fixed.draws / reading.draws
        over = None if density is None else density.draws / reading.draws
        taken, done = times[reading.name], reading.calibrated
        low, high = np.percentile(done.recalls[resamples(len(done.recalls), seed)].mean(axis=1), (2.5, 97.5))
        rows.append(
            Row(
                policy=reading.name,
                index=options.index,
                k=k,
                target=target,
                recall=float(done.recalls.mean()),
                recall_ci=(float(low), float(high)),
                coverage=float((done.recalls >= target - 1e-9).mean()),
                mean_us=taken.mean,
                p50_us=taken.p50,
                p99_us=taken.p99,
                distances=float(done.codes.mean()),
                p99_distances=float(np.percentile(done.codes, 99)),
                model_calls=float(done.asked.mean()),
                predict_us=timing.decision_us(test, reading.policy),
                queries=len(done.recalls),
                seed=seed,
                lists=float(done.lists.mean()),
                equal_distances=reading.codes,
                ratio=fixed.codes / reading.codes,
                ratio_ci=_interval(ratio),
                over_density_ci=None if over is None else _interval(over),
                p99_ratio=float(
                    np.percentile(reading.equal.codes, 99) / np.percentile(fixed.equal.codes, 99)
                ),
                faiss_us=times[timing.FAISS].mean,
                faiss_ratio=times[timing.FAISS].mean / taken.mean,
            )
        )
    return rows


def _interval(draws: npt.NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.percentile(draws, (2.5, 97.5))
    return float(low), float(high)


def table(rows: Sequence[Row]) -> str:
    """The rows for a terminal."""
    columns = (
        *("policy", "k", "target", "recall", "distances", "p99"),
        *("x fixed", "95 %", "p99 / fixed", "calls", "us", "model us", "x FAISS"),
    )
    cells = [
        (
            *(row.policy, str(row.k), f"{row.target:g}", f"{row.recall:.4f}"),
            *(f"{row.distances:.0f}", f"{row.p99_distances:.0f}"),
            *(f"{row.ratio:.2f}", f"{row.ratio_ci[0]:.2f}-{row.ratio_ci[1]:.2f}", f"{row.p99_ratio:.2f}"),
            *(f"{row.model_calls:.1f}", f"{row.mean_us:.1f}", f"{row.predict_us:.2f}"),
            f"{row.faiss_ratio:.2f}",
        )
        for row in rows
    ]
    return text_table(columns, cells)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
