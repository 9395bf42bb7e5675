"""A comparison as one HTML page: plots and tables, nothing loaded from elsewhere."""

from __future__ import annotations

import html
import io
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from loadtest.simulator.comparison import COST_RATIOS, Row
from loadtest.simulator.published import PUBLISHED, SOURCES
from loadtest.simulator.report import (
    FIGURES_MEAN,
    Group,
    Summary,
    Table,
    intervals_mean,
    papers_table,
    policies_table,
    summarise,
)

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; }
body { margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
table { border-collapse: collapse; font-size: 13px; display: block; overflow-x: auto; }
th, td { padding: .2rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
svg { max-width: 100%; height: auto; }
pre { font-size: 12px; white-space: pre-wrap; }
"""
_COLOURS = matplotlib.colormaps["tab20"].colors  # type: ignore[attr-defined]
_MARKERS = "osD^v"


def page(rows: Sequence[Row], header: Mapping[str, object]) -> str:
    """The page of the rows of all streams; `header` is that of the JSON document."""
    summary = summarise(rows)
    parts = ["<h1>Refresh policies of the ads cache</h1>", f"<p>{_text(intervals_mean(rows))}</p>"]
    for stream in dict.fromkeys(group.stream for group in summary):
        parts += [
            f"<h2>Stream {_text(stream)}</h2>",
            "<h3>Net profit by cost ratio</h3>",
            _svg(_profit_plot(summary, stream)),
            "<h3>Cost saving against revenue loss</h3>",
            _svg(_loss_plot(summary, stream)),
            "<h3>Policies</h3>",
            _table(policies_table(summary, stream)),
            f"<p>{_text(FIGURES_MEAN)}</p>",
            "<h3>The papers' figures / ours</h3>",
            _table(papers_table(summary, stream)),
        ]
    parts += [f"<p>{_text(source)}</p>" for source in SOURCES]
    parts.append(f"<h2>This run</h2><pre>{_text(json.dumps(header, indent=1))}</pre>")
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Refresh policies</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _profit_plot(summary: Summary, stream: str) -> Figure:
    """Lines over the cost ratios; of the bounds, the plan that is made for each ratio."""
    figure = Figure(figsize=(10, 5.5), layout="constrained")
    axes = figure.subplots()
    for style, (name, group) in zip(_styles(), _by_policy(summary, stream).items(), strict=False):
        figures = [
            summary[Group(stream, name, ratio)] if Group(stream, name, ratio) in summary else summary[group]
            for ratio in COST_RATIOS
        ]
        values = [f[f"net_profit_{ratio:g}"] for f, ratio in zip(figures, COST_RATIOS, strict=True)]
        axes.errorbar(
            COST_RATIOS,
            [value.mean for value in values],
            yerr=[value.reach or 0.0 for value in values],
            label=name,
            linestyle="--" if group.cost_ratio is not None else "-",
            capsize=2,
            markersize=5,
            **style,
        )
    axes.axhline(0, color="#888", linewidth=0.8)
    axes.set_yscale("symlog", linthresh=2)
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.set(xlabel="cost of computing all lists / revenue", ylabel="net profit, % of revenue")
    axes.set_xticks(COST_RATIOS)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


def _loss_plot(summary: Summary, stream: str) -> Figure:
    """Our policies, and the papers' rows as crosses."""
    figure = Figure(figsize=(10, 5.5), layout="constrained")
    axes = figure.subplots()
    for style, (name, group) in zip(_styles(), _by_policy(summary, stream).items(), strict=False):
        points = [summary[found] for found in summary if found[:2] == group[:2]]
        axes.errorbar(
            [point["cost_saving"].mean for point in points],
            [point["loss_pessimistic"].mean for point in points],
            xerr=[point["cost_saving"].reach or 0.0 for point in points],
            yerr=[point["loss_pessimistic"].reach or 0.0 for point in points],
            label=name,
            linestyle="none",
            capsize=2,
            **style,
        )
    for paper, marker in (("SoCC'17", "x"), ("WWW'18", "+")):
        theirs = [row for row in PUBLISHED if row.paper == paper]
        saving, loss = [row.cost_saving for row in theirs], [row.loss_pessimistic for row in theirs]
        axes.scatter(saving, loss, marker=marker, color="#444", label=paper)
        for row in theirs:
            place = (row.cost_saving, row.loss_pessimistic)
            axes.annotate(row.design, place, (4, 3), textcoords="offset points", fontsize=6, color="#444")
    savings = np.linspace(0, axes.get_xlim()[1], 200)
    for ratio in COST_RATIOS:
        axes.plot(savings, ratio * savings, color="#bbb", linewidth=0.8, zorder=0)
        end = (savings[-1], ratio * savings[-1])
        axes.annotate(f"no profit at c={ratio:g}", end, ha="right", fontsize=6, color="#888")
    axes.set_yscale("symlog", linthresh=1)
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.set_ylim(bottom=0)
    axes.set(xlabel="cost saving, %", ylabel="pessimistic loss, % of revenue")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


def _by_policy(summary: Summary, stream: str) -> dict[str, Group]:
    """The first group of each policy of a stream, which bounds have several of."""
    groups: dict[str, Group] = {}
    for group in summary:
        if group.stream == stream:
            groups.setdefault(group.policy, group)
    return groups


def _styles() -> Iterator[dict[str, Any]]:
    for number in itertools.count():
        yield {"color": _COLOURS[number % len(_COLOURS)], "marker": _MARKERS[number % len(_MARKERS)]}


def _svg(figure: Figure) -> str:
    """The plot as an element of the page; the same for the same numbers."""
    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "frugalads"}):
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = file.getvalue()
    return text[text.index("<svg") :]


def _table(table: Table) -> str:
    columns, lines = table
    head = "".join(f"<th>{_text(column)}</th>" for column in columns)
    rows = ("".join(f"<td>{_text(cell)}</td>" for cell in line) for line in lines)
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table>\n<tr>{head}</tr>\n{body}\n</table>"


def _text(text: str) -> str:
    return html.escape(text)
