"""Costs and sizes against what was published, and against popularity."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from loadtest.eviction.costs import COSTS, GROUPS, SMALL_VALUES, draw_costs, draw_sizes

KEYS = 60_000


def requests_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).zipf(1.6, KEYS).clip(max=10_000).astype(np.int64)


def drawn(model: str, correlation: str = "none", seed: int = 1) -> np.ndarray:
    return draw_costs(model, requests_of(0), correlation, np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("model", "mean"), [("w1", 0.8 * 20 + 0.15 * 150 + 0.05 * 400), ("w2", 136.5), ("w3", 147.5), ("w5", 210)]
)
def test_costs_have_the_mean_of_the_published_groups(model: str, mean: float) -> None:
    costs = drawn(model)
    assert costs.dtype == np.int64
    assert costs.mean() == pytest.approx(mean, rel=0.01)


@pytest.mark.parametrize("model", GROUPS)
def test_groups_have_their_shares_their_ends_and_nothing_between(model: str) -> None:
    costs = drawn(model)
    inside = np.zeros(KEYS, bool)
    for share, low, high in GROUPS[model]:
        group = (costs >= low) & (costs <= high)
        assert group.mean() == pytest.approx(share, abs=0.005)
        assert costs[group].mean() == pytest.approx((low + high) / 2, rel=0.01)
        assert {low, high} <= set(costs[group].tolist())
        inside |= group
    assert inside.all()


def test_lognormal_costs_have_the_quartiles_of_the_bing_log() -> None:
    costs = drawn("lognormal")
    assert np.percentile(costs, 50) == pytest.approx(1456, rel=0.06)
    assert np.percentile(costs, 75) == pytest.approx(3517, rel=0.12)
    assert costs.min() >= 1
    assert costs.max() == 10_100
    assert np.log(costs[costs < 10_100]).std() == pytest.approx(1.21, abs=0.15)


@pytest.mark.parametrize("model", [model for model in COSTS if model != "w4"])
def test_costs_follow_popularity_as_asked_and_keep_their_distribution(model: str) -> None:
    requests = requests_of(0)
    free, up, down = (drawn(model, name) for name in ("none", "positive", "negative"))
    assert abs(spearmanr(requests, free).statistic) < 0.01
    assert 0.3 < spearmanr(requests, up).statistic < 0.51
    assert spearmanr(requests, down).statistic == pytest.approx(-spearmanr(requests, up).statistic, abs=0.03)
    for costs in (up, down):
        assert np.percentile(costs, [10, 40, 60, 90]) == pytest.approx(
            np.percentile(free, [10, 40, 60, 90]), rel=0.05
        )


def test_the_rank_correlation_is_one_half_where_nothing_is_tied() -> None:
    requests = np.random.default_rng(0).permutation(KEYS)
    costs = draw_costs("lognormal", requests, "positive", np.random.default_rng(1))
    assert spearmanr(requests, costs).statistic == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("correlation", ["none", "positive"])
def test_a_seed_gives_the_same_costs_and_another_gives_others(correlation: str) -> None:
    assert np.array_equal(drawn("w1", correlation), drawn("w1", correlation))
    assert not np.array_equal(drawn("w1", correlation), drawn("w1", correlation, seed=2))


def test_meta_sizes_are_those_of_the_etc_pool() -> None:
    sizes = draw_sizes("meta", KEYS, np.random.default_rng(0))
    # Means by the models: key 30.8 + 8.2 (G(1 - k) - 1) / k; value by the table, and 15 + s / (1 - k) beyond.
    key = 30.7984 + 8.20449 * (1.0523 - 1) / 0.078688
    value = sum(k * share for k, share in enumerate(SMALL_VALUES))
    value += (1 - sum(SMALL_VALUES)) * (15 + 214.476 / (1 - 0.348238))
    assert sizes.mean() == pytest.approx(key + value, rel=0.03)
    small = np.median(sizes[sizes < 45])
    assert 30 < small < 42
    assert np.percentile(sizes, 99) > 1000
    assert sizes.min() >= 1


def test_small_values_add_up_to_the_published_share() -> None:
    assert sum(SMALL_VALUES) == pytest.approx(0.44155, abs=1e-9)


def test_unit_sizes_are_ones() -> None:
    assert draw_sizes("unit", 5, np.random.default_rng(0)).tolist() == [1] * 5
