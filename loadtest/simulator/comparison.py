"""Designs and bounds compared on logs: one row a policy, log and draw of clicks.

Seeds. A generated log has its own seed, from which demand, lists and clicks are drawn; several of them are
several logs. Within one log only the users' clicks can be drawn again, each shown ad by its probability:
`clicks` 0 are those of the log, 1 and more are redrawn. Clicks decide which phrases have earned, so they move
the decisions of the designs that look at that, and the realised loss of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loadtest.request_log.schema import RequestLog
from loadtest.simulator.designs import DESIGNS
from loadtest.simulator.engine import simulate
from loadtest.simulator.optimum import Plan, clairvoyant, optimum, replayed
from loadtest.simulator.outcome import Outcome
from loadtest.simulator.residency import residency
from services.runtime.errors import UserError

COST_RATIOS = (0.1, 0.2, 0.3)
"""What computing all lists costs, in terms of revenue: the range that the papers give."""

BOUNDS = {"clairvoyant": clairvoyant, "optimum": optimum}
POLICIES = (*DESIGNS, *BOUNDS)
ENTRIES_SHARE = 0.155
"""Of the distinct keys: what the cache of SoCC'17 holds, by the hit ratio it reports."""

FIGURES = (
    "hit",
    "similarity",
    "cost_saving",
    "loss_pessimistic",
    "loss_pessimistic_realised",
    "revenue_auction",
    *(f"net_profit_{ratio:g}" for ratio in COST_RATIOS),
)
"""The figures of a row, in percent; losses, auction and profit of the revenue."""

Row = dict[str, Any]
"""Column and value, as the JSON document has them."""


@dataclass(frozen=True)
class NamedLog:
    """A log, the key stream it came from, and the seed it was generated with."""

    log: RequestLog
    stream: str
    seed: int


def chosen(policies: str) -> tuple[str, ...]:
    """The policies of a list with commas between them, or all; raises UserError for an unknown one."""
    if policies == "all":
        return POLICIES
    names = tuple(dict.fromkeys(name.strip() for name in policies.split(",")))
    for name in names:
        if name not in POLICIES:
            raise UserError(f"--policies: {name!r} is none of {', '.join(POLICIES)}")
    return names


def default_entries(log: RequestLog) -> int:
    """Entries for 15.5 % of the distinct phrases that a log asks for."""
    return max(1, round(ENTRIES_SHARE * len(np.unique(log.phrase))))


def redrawn(log: RequestLog, clicks: int) -> RequestLog:
    """The log with other users' clicks: draw 1, 2, ...; 0 is the log as it is."""
    if clicks == 0:
        return log
    uniform = np.random.default_rng(clicks).random(len(log.ads), np.float32)
    return replace(log, clicked=uniform < log.shown_probability)


def steps(policies: Sequence[str], seeds: int) -> int:
    """How often `compare` says that it got on."""
    bounds = len(COST_RATIOS) * sum(name in BOUNDS for name in policies)
    return bounds + seeds * (bounds + sum(name in DESIGNS for name in policies))


def compare(
    named: NamedLog,
    policies: Sequence[str],
    entries: int,
    seeds: int,
    first: int,
    on_step: Callable[[], None] = lambda: None,
) -> Iterator[Row]:
    """The rows of one log, replayed with `seeds` draws of clicks; requests before `first` are not counted.

    The bounds have a row for each cost ratio, since what is best depends on it.
    """
    resident = residency(named.log.phrase, entries)
    plans: dict[tuple[str, float], Plan] = {}
    for name in policies:
        for ratio in COST_RATIOS if name in BOUNDS else ():
            plans[name, ratio] = BOUNDS[name](named.log, resident, first, ratio)
            on_step()
    for clicks in range(seeds):
        log = redrawn(named.log, clicks)
        for name in policies:
            outcomes: dict[float | None, Outcome] = {}
            if name in DESIGNS:
                outcomes[None] = simulate(log, DESIGNS[name], entries, warmup=first)
            for ratio in COST_RATIOS if name in BOUNDS else ():
                outcomes[ratio] = replayed(name, log, resident, plans[name, ratio], first)
            for cost_ratio, outcome in outcomes.items():
                on_step()
                yield _row(named, name, cost_ratio, clicks, entries, outcome)


def _row(
    named: NamedLog, policy: str, ratio: float | None, clicks: int, entries: int, outcome: Outcome
) -> Row:
    return {
        "policy": policy,
        "cost_ratio": ratio,
        "stream": named.stream,
        "seed": named.seed,
        "clicks": clicks,
        "entries": entries,
        "hit": outcome.hit,
        "similarity": outcome.similarity,
        "cost_saving": outcome.cost_saving,
        "loss_pessimistic": outcome.loss_pessimistic,
        "loss_pessimistic_realised": outcome.loss_pessimistic_realised,
        "revenue_auction": outcome.revenue_auction,
        **{f"net_profit_{c:g}": outcome.net_profit(c) for c in COST_RATIOS},
        "refreshes": outcome.refreshes,
        "requests_per_s": outcome.requests_per_s,
        "peak_bytes": outcome.peak_bytes,
    }
