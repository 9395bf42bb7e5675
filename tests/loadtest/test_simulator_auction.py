"""The simulator's auction against the one that the scoring service runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from simulator_logs import random_log

from loadtest.simulator.auction import Market, market, position_of, revenue_usd
from services.core.auction import POSITION_EXPONENT, Account, LiveAd, Viewer, run_auction

candidates = st.lists(
    st.tuples(st.integers(1000, 10**7), st.floats(0.0078125, 1, width=32), st.booleans()),
    min_size=1,
    max_size=12,
    unique_by=lambda candidate: candidate[0] * candidate[1],
)


@given(candidates, st.integers(1, 6), st.sampled_from([1, 500]))
def test_what_is_left_earns_as_in_the_live_auction(
    made: list[tuple[int, float, bool]], slots: int, reserve_micros: int
) -> None:
    """The shown ads that are served, and the first ad not shown, auctioned alone."""
    live = {i: LiveAd(i, "", "", Account(""), bid) for i, (bid, _, _) in enumerate(made)}
    estimates = [estimate for _, estimate, _ in made]
    placements = run_auction(range(len(made)), estimates, live, Viewer(), slots, reserve_micros)
    order = [placement.ad.ad_id for placement in placements]
    factors = np.arange(1, slots + 1, dtype=np.float64) ** POSITION_EXPONENT
    earned = revenue_usd(
        np.array([estimates[ad] for ad in order]),
        np.array([made[ad][0] / 1e6 for ad in order]),
        np.array([placement.price_micros / 1e6 for placement in placements]),
        np.array([placement.click_probability for placement in placements]),
        np.array([made[ad][2] for ad in order]),
        len(order),
        Market(factors, reserve_micros / 1e6),
    )
    outside = max(set(range(len(made))) - set(order), key=lambda ad: made[ad][0] * made[ad][1], default=None)
    left = [ad for ad in order if made[ad][2]]
    assume(left)
    field = left if outside is None else [*left, outside]
    again = run_auction(field, [estimates[ad] for ad in field], live, Viewer(), len(left), reserve_micros)
    wanted = sum(placement.click_probability * placement.price_micros / 1e6 for placement in again)
    assert earned == pytest.approx(wanted, rel=1e-5, abs=1.3e-4 * slots)  # prices are whole micro-dollars


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
    assert (len(trade.factors), trade.reserve_usd) == (1, 0.0)


def test_positions_are_ranks_by_score_among_the_shown() -> None:
    bids = np.array([1, 9, 2, 4], np.float32)
    charges = np.array([0.1, 0, 0.1, 0.1], np.float32)
    equal = np.full(4, 0.5, np.float32)
    assert [position_of(ad, 0, 4, equal, bids, charges) for ad in (0, 2, 3)] == [2, 1, 0]
