"""The simulator's auction against the one that the scoring service runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulator_logs import random_log

from loadtest.simulator.auction import market, position_of, revenue_usd
from services.core.auction import POSITION_EXPONENT, Account, LiveAd, Viewer, run_auction

candidates = st.lists(
    st.tuples(st.integers(1, 10**7), st.floats(0, 1, width=32)),
    max_size=12,
    unique_by=lambda pair: pair[0] * pair[1],
)


@given(candidates, st.integers(1, 6), st.integers(1, 10**6))
def test_revenue_is_that_of_the_live_auction(
    made: list[tuple[int, float]], slots: int, reserve_micros: int
) -> None:
    bids, estimates = [pair[0] for pair in made], [pair[1] for pair in made]
    live = {i: LiveAd(i, "", "", Account(""), bid) for i, bid in enumerate(bids)}
    placements = run_auction(range(len(made)), estimates, live, Viewer(), slots, reserve_micros)
    wanted = sum(p.click_probability * p.price_micros / 1e6 for p in placements)
    factors = np.arange(1, slots + 1, dtype=np.float64) ** POSITION_EXPONENT
    at = np.array(estimates, np.float64)
    usd = np.array(bids, np.float64) / 1e6
    earned = revenue_usd(at, usd, at, np.zeros(len(made)), len(made), factors, reserve_micros / 1e6)
    assert earned == pytest.approx(wanted, rel=1e-9, abs=1.1e-6 * slots)  # prices are whole micro-dollars


def test_the_market_is_what_the_log_shows() -> None:
    log = random_log(7, requests=400, longest=6)
    shown = log.charge_usd > 0
    trade = market(log)
    per_request = [shown[a:b].sum() for a, b in zip(log.offsets, log.offsets[1:], strict=False)]
    assert trade.factors == pytest.approx(np.arange(1, max(per_request) + 1) ** POSITION_EXPONENT)
    assert trade.reserve_usd == log.charge_usd[shown].min()


def test_a_log_that_shows_nothing_has_one_position_and_no_reserve() -> None:
    log = random_log(7)
    log.charge_usd[:] = 0
    trade = market(log)
    assert (len(trade.factors), trade.reserve_usd, trade.truth) == (1, 0.0, 1.0)


def test_positions_are_ranks_by_score_among_the_shown() -> None:
    bids = np.array([1, 9, 2, 4], np.float32)
    charges = np.array([0.1, 0, 0.1, 0.1], np.float32)
    equal = np.full(4, 0.5, np.float32)
    assert [position_of(ad, 0, 4, equal, bids, charges) for ad in (0, 2, 3)] == [2, 1, 0]
