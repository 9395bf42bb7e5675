"""Refresh where the predicted loss exceeds the price of computing the list anew.

Problem. A hit can be served, which saves a computation and may lose revenue, or refreshed. C. Li et al. (WWW
2018) predict the loss and refresh above one threshold for all, searched on an hour of the log. But what a
refresh costs differs between phrases by a factor of a hundred, and a threshold found on the few clicks of an
hour is a matter of chance.

Rule. Serving is right exactly when the expected loss is below what computing costs, so that is the rule, and
nothing is searched:

    refresh  iff  correction x predicted loss > price x max(mean cost of the phrase's lists, floor)

    price    what a unit of cost is worth: cost ratio x revenue so far / cost so far, where the cost ratio
             says what computing every list would cost in terms of revenue (SoCC'17: .1 to .3)
    floor    a share of the mean cost of a request: a list that costs next to nothing is not computed for
             nothing at every hit

A threshold instead of the price gives the published rule (`Rule.threshold_usd`).

Correction. Lists are served where the prediction is low, and among those the predictions that are too low
are over-represented (the winner's curse); nobody would notice, since what serving lost is not measured. So a
small share of the hits that would be served is refreshed all the same, as a probe. Probes say what serving
lost, and predictions are multiplied by measured / predicted, where both sums begin with the revenue of
`PRIOR_REQUESTS` mean requests. They also bring to light single lists that are thought harmless and are not.
The cost of probes is a cost like any other.

Invariants: nothing after the request that is judged enters its decision; the sums of `LEDGER` fade with a
memory of `MEMORY_REQUESTS`; without any cost noted so far the price is 0. Complexity: O(1) beside the forest.
What is approximate: a served request counts in the ledger with the means of its phrase.
"""

from __future__ import annotations

from typing import NamedTuple

from services.core.compiled import compiled
from services.core.refresh import features
from services.core.refresh.features import Computed, Floats, Keys, Request
from services.core.trees.evaluator import ForestArrays, score_row

REUSE, REFRESH, PROBE = range(3)
"""Serve the cached list; compute it anew; do so only to measure what serving would have lost."""

MEMORY_REQUESTS = 1_000_000.0
PRIOR_REQUESTS = 10.0


class Rule(NamedTuple):
    """What decisions depend on beside the model.

    cost_ratio: what computing a list for every request would cost, in terms of the revenue they earn.
    floor: least cost of a list, as a share of the mean cost of a request.
    probe_share: 0..1 of the hits that would be served.
    threshold_usd: refresh above this predicted loss, whatever the cost; NaN goes by cost.
    published: the model's features are WWW18, not OURS.
    """

    cost_ratio: float
    floor: float
    probe_share: float
    threshold_usd: float
    published: bool = False


@compiled
def note_request(ledger: Keys, revenue_usd: float, cost: float) -> None:
    """A request was answered: what it earns, and what computing its list costs, in expectation."""
    total = ledger[0]
    keep = 1.0 - 1.0 / MEMORY_REQUESTS
    total["requests"] = keep * total["requests"] + 1.0
    total["revenue_usd"] = keep * total["revenue_usd"] + revenue_usd
    total["cost"] = keep * total["cost"] + cost
    total["predicted_usd"] *= keep
    total["measured_usd"] *= keep


@compiled
def note_probe(ledger: Keys, predicted_usd: float, measured_usd: float) -> None:
    """A probe found what serving would have lost; predicted_usd is the model's own, uncorrected."""
    ledger[0]["predicted_usd"] += max(predicted_usd, 0.0)
    ledger[0]["measured_usd"] += measured_usd


@compiled
def mean_cost(ledger: Keys) -> float:
    """Of a request so far; 1 before any."""
    total = ledger[0]
    return float(total["cost"] / total["requests"]) if total["cost"] > 0.0 else 1.0


@compiled
def price_usd(ledger: Keys, cost_ratio: float) -> float:
    """Of a unit of cost."""
    total = ledger[0]
    return float(cost_ratio * total["revenue_usd"] / total["cost"]) if total["cost"] > 0.0 else 0.0


@compiled
def correction(ledger: Keys) -> float:
    """What predictions of served lists have to be multiplied by, as probes measured it."""
    total = ledger[0]
    if total["revenue_usd"] <= 0.0:
        return 1.0
    prior_usd = PRIOR_REQUESTS * total["revenue_usd"] / total["requests"]
    return float((total["measured_usd"] + prior_usd) / (total["predicted_usd"] + prior_usd))


@compiled
def decide(loss_usd: float, cost: float, ledger: Keys, rule: Rule, uniform: float) -> int:
    """REUSE, REFRESH or PROBE for a hit.

    loss_usd: predicted. cost: mean of the phrase's lists. uniform: a draw from 0..1.
    """
    if rule.threshold_usd == rule.threshold_usd:
        return REFRESH if loss_usd > rule.threshold_usd else REUSE
    least_cost = rule.floor * mean_cost(ledger)
    if correction(ledger) * loss_usd > price_usd(ledger, rule.cost_ratio) * max(cost, least_cost):
        return REFRESH
    return PROBE if uniform < rule.probe_share else REUSE


@compiled
def judge(
    keys: Keys,
    row: int,
    request: Request,
    ledger: Keys,
    rule: Rule,
    forest: ForestArrays,
    uniform: float,
    scratch: Floats,
) -> tuple[int, float, float]:
    """A hit: the decision, and the loss of serving the list as predicted, and as corrected, US dollars.

    uniform: a draw from 0..1. scratch: float64, as many as the model has features.
    """
    features.on_request(keys, row, request)
    if rule.published:
        features.www18(keys, row, request, mean_cost(ledger), scratch)
    else:
        features.ours(keys, row, request, mean_cost(ledger), scratch)
    loss_usd = score_row(forest, scratch)
    decision = decide(loss_usd, keys[row]["cost"], ledger, rule, uniform)
    if decision == REUSE:
        features.on_served(keys, row)
        note_request(ledger, keys[row]["value_usd"], keys[row]["cost"])
    return decision, loss_usd, correction(ledger) * loss_usd


@compiled
def learn(keys: Keys, row: int, request: Request, computed: Computed, ledger: Keys) -> None:
    """A list was computed for a request, which `judge` has seen where a list was cached."""
    if computed.loss_usd != computed.loss_usd:
        features.on_request(keys, row, request)
    features.on_computed(keys, row, request, computed)
    note_request(ledger, computed.value_usd, computed.cost)
