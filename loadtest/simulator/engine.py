"""Replaying a log against a cache of scored lists under one design.

Requests come in the order of the log. One whose key the LRU holds is a hit, which the refresh policy judges;
if the policy wants the list anew, or there is none, the log's list of this request is what computing yields,
and it goes into the cache, merged into what was there or in its place. Nothing is drawn but XFetch's numbers:
clicks are the log's own, so all designs see the same users. Only requests after the warm-up are counted.

The policies are those of `services/core/refresh`, the very functions that the scoring service calls.

Memory: the log, 24 bytes an ad, 14 bytes a request, and 48 bytes an entry; where lists are merged, 12 bytes
more for each ad that an entry can hold.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadtest.request_log.schema import RequestLog
from loadtest.simulator.auction import Market, market, position_of, revenue_usd
from loadtest.simulator.designs import POLICIES, Design
from loadtest.simulator.keys import cache_keys, earning_before
from loadtest.simulator.learned import (
    INFERENCE_SHARE,
    Learned,
    Shown,
    State,
    judge,
    learn,
    learn_clicks,
    shown,
    state,
)
from loadtest.simulator.outcome import COUNTS, HIT, MISS, REFRESH, Outcome
from loadtest.simulator.residency import places
from services.core.compiled import compiled
from services.core.merging import move_to_front
from services.core.refresh import adaptive, adaptive_ttl, predicted, two_level, xfetch
from services.core.refresh.policy import ENTRY, is_nth_hit, restart
from services.core.refresh.replay import learn_prior

Progress = Callable[[int, int], None]
"""Told how many requests of how many are done."""

_STEP = 100_000
_SEED = 17  # of the draws of XFetch and of probes
_NONE, _FIXED, _TWO_LEVEL, _ADAPTIVE, _ADAPTIVE_TTL, _XFETCH, _PREDICTED = range(len(POLICIES))

_AD = np.dtype(
    [
        ("listed", np.int64),  # the last request whose current list has the ad
        ("served", np.int64),  # the last request whose served list has it
    ]
)


class _Columns(NamedTuple):
    """The log as the loop reads it."""

    time_ms: NDArray[np.int64]
    cost: NDArray[np.float32]
    offsets: NDArray[np.int64]
    ads: NDArray[np.int32]
    click_probability: NDArray[np.float32]
    bid_usd: NDArray[np.float32]
    charge_usd: NDArray[np.float32]
    shown_probability: NDArray[np.float32]
    clicked: NDArray[np.bool_]
    resident: NDArray[np.bool_]
    place: NDArray[np.int32]
    earning: NDArray[np.bool_]
    uniform: NDArray[np.float64]  # draws of XFetch and of probes; one value for other policies


class _Cache(NamedTuple):
    """The cached lists, and the state of their policy; a row an entry."""

    rows: NDArray[np.void]  # ENTRY
    written_ms: NDArray[np.int64]
    cost_ms: NDArray[np.float64]
    held: NDArray[np.int64]  # ads in the list
    first: NDArray[np.int64]  # where in the log the list begins that was written last
    ads: NDArray[np.int32]  # of merged lists, entries x capacity
    items: NDArray[np.int64]  # where in the log each of them was listed


class _Scratch(NamedTuple):
    """The ads shown on one request, best first."""

    estimates: NDArray[np.float64]
    bids_usd: NDArray[np.float64]
    charges_usd: NDArray[np.float64]
    shown: NDArray[np.float64]
    served: NDArray[np.bool_]


class _Rule(NamedTuple):
    """A design's parameters."""

    policy: int
    merge: bool
    capacity: int  # of a merged list
    every: int
    cold_every: int
    ttl_ms: int
    longest_ttl_ms: int
    beta: float
    ms_per_candidate: float


def simulate(
    log: RequestLog,
    design: Design,
    entries: int,
    *,
    warmup: float | int,
    learned: Learned | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Replay a log under a design with a cache of `entries` lists.

    warmup: requests that are replayed but not counted; a float below 1 is a share of the log. learned: of a
    learned design, what it decides by. Raises ValueError for an empty log, a cache without entries, a warm-up
    that leaves nothing to count, or a learned design without a model.
    """
    requests = len(log.phrase)
    first = int(warmup * requests) if isinstance(warmup, float) else warmup
    if not 0 <= first < requests:
        raise ValueError(f"warmup {warmup} leaves none of {requests} requests to count")
    if design.policy == "predicted" and learned is None:
        raise ValueError(f"{design.name} needs a model")
    began_s = time.perf_counter()
    earning = earning_before(log)
    resident, place = places(*cache_keys(log, design.key, earning), entries)
    rule = _rule(design)
    columns = _columns(log, rule, resident, place, earning)
    cache = _empty(int(place.max()) + 1, rule.capacity)
    longest = int(np.diff(log.offsets).max())
    one, two, three, four = np.zeros((4, longest))
    scratch = _Scratch(one, two, three, four, np.zeros(longest, np.bool_))
    ads = np.full(len(log.ad_ids), np.array((-1, -1), _AD))
    sums, decisions = np.zeros(1, COUNTS), np.zeros(requests, np.int8)
    known = state(log, learned)
    whole = (columns, rule, market(log), cache, ads, scratch, known, first, sums, decisions)
    prepared_s = time.perf_counter()
    _replay(*whole, 0, 0)  # compiles, where this is the first replay
    compiled_s = time.perf_counter()
    for start in range(0, requests, _STEP):
        stop = min(start + _STEP, requests)
        _replay(*whole, start, stop)
        if progress is not None:
            progress(stop, requests)
    seconds = time.perf_counter() - compiled_s + prepared_s - began_s
    if learned is not None:
        sums["cost_saved"] *= 1.0 - INFERENCE_SHARE
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Outcome(design.name, entries, sums[0], decisions, seconds, peak_bytes)


def _rule(design: Design) -> _Rule:
    return _Rule(
        POLICIES.index(design.policy),
        design.merge,
        design.queue_ads if design.merge else 0,
        design.every,
        design.cold_every,
        design.ttl_ms,
        design.longest_ttl_ms,
        design.beta,
        design.ms_per_candidate,
    )


def _columns(
    log: RequestLog,
    rule: _Rule,
    resident: NDArray[np.bool_],
    place: NDArray[np.int32],
    earning: NDArray[np.bool_],
) -> _Columns:
    draws = len(log.phrase) if rule.policy in (_XFETCH, _PREDICTED) else 1
    # Arrays that cannot be written, as readers of files give them, are another type to the compiler.
    given = {name: np.require(getattr(log, name), requirements=["C", "W"]) for name in _Columns._fields[:9]}
    uniform = np.random.default_rng(_SEED).random(draws)
    return _Columns(**given, resident=resident, place=place, earning=earning, uniform=uniform)


def _empty(entries: int, capacity: int) -> _Cache:
    return _Cache(
        np.zeros(entries, ENTRY),
        np.zeros(entries, np.int64),
        np.zeros(entries),
        np.zeros(entries, np.int64),
        np.zeros(entries, np.int64),
        np.zeros((entries, capacity), np.int32),
        np.zeros((entries, capacity), np.int64),
    )


@compiled
def _is_due(rule: _Rule, log: _Columns, cache: _Cache, row: int, i: int) -> bool:
    """What the policy says of the hit of request i."""
    if rule.policy == _FIXED:
        return is_nth_hit(cache.rows, row, rule.every)
    if rule.policy == _TWO_LEVEL:
        return two_level.on_hit(cache.rows, row, log.earning[i], rule.cold_every)
    if rule.policy == _ADAPTIVE:
        return adaptive.on_hit(cache.rows, row, log.earning[i], rule.cold_every)
    age_ms = log.time_ms[i] - cache.written_ms[row]
    if rule.policy == _ADAPTIVE_TTL:
        return adaptive_ttl.on_hit(cache.rows, row, age_ms)
    if rule.policy == _XFETCH:
        return xfetch.on_hit(float(age_ms), cache.cost_ms[row], log.uniform[i], rule.ttl_ms, rule.beta)
    return False


@compiled
def _note(rule: _Rule, cache: _Cache, row: int, earning: bool, is_new: bool, similarity: float) -> None:
    """Tell the policy that the list of a row was written."""
    if rule.policy == _ADAPTIVE and is_new:
        adaptive.on_insert(cache.rows, row)
    elif rule.policy == _ADAPTIVE:
        adaptive.on_refresh(cache.rows, row, earning, similarity)
    elif rule.policy == _ADAPTIVE_TTL and is_new:
        adaptive_ttl.on_insert(cache.rows, row, rule.ttl_ms)
    elif rule.policy == _ADAPTIVE_TTL:
        adaptive_ttl.on_refresh(cache.rows, row, similarity, rule.ttl_ms, rule.longest_ttl_ms)
    else:
        restart(cache.rows, row)


@compiled
def _auction(log: _Columns, ads: NDArray[np.void], i: int, trade: Market, scratch: _Scratch) -> float:
    """Expected revenue of an auction of request i among the shown ads that the served list has."""
    first, last = log.offsets[i], log.offsets[i + 1]
    count = 0
    for j in range(first, last):
        if log.charge_usd[j] > 0:
            place = position_of(j, first, last, log.click_probability, log.bid_usd, log.charge_usd)
            scratch.estimates[place] = log.click_probability[j]
            scratch.bids_usd[place] = log.bid_usd[j]
            scratch.charges_usd[place] = log.charge_usd[j]
            scratch.shown[place] = log.shown_probability[j]
            scratch.served[place] = ads[log.ads[j]]["served"] == i
            count += 1
    return revenue_usd(
        scratch.estimates, scratch.bids_usd, scratch.charges_usd, scratch.shown, scratch.served, count, trade
    )


@compiled
def _replay(
    log: _Columns,
    rule: _Rule,
    trade: Market,
    cache: _Cache,
    ads: NDArray[np.void],
    scratch: _Scratch,
    known: State,
    warmup: int,
    sums: Any,
    decisions: NDArray[np.int8],
    start: int,
    stop: int,
) -> None:
    total = sums[0]
    for i in range(start, stop):
        first, last, row = log.offsets[i], log.offsets[i + 1], log.place[i]
        current = np.arange(first, last)
        for ad in log.ads[first:last]:
            ads[ad]["listed"] = i
        held = cache.held[row] if log.resident[i] else 0
        cached = cache.items[row, :held] if rule.merge else cache.first[row] + np.arange(held)
        common = 0
        for item in cached:
            ad = ads[log.ads[item]]
            ad["served"] = i
            if ad["listed"] == i:
                common += 1
        decision, verdict, loss_usd, worth = MISS, predicted.REFRESH, 0.0, Shown(0.0, 0.0, 0.0)
        if rule.policy == _PREDICTED:
            worth = shown(known, ads, i)
            learn_prior(known.keys, known.traffic, known.traffic.phrase[i])
            if log.resident[i]:
                verdict, loss_usd = judge(known, i, log.uniform[i])
                decision = HIT if verdict == predicted.REUSE else REFRESH
        elif log.resident[i]:
            decision = REFRESH if _is_due(rule, log, cache, row, i) else HIT
        decisions[i] = decision
        if i >= warmup:
            total["requests"] += 1
            total["cost"] += log.cost[i]
            earned_usd = 0.0
            for j in range(first, last):
                charge_usd = np.float64(log.charge_usd[j])
                expected_usd = log.shown_probability[j] * charge_usd
                total["revenue_usd"] += expected_usd
                earned_usd += expected_usd
                total["revenue_realised_usd"] += charge_usd if log.clicked[j] else 0.0
                if decision == HIT and ads[log.ads[j]]["served"] != i:
                    total["lost_usd"] += expected_usd
                    total["lost_realised_usd"] += charge_usd if log.clicked[j] else 0.0
            if decision == HIT:
                earned_usd = _auction(log, ads, i, trade, scratch)
                total["hits"] += 1
                total["cost_saved"] += log.cost[i]
                total["served_predicted_usd"] += predicted.correction(known.ledger) * loss_usd
                total["served_estimated_usd"] += worth.loss_usd
                if last > first:
                    total["compared"] += 1
                    total["similarity"] += common / (last - first)
            elif decision == REFRESH:
                total["refreshes"] += 1
                total["probes"] += verdict == predicted.PROBE
            total["auction_usd"] += earned_usd
        if decision != HIT:
            similarity = common / (last - first) if held > 0 and last > first else np.nan
            _note(rule, cache, row, log.earning[i], decision == MISS, similarity)
            cache.first[row], cache.held[row] = first, last - first
            if rule.merge:
                cache.held[row] = move_to_front(
                    cache.ads[row], cache.items[row], held, log.ads[first:last], current, rule.capacity
                )
            cache.written_ms[row] = log.time_ms[i]
            cache.cost_ms[row] = rule.ms_per_candidate * log.cost[i]
            if rule.policy == _PREDICTED:
                learn(known, i, cache.held[row], held, common, worth, log.resident[i])
                if verdict == predicted.PROBE:
                    predicted.note_probe(known.ledger, loss_usd, worth.loss_usd)
        if rule.policy == _PREDICTED:
            learn_clicks(known, i)
