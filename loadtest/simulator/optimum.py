"""Two bounds that know the future: no refresh policy of the same cache can earn more than the first.

Problem. On a hit, a policy serves the cached list or computes a new one. Serving saves the cost of the
request and loses the value of the ads that the user would have been shown and the cached list lacks
(the pessimistic loss of Li et al., WWW 2018, section 5.5.1). Which decisions would have been the best?

Why that is computable. A refresh uses an entry as a hit does, so what the LRU cache holds does not depend on
the decisions (`residency`). The requests of a key from its admission to its eviction are a chain of their
own: all that decisions hand on is which request's list is cached. With L requests in a chain, i a request
whose list is cached and

    price = c x revenue / cost of the measured requests
    g(i, j) = price x cost[j] - sum of value[a] over ads a of list j that list i lacks

the best plan is a longest path: from list i, serve j (gain g(i, j), keep i) or refresh at j (gain 0, go on
from list j). Merging is left out: an entry is the list of one request, as in all but the merging designs.
Requests before the measured part cost nothing and lose nothing, so the bound may start from any list.

The programme. W(i) is the best gain so far that ends with list i cached. Only differences count, so the
gain common to all lists, price x cost[j] - total value of j, is taken out: then

    serve j:    W(i) += value of the ads of j that list i holds
    refresh j:  W(j)  = max W + total value of j - price x cost[j]

Every W only rises, by at most the future value of the ads in the list, which one pass from the end of the
chain tells. Hence, invariants:

* `best` is max W and never falls; it is kept up to date without looking at all lists;
* ceiling(i) = W(i) at its birth + future value of its ads never changes, and a list whose ceiling is not
  above `best` can never be needed: it is dropped, or not entered at all. This prunes without approximation.

For each ad the living lists that hold it are kept, so serving j touches only lists that share a shown ad
with it: O(sum over j of lists alive x shown ads), at worst quadratic in L, in practice far less because a
key that earns little soon has no list worth keeping. Ties serve. Nothing is approximate but the rounding of
sums; no entry's life is capped.

`clairvoyant` decides greedily: it knows the loss of this request, not of later ones, and serves unless the
loss exceeds price x cost. That is what a perfect predictor of the loss would do in a live service.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from loadtest.request_log.schema import RequestLog, Requests
from loadtest.simulator.designs import Design
from loadtest.simulator.engine import simulate
from loadtest.simulator.outcome import MISS, REFRESH, Outcome
from services.core.compiled import compiled

Plan = NDArray[np.int64]  # of each request, the request whose list is served; its own where computed


def optimum(log: Requests, resident: NDArray[np.bool_], first: int, cost_ratio: float) -> Plan:
    """The plan of greatest net profit over the requests from `first` on, 0..n-1.

    resident: whether the cache holds the phrase of each request (`residency`). cost_ratio: what computing all
    measured lists costs, in terms of the revenue they earn.
    """
    value_usd, worth_usd = _amounts(log, first, cost_ratio)
    value_usd[: log.offsets[first]] = 0.0
    worth_usd[:first] = 0.0
    order, starts = _chains(log, resident)
    plan = np.arange(len(order))
    _optimum(order, starts, log.offsets, log.ads, value_usd, worth_usd, _ads(log), plan)
    return plan


def clairvoyant(log: Requests, resident: NDArray[np.bool_], first: int, cost_ratio: float) -> Plan:
    """The plan that serves, request by request, where the true loss is at most price x cost."""
    value_usd, worth_usd = _amounts(log, first, cost_ratio)
    order, starts = _chains(log, resident)
    plan = np.arange(len(order))
    _clairvoyant(order, starts, log.offsets, log.ads, value_usd, worth_usd, _ads(log), plan)
    return plan


def replayed(name: str, log: RequestLog, resident: NDArray[np.bool_], plan: Plan, first: int) -> Outcome:
    """What a plan earns, by the same engine as every design.

    The engine follows the plan of a log in which all requests that are served one list, and no others, share
    a phrase: the first of them misses, the others hit, nothing is refreshed and nothing evicted.
    """
    lists, phrase = np.unique(plan, return_inverse=True)
    none = np.zeros(len(lists), np.int32)
    regrouped = replace(
        log,
        phrase=phrase.astype(np.int32),
        prior_requests=none,
        prior_clicks=none,
        prior_revenue_usd=none.astype(np.float64),
    )
    outcome = simulate(regrouped, Design(name, "none"), len(lists), warmup=first)
    refreshed = resident & (outcome.decisions == MISS)
    outcome.decisions[refreshed] = REFRESH
    outcome.sums["refreshes"] = np.count_nonzero(refreshed[first:])
    return outcome


def _amounts(log: Requests, first: int, cost_ratio: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The expected revenue of each listed ad, and price x cost of each request, in US dollars."""
    value_usd = log.shown_probability.astype(np.float64) * log.charge_usd
    cost = log.cost.astype(np.float64)
    total = float(cost[first:].sum())
    price_usd = cost_ratio * float(value_usd[log.offsets[first] :].sum()) / total if total else 0.0
    return value_usd, cost * price_usd


def _chains(log: Requests, resident: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    order = np.argsort(log.phrase, kind="stable")
    return order, np.append(np.flatnonzero(~resident[order]), len(order))


def _ads(log: Requests) -> int:
    return int(log.ads.max(initial=-1)) + 1


@compiled
def _optimum(
    order: NDArray[np.int64],
    starts: NDArray[np.int64],
    offsets: NDArray[np.int64],
    ads: NDArray[np.int32],
    value_usd: NDArray[np.float64],
    worth_usd: NDArray[np.float64],
    ad_count: int,
    plan: Plan,
) -> None:
    """Fills `plan` chain by chain; chain r is `order[starts[r]:starts[r + 1]]`."""
    future_usd = np.zeros(ad_count)  # of each ad: its value in the chain after the request looked at
    begin = np.zeros(ad_count, np.int64)  # of each ad: where the living lists that hold it stand in `living`
    alive = np.zeros(ad_count, np.int64)  # and how many they are
    has_future = np.zeros(len(ads), np.bool_)  # of each listed ad: will it earn later in the chain?
    for run in range(len(starts) - 1):
        chain = order[starts[run] : starts[run + 1]]
        length = len(chain)
        if length == 1:
            continue
        potential_usd, room = _look_ahead(
            chain, offsets, ads, value_usd, future_usd, has_future, begin, alive
        )
        living = np.empty(room, np.int64)
        w = np.zeros(length)
        ceiling = np.empty(length)
        parent = np.zeros(length, np.int64)
        best = 0.0
        best_list = 0
        for j in range(length):
            items = range(offsets[chain[j]], offsets[chain[j] + 1])
            if j > 0:
                parent[j] = best_list
                w[j] = best - worth_usd[chain[j]]
                for item in items:
                    w[j] += value_usd[item]
                # Serve j: lists that hold an ad shown there rise, and lists that can no longer win go.
                for item in items:
                    if value_usd[item] == 0.0:
                        continue
                    ad = ads[item]
                    kept = begin[ad]
                    for at in range(begin[ad], begin[ad] + alive[ad]):
                        i = living[at]
                        w[i] += value_usd[item]
                        if w[i] > best:
                            best = w[i]
                            best_list = i
                        if ceiling[i] > best:
                            living[kept] = i
                            kept += 1
                    alive[ad] = kept - begin[ad]
            # Refresh at j: its list is born, unless it can never win.
            ceiling[j] = w[j] + potential_usd[j]
            if w[j] > best:
                best = w[j]
                best_list = j
            if ceiling[j] > best:
                for item in items:
                    if has_future[item]:
                        ad = ads[item]
                        living[begin[ad] + alive[ad]] = j
                        alive[ad] += 1
        # Back along the refreshes of the winner.
        end = length
        while end > 0:
            for j in range(best_list + 1, end):
                plan[chain[j]] = chain[best_list]
            end = best_list
            best_list = parent[best_list]


@compiled
def _look_ahead(
    chain: NDArray[np.int64],
    offsets: NDArray[np.int64],
    ads: NDArray[np.int32],
    value_usd: NDArray[np.float64],
    future_usd: NDArray[np.float64],
    has_future: NDArray[np.bool_],
    begin: NDArray[np.int64],
    alive: NDArray[np.int64],
) -> tuple[NDArray[np.float64], int]:
    """The future value of each list of a chain, and the room that the lists of living lists may need.

    Sets `has_future` of the chain's listed ads, and `begin` and `alive` (to 0) of its ads.
    """
    potential_usd = np.zeros(len(chain))
    for j in range(len(chain) - 1, -1, -1):
        items = range(offsets[chain[j]], offsets[chain[j] + 1])
        for item in items:
            potential_usd[j] += future_usd[ads[item]]
            has_future[item] = future_usd[ads[item]] > 0.0
            alive[ads[item]] += has_future[item]
        for item in items:
            future_usd[ads[item]] += value_usd[item]
    room = 0
    for request in chain:
        for item in range(offsets[request], offsets[request + 1]):
            ad = ads[item]
            future_usd[ad] = 0.0
            if alive[ad] > 0:
                begin[ad] = room
                room += alive[ad]
                alive[ad] = 0
    return potential_usd, room


@compiled
def _clairvoyant(
    order: NDArray[np.int64],
    starts: NDArray[np.int64],
    offsets: NDArray[np.int64],
    ads: NDArray[np.int32],
    value_usd: NDArray[np.float64],
    worth_usd: NDArray[np.float64],
    ad_count: int,
    plan: Plan,
) -> None:
    """Fills `plan` as `_optimum` does."""
    held_by = np.full(ad_count, -1)  # of each ad: the last request at which a list with it was cached
    for run in range(len(starts) - 1):
        cached = -1
        for request in order[starts[run] : starts[run + 1]]:
            items = range(offsets[request], offsets[request + 1])
            loss_usd = 0.0
            for item in items:
                if held_by[ads[item]] != cached:
                    loss_usd += value_usd[item]
            if cached >= 0 and loss_usd <= worth_usd[request]:
                plan[request] = cached
                continue
            cached = request
            for item in items:
                held_by[ads[item]] = request
