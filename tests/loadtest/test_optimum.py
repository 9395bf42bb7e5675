"""The two bounds: against every plan there is on small logs, and against every design on larger ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from simulator_logs import random_log

from loadtest.request_log.schema import RequestLog
from loadtest.simulator.designs import DESIGNS
from loadtest.simulator.engine import simulate
from loadtest.simulator.optimum import Plan, clairvoyant, optimum, replayed
from loadtest.simulator.outcome import HIT
from loadtest.simulator.residency import residency

RATIOS = st.sampled_from([0.0, 0.1, 0.3, 0.7, 1.5])


def lists(log: RequestLog) -> list[dict[int, float]]:
    """Of each request, the value of each ad in US dollars."""
    value_usd = log.shown_probability.astype(float) * log.charge_usd
    bounds = itertools.pairwise(log.offsets.tolist())
    return [dict(zip(log.ads[a:b].tolist(), value_usd[a:b].tolist(), strict=True)) for a, b in bounds]


def loss_usd(request: dict[int, float], served: dict[int, float]) -> float:
    return sum(value for ad, value in request.items() if ad not in served)


def price_usd(log: RequestLog, first: int, ratio: float) -> float:
    revenue = sum(sum(request.values()) for request in lists(log)[first:])
    cost = float(log.cost[first:].astype(float).sum())
    return ratio * revenue / cost if cost else 0.0


def gain_usd(log: RequestLog, plan: Plan, first: int, ratio: float) -> float:
    """Price x saved cost - loss of a plan, by its definition."""
    price, values = price_usd(log, first, ratio), lists(log)
    return sum(
        price * float(log.cost[i]) - loss_usd(values[i], values[plan[i]])
        for i in range(first, len(plan))
        if plan[i] != i
    )


def plans(log: RequestLog, resident: NDArray[np.bool_]) -> Iterator[Plan]:
    """All plans: each resident request serves or refreshes."""
    hits = np.flatnonzero(resident)
    for choice in itertools.product([False, True], repeat=len(hits)):
        serve = np.zeros(len(resident), np.bool_)
        serve[hits] = choice
        cached: dict[int, int] = {}
        plan = np.arange(len(resident))
        for i, phrase in enumerate(log.phrase.tolist()):
            plan[i] = cached[phrase] if serve[i] else i
            cached[phrase] = int(plan[i])
        yield plan


@settings(max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    requests=st.integers(1, 13),
    phrases=st.integers(1, 3),
    ads=st.integers(5, 8),
    entries=st.integers(1, 3),
    ratio=RATIOS,
    data=st.data(),
)
def test_no_plan_gains_more_than_the_optimum(
    seed: int, requests: int, phrases: int, ads: int, entries: int, ratio: float, data: st.DataObject
) -> None:
    log = random_log(seed, requests=requests, phrases=phrases, ads=ads)
    first = data.draw(st.integers(0, requests - 1))
    resident = residency(log.phrase, entries)
    found = gain_usd(log, optimum(log, resident, first, ratio), first, ratio)
    best = max(gain_usd(log, plan, first, ratio) for plan in plans(log, resident))
    assert found == pytest.approx(best, rel=1e-9, abs=1e-12)


def best_gain_usd(log: RequestLog, resident: NDArray[np.bool_], first: int, ratio: float) -> float:
    """The greatest gain, by the textbook: best[i] is what a chain gains once list i was computed."""
    price, values = price_usd(log, first, ratio), lists(log)
    total = 0.0
    for phrase in np.unique(log.phrase):
        requests = np.flatnonzero(log.phrase == phrase)
        for chain in np.split(requests, np.flatnonzero(~resident[requests])):
            best = np.zeros(len(chain))
            for i in range(len(chain) - 1, -1, -1):
                gained = 0.0
                for j in range(i + 1, len(chain)):
                    best[i] = max(best[i], gained + best[j])
                    if chain[j] >= first:
                        loss = loss_usd(values[chain[j]], values[chain[i]])
                        gained += price * float(log.cost[chain[j]]) - loss
                best[i] = max(best[i], gained)
            total += best[0] if len(chain) else 0.0
    return total


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), phrases=st.integers(1, 8), ads=st.integers(10, 20), ratio=RATIOS)
def test_dropping_lists_that_cannot_win_costs_nothing(
    seed: int, phrases: int, ads: int, ratio: float
) -> None:
    log = random_log(seed, requests=250, phrases=phrases, ads=ads, longest=10)
    resident = residency(log.phrase, 5)
    found = gain_usd(log, optimum(log, resident, 40, ratio), 40, ratio)
    assert found == pytest.approx(best_gain_usd(log, resident, 40, ratio), rel=1e-9, abs=1e-12)


@given(seed=st.integers(0, 10**6), entries=st.integers(1, 8), ratio=RATIOS)
def test_the_clairvoyant_serves_where_the_loss_is_at_most_the_cost(
    seed: int, entries: int, ratio: float
) -> None:
    log = random_log(seed, requests=200)
    resident = residency(log.phrase, entries)
    plan = clairvoyant(log, resident, 20, ratio)
    price, values = price_usd(log, 20, ratio), lists(log)
    cached: dict[int, int] = {}
    for i, phrase in enumerate(log.phrase.tolist()):
        if resident[i]:
            loss, worth = loss_usd(values[i], values[cached[phrase]]), price * float(log.cost[i])
            if loss != pytest.approx(worth):
                assert (plan[i] != i) == (loss < worth)
        else:
            assert plan[i] == i
        cached[phrase] = int(plan[i])


@pytest.mark.parametrize("ratio", [0.2, 0.6, 1.5])
def test_the_optimum_is_above_every_design_and_the_clairvoyant(ratio: float) -> None:
    """By the figures of the engine, on chains long enough for lists to be dropped."""
    log = random_log(3, requests=6000, phrases=25, ads=60, longest=12)
    entries, first = 20, 1500
    resident = residency(log.phrase, entries)
    best = replayed("optimum", log, resident, optimum(log, resident, first, ratio), first)
    others = [replayed("clairvoyant", log, resident, clairvoyant(log, resident, first, ratio), first)]
    others += [
        simulate(log, design, entries, warmup=first)
        for design in DESIGNS.values()
        if design.key == "phrase" and not design.merge
    ]
    for other in others:
        assert other.net_profit(ratio) <= best.net_profit(ratio) + 1e-9, other.design
    assert best.net_profit(ratio) > max(other.net_profit(ratio) for other in others) > 0


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), entries=st.integers(1, 8))
def test_a_replayed_design_has_the_figures_of_the_design(seed: int, entries: int) -> None:
    log = random_log(seed, requests=300)
    resident, first = residency(log.phrase, entries), 50
    wanted = simulate(log, DESIGNS["two_level"], entries, warmup=first)
    cached: dict[int, int] = {}
    plan = np.arange(len(resident))
    for i, phrase in enumerate(log.phrase.tolist()):
        plan[i] = cached[phrase] if wanted.decisions[i] == HIT else i
        cached[phrase] = int(plan[i])
    found = replayed("plan", log, resident, plan, first)
    assert found.decisions.tolist() == wanted.decisions.tolist()
    assert found.sums.tolist() == pytest.approx(wanted.sums.tolist())
