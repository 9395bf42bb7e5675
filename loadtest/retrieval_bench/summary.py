"""What the rows of all seeds say of the default rule: its gains, its rivals, and the promises kept.

A figure is the mean over seeds. Its interval takes seeds as independent: half widths add up as the root of
their squares. The worst seed stands beside a promise; beside that of recall also what chance alone does to a
seed (95 %: one split calibrates, another of its size tests) and the mean of `fixed`, calibrated alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.stack.tables import text_table

from .rows import Row

_GAINS = ("distances", "95 %", "time", "95 %", "own scan")
_PROMISES = ("recall", "worst", "noise", "fixed", "coverage", "worst", "model share", "worst", "p99", "worst")


def summary(rows: Sequence[Row]) -> str:
    """Three tables: gains over `fixed`, distances of every other rule over the default's, promises."""
    cells = list(dict.fromkeys((row.k, row.target) for row in rows))
    rules = [rule for rule in dict.fromkeys(row.policy for row in rows) if rule != "fixed"]
    gains, rivals, promises = [], [], []
    for k, target in cells:
        members = [row for row in rows if (row.k, row.target) == (k, target)]
        defaults = [row for row in members if row.default]
        cell = (str(k), f"{target:g}", "/".join(dict.fromkeys(row.policy for row in defaults)))
        gains.append((*cell, *_gains(members, defaults)))
        rivals.append((*cell, *(_rival([row for row in members if row.policy == rule]) for rule in rules)))
        fixed = [row for row in members if row.policy == "fixed"]
        promises.append((*cell, *_promises(defaults, fixed)))
    names = ("k", "target", "default")
    return "\n".join(
        (
            "At equal recall: fixed over default. Time: of stock FAISS; own scan: of `fixed` in ours.",
            text_table((*names, *_GAINS), gains, left=(2,)),
            "At equal recall: distances of each rule over the default's.",
            text_table((*names, *rules), rivals, left=(2,)),
            "Promises: points above the target; share of the time in decisions; 99th percentile over fixed.",
            text_table((*names, *_PROMISES), promises, left=(2,)),
        )
    )


def _gains(members: Sequence[Row], defaults: Sequence[Row]) -> list[str]:
    fixed_us = {row.seed: row.mean_us for row in members if row.policy == "fixed"}
    own = np.mean([fixed_us[row.seed] / row.mean_us for row in defaults])
    return [
        *_mean_over([row.ratio for row in defaults], [row.ratio_ci for row in defaults]),
        *_mean_over([row.faiss_ratio for row in defaults], [row.faiss_ci for row in defaults]),
        f"{own:.2f}",
    ]


def _rival(rows: Sequence[Row]) -> str:
    if not rows:
        return "-"
    return " ".join(_mean_over([row.over_default for row in rows], [row.over_default_ci for row in rows]))


def _mean_over(figures: Sequence[float], intervals: Sequence[tuple[float, float]]) -> tuple[str, str]:
    mean = float(np.mean(figures))
    halves = np.array([(high - low) / 2 for low, high in intervals])
    half = float(np.sqrt((halves**2).sum())) / len(halves)
    return f"{mean:.2f}", f"{mean - half:.2f}-{mean + half:.2f}"


def _promises(defaults: Sequence[Row], fixed: Sequence[Row]) -> list[str]:
    """Mean and worst seed of each promise; recall and coverage in points."""
    recalls = [100 * (row.recall - row.target) for row in defaults]
    noise = 100 * np.sqrt(2) * np.mean([(row.recall_ci[1] - row.recall_ci[0]) / 2 for row in defaults])
    beside = 100 * np.mean([row.recall - row.target for row in fixed])
    covered = [100 * (row.covered - row.target) for row in defaults if row.covered is not None]
    shares = [100 * row.predict_us / row.mean_us for row in defaults]
    tails = [row.p99_ratio for row in defaults]
    return [
        *(f"{np.mean(recalls):+.2f}", f"{min(recalls):+.2f}", f"{noise:.2f}", f"{beside:+.2f}"),
        *((f"{np.mean(covered):+.2f}", f"{min(covered):+.2f}") if covered else ("-", "-")),
        *(f"{np.mean(shares):.1f} %", f"{max(shares):.1f} %"),
        *(f"{np.mean(tails):.2f}", f"{max(tails):.2f}"),
    ]
