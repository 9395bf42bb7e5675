"""The rule of predicted refresh, what it remembers, and the rows that models are trained on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulator_logs import random_log

from loadtest.request_log.schema import RequestLog
from loadtest.simulator.traffic import traffic
from services.core.refresh import features, predicted
from services.core.refresh.features import CONTEXTS, KEY, LEDGER, MEMORY, OURS, WWW18, Computed, Request
from services.core.refresh.predicted import PROBE, REFRESH, REUSE, Rule
from services.core.refresh.replay import PUBLISHED_EVERY, Rows, training_rows


def request(time_ms: int, location: int = 1, age: int = 1) -> Request:
    return Request(time_ms, location, 1, age, 1, np.nan)


def computed(loss_usd: float, value_usd: float = 2.0, cost: float = 100.0) -> Computed:
    return Computed(5, value_usd, 0.3, cost, loss_usd, np.nan if np.isnan(loss_usd) else 0.5)


def ours(keys: Any, asked: Request, mean_cost: float = 50.0) -> dict[str, float]:
    out = np.zeros(len(OURS))
    features.ours(keys, 0, asked, mean_cost, out)
    return dict(zip(OURS, out.tolist(), strict=True))


def ledger(**sums: float) -> Any:
    row = np.zeros(1, LEDGER)
    for name, value in sums.items():
        row[0][name] = value
    return row


PRICED = Rule(0.2, 0.1, 0.01, np.nan)


def test_a_hit_refreshes_when_the_loss_exceeds_the_price_of_its_own_cost() -> None:
    known = ledger(requests=1000.0, revenue_usd=500.0, cost=100_000.0)  # .2 x 500 / 100,000 = .001 USD a unit
    assert predicted.price_usd(known, 0.2) == pytest.approx(0.001)
    for cost in (50.0, 400.0):
        assert predicted.decide(0.99 * cost * 0.001, cost, known, PRICED, 0.5) == REUSE
        assert predicted.decide(1.01 * cost * 0.001, cost, known, PRICED, 0.5) == REFRESH


def test_a_list_that_costs_nothing_is_refreshed_only_above_the_floor() -> None:
    known = ledger(requests=1000.0, revenue_usd=500.0, cost=100_000.0)  # mean cost 100, floor 10
    assert predicted.decide(0.009, 0.0, known, PRICED, 0.5) == REUSE
    assert predicted.decide(0.011, 0.0, known, PRICED, 0.5) == REFRESH


def test_a_share_of_what_would_be_served_is_probed() -> None:
    known = ledger(requests=1000.0, revenue_usd=500.0, cost=100_000.0)
    assert predicted.decide(0.0, 100.0, known, PRICED, 0.0099) == PROBE
    assert predicted.decide(0.0, 100.0, known, PRICED, 0.0101) == REUSE


def test_a_threshold_decides_whatever_the_cost() -> None:
    rule = PRICED._replace(threshold_usd=0.3)
    for cost in (0.0, 1e9):
        assert predicted.decide(0.31, cost, ledger(), rule, 0.0) == REFRESH
        assert predicted.decide(0.30, cost, ledger(), rule, 0.0) == REUSE


def test_probes_correct_a_model_that_predicts_half_of_what_serving_loses() -> None:
    known = ledger(requests=1000.0, revenue_usd=500.0, cost=100_000.0)
    assert predicted.correction(known) == 1.0
    for _ in range(10_000):
        predicted.note_probe(known, 0.1, 0.2)
    assert predicted.correction(known) == pytest.approx(2.0, rel=0.03)
    assert predicted.decide(0.06, 100.0, known, PRICED, 0.5) == REFRESH  # .06 alone is below the price of .1


def test_negative_predictions_count_as_none() -> None:
    known = ledger(requests=1000.0, revenue_usd=500.0, cost=100_000.0)
    predicted.note_probe(known, -5.0, 5.0)
    assert predicted.correction(known) == pytest.approx(2.0)  # (5 + 5) / (0 + 5), the prior being 10 x .5 USD


def test_losses_are_kept_apart_for_contexts_that_were_computed_lately() -> None:
    keys = np.zeros(1, KEY)
    features.on_computed(keys, 0, request(0, location=1), computed(np.nan))
    assert np.isnan(ours(keys, request(1, location=1))["known_loss_usd"])
    features.on_computed(keys, 0, request(1, location=1), computed(0.1))
    features.on_computed(keys, 0, request(2, location=2), computed(0.9))
    seen = ours(keys, request(3, location=1))
    assert (seen["known_loss_usd"], seen["other_loss_usd"]) == pytest.approx((0.1, 0.9))
    assert seen["context_place"] == 1
    assert (seen["same_location"], seen["same_age"]) == (0.0, 1.0)
    assert ours(keys, request(3, location=7))["context_place"] == CONTEXTS


def test_a_list_that_was_evicted_takes_its_contexts_along_but_not_its_statistics() -> None:
    keys = np.zeros(1, KEY)
    features.on_computed(keys, 0, request(0, location=1), computed(np.nan))
    features.on_computed(keys, 0, request(1, location=1), computed(0.1))
    features.on_computed(keys, 0, request(2, location=2), computed(np.nan))
    seen = ours(keys, request(3, location=1))
    assert seen["context_place"] == CONTEXTS
    assert seen["known_loss_usd"] == pytest.approx(0.1)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=3 * MEMORY))
def test_means_are_exact_at_first_and_then_forget(losses: list[float]) -> None:
    keys = np.zeros(1, KEY)
    for loss_usd in losses:
        features.on_computed(keys, 0, request(0), computed(loss_usd))
    mean = ours(keys, request(0))["known_loss_usd"] if len(losses) > 1 else losses[0]
    recent = losses[1:]  # the first is for a context that was not known
    if 0 < len(recent) <= MEMORY:
        assert mean == pytest.approx(np.mean(recent))
    assert min(losses) - 1e-9 <= mean <= max(losses) + 1e-9


@given(st.integers(0, 1000), st.floats(0.1, 100))
def test_features_do_not_depend_on_the_unit_of_cost(seed: int, unit: float) -> None:
    made = []
    for factor in (1.0, unit):
        keys, known = np.zeros(1, KEY), np.zeros(1, LEDGER)
        draws = np.random.default_rng(seed)
        for i in range(20):
            loss = np.nan if i == 0 else draws.random()
            predicted.learn(keys, 0, request(i), computed(loss, cost=factor * draws.random()), known)
        made.append(ours(keys, request(20), predicted.mean_cost(known)))
        loss_usd = float(np.random.default_rng(seed + 1).random())
        made[-1]["decision"] = predicted.decide(loss_usd, keys[0]["cost"], known, PRICED, 1.0)
    assert made[0] == pytest.approx(made[1], nan_ok=True)


def reference(log: RequestLog, by_clicks: bool, capacity: int, seed: int) -> list[list[float]]:
    """Request, dense and click loss of every row, by the essay of `replay.py`."""
    given = traffic(log)
    random = np.random.default_rng(seed)
    rates = 0.01 ** random.random(int(log.phrase.max()) + 1)
    uniform = random.random(1 if by_clicks else len(log.phrase))
    lists: dict[int, list[int]] = {}
    served: dict[int, int] = {}
    out = []
    for i, phrase in enumerate(log.phrase.tolist()):
        part = slice(log.offsets[i], log.offsets[i + 1])
        fresh = log.ads[part].tolist()
        refresh = True
        if phrase in lists:
            lacking = ~np.isin(log.ads[part], lists[phrase])
            loss = float(given.value_usd[part][lacking].sum(dtype=np.float64))
            clicked = float(given.click_usd[part][lacking].sum(dtype=np.float64))
            out.append([i, loss, clicked])
            if by_clicks:
                refresh = clicked > 0 or served[phrase] + 1 >= PUBLISHED_EVERY
            else:
                refresh = bool(uniform[i] < rates[phrase])
        if refresh:
            old = [ad for ad in lists.get(phrase, []) if ad not in fresh] if capacity else []
            lists[phrase] = (fresh + old)[: capacity or None]
            served[phrase] = 0
        else:
            served[phrase] += 1
    return out


@pytest.mark.parametrize("by_clicks", [False, True])
@pytest.mark.parametrize("capacity", [0, 7])
@pytest.mark.parametrize("published", [False, True])
def test_training_rows_hold_what_serving_would_lose(by_clicks: bool, capacity: int, published: bool) -> None:
    log = random_log(5, requests=400, phrases=5, ads=15)
    rows = training_rows(
        traffic(log), 400, published=published, by_clicks=by_clicks, merge_ads=capacity, seed=3
    )
    expected = np.array(reference(log, by_clicks, capacity, 3))
    np.testing.assert_array_equal(rows.request, expected[:, 0])
    np.testing.assert_allclose(rows.loss_usd, expected[:, 1], rtol=1e-6)
    np.testing.assert_allclose(rows.click_loss_usd, expected[:, 2], rtol=1e-6)
    assert rows.features.shape == (len(expected), len(WWW18 if published else OURS))
    assert 0 < np.count_nonzero(rows.loss_usd) < len(expected)


def test_training_rows_know_nothing_of_later_requests() -> None:
    log = random_log(6, requests=300)
    whole, part = (
        training_rows(traffic(log), last, published=False, by_clicks=False, merge_ads=8, seed=1)
        for last in (300, 200)
    )
    count = len(part.request)
    assert 0 < count < len(whole.request)
    for name in Rows._fields:
        np.testing.assert_array_equal(getattr(part, name), getattr(whole, name)[:count])
