"""Import of a user's request log into a bundle that the simulator and training read.

One pass, in memory that grows with the ads and phrases of the log, not with its requests. README.md of this
folder is the schema. A fault spoils the import, but the file is read to its end: all bad rows are counted,
and the first faults shown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtest.request_log.intake import NAMES, Intake
from loadtest.request_log.sources import chunks
from loadtest.request_log.storage import LogWriter
from services.runtime.bundles import Meta

Progress = Callable[[float], None]


@dataclass(frozen=True)
class ImportSummary:
    """What an import did; the bundle's manifest holds the same numbers."""

    requests: int
    phrases: int
    ads: int
    days: int
    listed: int
    clicks: int
    modelled_costs: int
    unknown_throttle_levels: int
    modelled_shown_probabilities: int
    ignored_columns: tuple[str, ...]


def import_log(path: Path, out: Path, progress: Progress | None = None) -> ImportSummary:
    """Imports a .jsonl, .csv (both also .gz) or .parquet file as the log bundle `out`.

    `progress` is called with the share of the file that is read, 0..1. Raises UserError, with the number of
    bad rows and the first faults by row and field; `out` is then as it was.
    """
    intake = Intake(path)
    none_before: list[int] = []
    meta: Meta = {}
    with LogWriter(
        out,
        ad_ids=intake.ad_ids,
        phrases=intake.phrases,
        prior_requests=none_before,
        prior_clicks=none_before,
        prior_revenue_usd=none_before,
        meta=meta,
    ) as writer:
        for chunk in chunks(path, NAMES):
            part = intake.take(chunk)
            if part is not None:
                writer.append(part)
            if progress is not None:
                progress(chunk.share)
        none_before += [0] * len(intake.phrases)
        intake.check()
        summary = ImportSummary(
            **intake.counts,
            phrases=len(intake.phrases),
            ads=len(intake.ad_ids),
            days=intake.days,
            ignored_columns=tuple(intake.ignored),
        )
        meta.update(asdict(summary), ignored_columns=list(summary.ignored_columns))
    return summary


def describe(summary: ImportSummary) -> str:
    """The summary of an import, a line for each thing its user should know."""
    lines = [
        f"{counted(summary.requests, 'request')} of {counted(summary.phrases, 'phrase')} "
        f"over {counted(summary.days, 'day')}; {counted(summary.ads, 'ad')}, "
        f"{summary.listed / summary.requests:.1f} a list; {counted(summary.clicks, 'click')}"
    ]
    for count, said in (
        (summary.modelled_costs, "cost is the number of listed ads in {}, which {} none"),
        (summary.unknown_throttle_levels, "throttle_level is unknown in {}"),
        (
            summary.modelled_shown_probabilities,
            "shown_probability is click_probability in {}, which {} none: expected losses rest on it",
        ),
    ):
        if count:
            lines.append(said.format(counted(count, "request"), "gives" if count == 1 else "give"))
    if summary.ignored_columns:
        lines.append(f"ignored columns: {', '.join(summary.ignored_columns)}")
    return "\n".join(lines)


def counted(count: int, noun: str) -> str:
    """A number of things: "1 ad", "2,000 ads"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
