"""What a run of the load generator says.

Percentiles are computed from the raw samples, by nearest rank (the value that a share p of the samples does
not exceed), never averaged or interpolated. A failed call counts at the deadline or at its own latency,
whichever is longer, so that failing fast does not look fast.

Computation saved is the part of the list computation that reuse made needless: each reused answer (HIT)
counts as the mean computation measured in this run for its own query, or for all queries where its own was
not computed in this run; saved = that sum / (that sum + the computation spent on all other answers). A run
that computed nothing has nothing to value reuse by: not measured.
Computation is the time of embedding, retrieving and scoring, as the answers tell it.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import grpc
import numpy as np
from numpy.typing import NDArray

from frugalads.scoring.v1 import scoring_pb2
from loadtest.files import written_whole
from loadtest.runner import UNSENT, Samples
from services.runtime.errors import UserError
from services.stack.tables import text_table

LATE_MS = 10.0  # sent this much after its time, a request counts as late
TOLERATED_LATE_SHARE = 0.005
SAVED_MEANS = (
    "computation saved: reused answers at their query's mean measured time to embed, retrieve and score,\n"
    "as a share of that and the time spent on the other answers"
)
BYPASSED_MEANS = "BYPASSED: the cache did not answer in time; the list was computed"
FAILED_MEANS = "failed calls count at their deadline"
_OK = grpc.StatusCode.OK.value[0]
_CODES = {code.value[0]: code.name for code in grpc.StatusCode}
_PREFIX = "CACHE_STATE_"
_PERCENTILES = (50.0, 90.0, 99.0)
# A percentile p needs some samples beyond it: fewer than 10 say little about where it lies.
_BEYOND = 10


@dataclass(frozen=True)
class Row:
    """Latencies of one kind of outcome: a cache state, "failed", or "all sent"."""

    outcome: str
    count: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float
    p99_is_thin: bool


@dataclass(frozen=True)
class Summary:
    """The figures of a run. Shares are of the answered, revenue is per 1,000 requests due."""

    rows: list[Row]
    requests: int
    offered_per_s: float
    achieved_per_s: float
    late: int
    unsent: int
    errors: dict[str, int]
    example_error: str
    hit_share: float
    computation_saved: float | None
    revenue_per_1000_usd: float
    degraded: int
    degraded_reasons: dict[str, int]
    clicks: dict[str, int]


def summarize(samples: Samples) -> Summary:
    """Reduces the samples of a run; see the top of this file for what each figure means."""
    code = samples.code
    sent, answered = code != UNSENT, code == _OK
    failed = sent & ~answered
    latency_ms = samples.latency_ms()
    latency_ms[failed] = np.maximum(latency_ms[failed], samples.timeout_s * 1e3)
    rows = [
        _row(name.removeprefix(_PREFIX), latency_ms[answered & (samples.cache_state == state)])
        for name, state in scoring_pb2.CacheState.items()
    ]
    rows.append(_row("failed", latency_ms[failed]))
    rows = [row for row in rows if row.count] + [_row("all sent", latency_ms[sent])]
    count, hits = len(code), answered & (samples.cache_state == scoring_pb2.CACHE_STATE_HIT)
    ended_s = np.nanmax(samples.answered_s) if sent.any() else np.nan
    return Summary(
        rows=rows,
        requests=count,
        offered_per_s=count / float(samples.scheduled_s[-1]),
        achieved_per_s=float(answered.sum() / ended_s) if answered.any() else 0.0,
        late=int((samples.sent_s[sent] - samples.scheduled_s[sent] > LATE_MS / 1e3).sum()),
        unsent=int((~sent).sum()),
        errors={_CODES[int(c)]: int((code == c).sum()) for c in np.unique(code[failed])},
        example_error=samples.example_error,
        hit_share=float(hits.sum() / answered.sum()) if answered.any() else 0.0,
        computation_saved=computation_saved(samples, hits, answered),
        revenue_per_1000_usd=float(samples.revenue_usd.sum() / count * 1000),
        degraded=int(samples.degraded.sum()),
        degraded_reasons=dict(samples.degraded_reasons),
        clicks=samples.clicks,
    )


def computation_saved(samples: Samples, hits: NDArray[np.bool_], answered: NDArray[np.bool_]) -> float | None:
    """The share of computation saved, 0..1, as defined at the top of this file; None: not measured."""
    computed = answered & ~hits & (samples.compute_us > 0)
    spent_us = float(samples.compute_us[computed].sum())
    if not computed.any():
        return None
    size = int(samples.query.max()) + 1
    times = np.bincount(samples.query[computed], minlength=size)
    total_us = np.bincount(samples.query[computed], samples.compute_us[computed], minlength=size)
    mean_us = np.where(times > 0, total_us / np.maximum(times, 1), spent_us / computed.sum())
    reused_us = float(mean_us[samples.query[hits]].sum())
    return reused_us / (reused_us + spent_us)


def render(summary: Summary) -> str:
    """The one table of a run, and the figures that belong to it, for a terminal."""
    table = text_table(
        ("from scheduled send, ms", "count", "p50", "p90", "p99", "max"),
        [
            (
                row.outcome,
                str(row.count),
                *(f"{value:.1f}" for value in (row.p50_ms, row.p90_ms)),
                f"{row.p99_ms:.1f}{'*' if row.p99_is_thin else ''}",
                f"{row.max_ms:.1f}",
            )
            for row in summary.rows
        ],
    )
    lines = [table, ""]
    if any(row.p99_is_thin for row in summary.rows):
        lines += [f"* p99 of fewer than {_least_count(99.0)} samples: little more than their largest", ""]
    saved, reasons = summary.computation_saved, _counts(summary.degraded_reasons)
    figures = [
        (
            "rate",
            f"{summary.offered_per_s:.1f} a second offered (Poisson), {summary.achieved_per_s:.1f} answered",
        ),
        (
            "requests",
            f"{summary.requests}, late {summary.late} (over {LATE_MS:g} ms), unsent {summary.unsent}",
        ),
        ("errors", _counts(summary.errors) or "none"),
        ("degraded", f"{summary.degraded}{f' ({reasons})' if reasons else ''}"),
        ("hit share", f"{summary.hit_share:.1%}"),
        ("computation saved", "not measured" if saved is None else f"{saved:.1%}"),
        ("expected revenue", f"${summary.revenue_per_1000_usd:.2f} per 1,000 queries"),
    ]
    if summary.clicks:
        figures.append(("clicks", _counts(summary.clicks)))
    width = max(len(name) for name, _ in figures)
    lines += [f"{name.ljust(width)}  {value}" for name, value in figures]
    lines += ["", SAVED_MEANS, *_footnotes(summary)]
    return "\n".join(lines)


def _footnotes(summary: Summary) -> list[str]:
    """What a reader of this table, and not of every table, has to know."""
    notes = []
    if any(row.outcome == "BYPASSED" for row in summary.rows):
        notes.append(BYPASSED_MEANS)
    if summary.errors:
        notes.append(f"{FAILED_MEANS}; one of them: {summary.example_error}")
    if summary.late > TOLERATED_LATE_SHARE * (summary.requests - summary.unsent):
        notes.append(f"this machine was too busy for this rate: {summary.late} requests were sent late")
    if summary.unsent:
        notes.append("unsent requests have no latency: the percentiles above are too good")
    return notes


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def document(summary: Summary, header: Mapping[str, object]) -> dict[str, object]:
    """The report as one JSON document: `header`, with the figures of the whole run, and `rows`."""
    figures = {key: value for key, value in vars(summary).items() if key != "rows"}
    return {"header": {**header, "figures": figures}, "rows": [vars(row) for row in summary.rows]}


def write(file: Path, summary: Summary, samples: Samples, header: Mapping[str, object]) -> Path:
    """Writes the JSON document to `file` and the raw samples beside it as .npz, whose path it returns.

    Raises UserError when they cannot be written.
    """
    with written_whole(file) as stream:
        stream.write(json.dumps(document(summary, header), indent=2, allow_nan=False) + "\n")
    raw = file.with_suffix(".npz")
    arrays = {name: value for name, value in vars(samples).items() if isinstance(value, np.ndarray)}
    arrays["timeout_s"] = np.array(samples.timeout_s)
    try:
        np.savez_compressed(raw, allow_pickle=False, **arrays)
    except OSError as error:
        raise UserError(f"cannot write {raw}: {error.strerror or error}") from error
    return raw


def run_header(options: Mapping[str, object], seed: int) -> dict[str, object]:
    """Commit, seed, hardware, versions and options of a run; the commit is empty outside a checkout."""
    return {
        "commit": _commit(),
        "seed": seed,
        "hardware": {
            "machine": platform.machine(),
            "cpu": _cpu_name(),
            "cpus": os.cpu_count(),
            "system": f"{platform.system()} {platform.release()}",
        },
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("frugalads-server", "grpcio", "numpy")},
        },
        "options": dict(options),
    }


def _row(outcome: str, latency_ms: NDArray[np.float64]) -> Row:
    count = len(latency_ms)
    if count == 0:
        return Row(outcome, 0, 0.0, 0.0, 0.0, 0.0, True)
    p50, p90, p99 = np.percentile(latency_ms, _PERCENTILES, method="inverted_cdf").tolist()
    return Row(outcome, count, p50, p90, p99, float(latency_ms.max()), count < _least_count(99.0))


def _least_count(percentile: float) -> int:
    return round(_BEYOND / (1 - percentile / 100))


def _commit() -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
            capture_output=True, text=True, timeout=5, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()
