"""Designs and bounds compared on logs: one row a policy, log and draw of clicks.

Seeds. A generated log has its own seed, from which demand, lists and clicks are drawn; several of them are
several logs. Within one log only the users' clicks can be drawn again, each shown ad by its probability:
`clicks` 0 are those of the log, 1 and more are redrawn. Clicks decide which phrases have earned, so they move
the decisions of the designs that look at that, and the realised loss of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loadtest.request_log.schema import RequestLog
from loadtest.simulator.designs import DESIGNS, LEARNED
from loadtest.simulator.engine import simulate
from loadtest.simulator.learned import Learned
from loadtest.simulator.optimum import Plan, clairvoyant, optimum, replayed
from loadtest.simulator.outcome import Outcome
from loadtest.simulator.residency import residency
from loadtest.simulator.traffic import traffic
from models.refresh.recipes import Recipe
from services.runtime.errors import UserError

if TYPE_CHECKING:
    from models.refresh.training import Trained

COST_RATIOS = (0.1, 0.2, 0.3)
"""What computing all lists costs, in terms of revenue: the range that the papers give."""

BOUNDS = {"clairvoyant": clairvoyant, "optimum": optimum}
POLICIES = (*DESIGNS, *BOUNDS)
GROUPS = {"all": POLICIES, "learned": tuple(LEARNED)}
"""What stands for several policies; the learned ones are not in `all`, for each trains a model first."""
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
    """The policies of a list of names and groups with commas between; raises UserError for an unknown one."""
    names: list[str] = []
    for part in policies.split(","):
        name = part.strip()
        names += GROUPS.get(name, (name,))
    for name in names:
        if name not in POLICIES and name not in LEARNED:
            raise UserError(f"--policies: {name!r} is none of {', '.join((*GROUPS, *POLICIES, *LEARNED))}")
    return tuple(dict.fromkeys(names))


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
    ratios = len(COST_RATIOS)
    bounds = ratios * sum(name in BOUNDS for name in policies)
    learned = sum(name in LEARNED for name in policies)
    plain = len(policies) - learned - bounds // ratios
    return bounds + learned + seeds * (bounds + plain + learned * ratios)


def compare(
    named: NamedLog,
    policies: Sequence[str],
    entries: int,
    seeds: int,
    first: int,
    on_step: Callable[[], None] = lambda: None,
) -> Iterator[Row]:
    """The rows of one log, replayed with `seeds` draws of clicks; requests before `first` are not counted.

    The bounds and the learned policies have a row for each cost ratio, since what is best depends on it. A
    model is trained on the requests before `first`, by their own clicks.
    """
    resident = residency(named.log.phrase, entries)
    plans: dict[tuple[str, float], Plan] = {}
    for name in policies:
        for ratio in COST_RATIOS if name in BOUNDS else ():
            plans[name, ratio] = BOUNDS[name](named.log, resident, first, ratio)
            on_step()
    models = _trained(named, [name for name in policies if name in LEARNED], first, on_step)
    for clicks in range(seeds):
        log = redrawn(named.log, clicks)
        for name in policies:
            outcomes: dict[float | None, Outcome] = {}
            for ratio in COST_RATIOS if name in LEARNED else ():
                model, factor = models[name], LEARNED[name].price_factor
                learned = Learned(model.forest.arrays, model.rule(ratio * factor))
                outcomes[ratio] = simulate(log, LEARNED[name], entries, warmup=first, learned=learned)
            if name in DESIGNS:
                outcomes[None] = simulate(log, DESIGNS[name], entries, warmup=first)
            for ratio in COST_RATIOS if name in BOUNDS else ():
                outcomes[ratio] = replayed(name, log, resident, plans[name, ratio], first)
            for cost_ratio, outcome in outcomes.items():
                on_step()
                yield _row(named, name, cost_ratio, clicks, entries, outcome)


def _trained(
    named: NamedLog, policies: Sequence[str], first: int, on_step: Callable[[], None]
) -> dict[str, Trained]:
    """The models of learned policies; recipes that train alike share one."""
    if not policies:
        return {}
    from models.refresh.training import train_refresh

    given = traffic(named.log)
    models: dict[Recipe, Trained] = {}
    found = {}
    for name in policies:
        recipe = LEARNED[name].recipe
        assert recipe is not None
        if recipe.training not in models:
            models[recipe.training] = train_refresh(given, first, recipe, named.seed)
        found[name] = replace(models[recipe.training], recipe=recipe)
        on_step()
    return found


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
        "probes": outcome.probes,
        "prediction": outcome.prediction,
        "requests_per_s": outcome.requests_per_s,
        "peak_bytes": outcome.peak_bytes,
    }
