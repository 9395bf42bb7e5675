"""What a comparison says: means and intervals over seeds, and the papers' figures beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from loadtest.intervals import reach
from loadtest.simulator.comparison import COST_RATIOS, FIGURES, Row
from loadtest.simulator.published import PUBLISHED, SOURCES
from services.stack.tables import text_table

FIGURES_MEAN = (
    "profit c: c x saving - loss, % of revenue, where computing every list costs c of the revenue\n"
    "(WWW'18, section 5). loss: expected revenue of shown ads that the served list lacks (pessimistic);\n"
    "realised: by clicks. auction: change of revenue when the shown ads that the list has take the places\n"
    "of those it lacks.\n"
    "optimum: no policy can earn more by phrase keys and without merging; made for cost ratio c, as are\n"
    "clairvoyant, which knows the loss of every request but not of later ones, and the learned policies,\n"
    "which pay 1 % of their saving for inference. predicted: loss predicted / measured on served requests."
)


class Interval(NamedTuple):
    """A mean, and how far its 95 % interval reaches to both sides; None where one value says nothing."""

    mean: float
    reach: float | None


class Group(NamedTuple):
    """The rows of a policy on a stream; a bound has a group for each cost ratio."""

    stream: str
    policy: str
    cost_ratio: float | None

    @property
    def name(self) -> str:
        """How tables call it."""
        return self.policy if self.cost_ratio is None else f"{self.policy}, c={self.cost_ratio:g}"


Summary = dict[Group, dict[str, Interval]]
Table = tuple[list[str], list[list[str]]]
"""Names of columns, and lines of cells."""


def summarise(rows: Sequence[Row]) -> Summary:
    """Mean and interval of every figure over the seeds of each group.

    Student's t over logs, each of which counts with the mean of its draws; over draws where there is one log.
    """
    groups: dict[Group, dict[int, list[Row]]] = {}
    for row in rows:
        group = groups.setdefault(Group(row["stream"], row["policy"], row["cost_ratio"]), {})
        group.setdefault(row["seed"], []).append(row)
    return {
        group: {
            figure: interval([[row[figure] for row in draws] for draws in logs.values()])
            for figure in (*FIGURES, "prediction", "refreshes", "requests_per_s", "peak_bytes")
            if not any(row[figure] is None for draws in logs.values() for row in draws)
        }
        for group, logs in groups.items()
    }


def interval(values: Sequence[Sequence[float]]) -> Interval:
    """Mean and 95 % interval of the draws of each log."""
    if len(values) == 1:
        values = [[value] for value in values[0]]
    means = np.array([np.mean(draws) for draws in values])
    if len(means) == 1:
        return Interval(float(means[0]), None)
    return Interval(float(means.mean()), reach(means))


def policies_table(summary: Summary, stream: str) -> Table:
    """The policies of a stream, a line each."""
    columns = [
        stream, "hit %", "similar %", "saving %", "loss %", "realised %", "auction %",
        *(f"profit {ratio:g}" for ratio in COST_RATIOS), "predicted", "refreshes", "requests/s", "peak MiB",
    ]  # fmt: skip
    lines = []
    for group, figures in summary.items():
        if group.stream == stream:
            lines.append(
                [
                    group.name,
                    *(shown(figures[name]) for name in FIGURES),
                    f"{figures['prediction'].mean:.2f}" if "prediction" in figures else "-",
                    f"{figures['refreshes'].mean:,.0f}",
                    f"{figures['requests_per_s'].mean:,.0f}",
                    f"{figures['peak_bytes'].mean / 2**20:,.0f}",
                ]
            )
    return columns, lines


def papers_table(summary: Summary, stream: str) -> Table:
    """The papers' rows, each figure with ours of the same design on a stream behind it."""
    columns = ["paper, design", "ours", "hit %", "similar %", "saving %", "loss %"]
    columns += [f"profit {ratio:g}" for ratio in COST_RATIOS]
    lines = []
    for row in PUBLISHED:
        ours = summary.get(Group(stream, row.policy, None), summary.get(Group(stream, row.policy, 0.2)))
        pairs: list[tuple[float | None, str]] = [
            (row.hit, "hit"),
            (row.similarity, "similarity"),
            (row.cost_saving, "cost_saving"),
            (row.loss_pessimistic, "loss_pessimistic"),
            *((row.net_profit(ratio), f"net_profit_{ratio:g}") for ratio in COST_RATIOS),
        ]
        cells = [
            f"{'-' if theirs is None else f'{theirs:.1f}'} / {f'{ours[figure].mean:.1f}' if ours else '-'}"
            for theirs, figure in pairs
        ]
        lines.append([f"{row.paper}, {row.design}", row.policy if ours else "-", *cells])
    return columns, lines


def shown(value: Interval) -> str:
    """Mean, and the reach of its interval where the values differ."""
    if not value.reach:
        return f"{value.mean:.2f}"
    return f"{value.mean:.2f} ±{value.reach:.2f}"


def render(rows: Sequence[Row]) -> str:
    """The tables of all streams, for a terminal."""
    summary = summarise(rows)
    parts = []
    for stream in dict.fromkeys(group.stream for group in summary):
        parts.append(text_table(*policies_table(summary, stream)))
        parts.append("the papers' figure / ours")
        parts.append(text_table(*papers_table(summary, stream), left=(0, 1)))
    parts += [intervals_mean(rows), FIGURES_MEAN, *SOURCES]
    return "\n\n".join(parts)


def intervals_mean(rows: Sequence[Row]) -> str:
    """What the intervals of these rows are over."""
    logs = {(row["stream"], row["seed"]) for row in rows}
    streams, draws = {stream for stream, _ in logs}, len({row["clicks"] for row in rows})
    if len(logs) > len(streams):
        return f"±: 95 % interval over the logs of a stream ({len(logs)} logs, {draws} draws of clicks each)"
    if draws > 1:
        return (
            f"±: 95 % interval over {draws} draws of clicks on one log, of the figures that clicks enter; "
            "intervals over several logs are wider"
        )
    return "one log, one draw of clicks: no intervals"
