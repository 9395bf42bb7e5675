"""The exact optimum against brute force, the clairvoyant heuristic against both, and who may beat whom."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.eviction.bounds import clairvoyant, optimum, previous_requests
from services.core.eviction.orders import ORDERS
from services.core.eviction.replay import replay

KEYS = 5
streams = st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=12)
costs_of_keys = st.lists(st.integers(0, 9), min_size=KEYS, max_size=KEYS)
capacities = st.integers(1, 3)


def least_cost(keys: list[int], costs: list[int], sizes: list[int], capacity: int, held: set[int]) -> int:
    """The least cost of misses, over everything a cache could keep after every request."""

    def fits(content: frozenset[int]) -> bool:
        return sum(sizes[key] for key in content) <= capacity

    def subsets(content: frozenset[int]) -> list[frozenset[int]]:
        found = [frozenset[int]()]
        for key in content:
            found += [kept | {key} for kept in found]
        return [kept for kept in found if fits(kept)]

    @cache
    def cost(at: int, content: frozenset[int]) -> int:
        if at == len(keys):
            return 0
        paid = 0 if keys[at] in content else costs[keys[at]]
        return paid + min(cost(at + 1, kept) for kept in subsets(content | {keys[at]}))

    return min(cost(0, content) for content in subsets(frozenset(held)))


def paid(keys: list[int], costs: list[int], hit: np.ndarray) -> int:
    return int(np.asarray(costs)[np.asarray(keys)][~hit].sum())


@settings(max_examples=60)
@given(streams, costs_of_keys, capacities, st.sets(st.integers(0, KEYS - 1)))
def test_the_optimum_is_what_brute_force_finds(
    keys: list[int], costs: list[int], capacity: int, held: set[int]
) -> None:
    mask = np.isin(np.arange(KEYS), list(held))
    hit = optimum(np.array(keys, np.int32), np.array(costs), capacity, mask)
    assert paid(keys, costs, hit) == least_cost(keys, costs, [1] * KEYS, capacity, held)
    overlaps_at_most(keys, hit, capacity)


def overlaps_at_most(keys: list[int], hit: np.ndarray, capacity: int) -> None:
    """What is kept between two requests fits, so a cache can do it."""
    previous = previous_requests(np.array(keys, np.int32))
    kept = [(previous[at], at) for at in np.flatnonzero(hit)]
    for gap in range(len(keys)):
        assert sum(begin < gap <= end for begin, end in kept) <= capacity


@settings(max_examples=100)
@given(streams, capacities)
def test_with_equal_costs_and_sizes_the_clairvoyant_policy_is_optimal(keys: list[int], capacity: int) -> None:
    ones = np.ones(KEYS, np.int64)
    hit, _ = clairvoyant(np.array(keys, np.int32), 7 * ones, ones, capacity)
    assert paid(keys, [7] * KEYS, hit) == least_cost(keys, [7] * KEYS, [1] * KEYS, capacity, set())


@settings(max_examples=60)
@given(streams, costs_of_keys, st.lists(st.integers(1, 4), min_size=KEYS, max_size=KEYS), capacities)
def test_the_clairvoyant_policy_is_one_that_a_cache_can_follow(
    keys: list[int], costs: list[int], sizes: list[int], capacity: int
) -> None:
    hit, evictions = clairvoyant(np.array(keys, np.int32), np.array(costs), np.array(sizes), capacity)
    assert paid(keys, costs, hit) >= least_cost(keys, costs, sizes, capacity, set())
    assert 0 <= evictions <= len(keys)
    previous = previous_requests(np.array(keys, np.int32))
    for gap in range(1, len(keys)):
        kept = sum(sizes[keys[at]] for at in np.flatnonzero(hit) if previous[at] < gap <= at)
        assert kept <= capacity


def test_no_order_beats_the_optimum_and_the_clairvoyant_policy_lies_between() -> None:
    random = np.random.default_rng(3)
    keys = random.zipf(1.2, 6000).clip(max=500).astype(np.int32) - 1
    costs, ones = random.integers(1, 400, 500), np.ones(500, np.int64)
    best = paid(keys.tolist(), costs.tolist(), optimum(keys, costs, 60, np.zeros(500, bool)))
    seer = paid(keys.tolist(), costs.tolist(), clairvoyant(keys, costs, ones, 60)[0])
    assert best <= seer
    assert seer < 1.1 * best, "the heuristic is worth its name"
    for order in ORDERS:
        assert seer < paid(keys.tolist(), costs.tolist(), replay(order, keys, costs, ones, 60).hit), order


def test_the_cheap_and_far_is_let_go_first() -> None:
    keys = np.array([0, 1, 2, 1, 0, 2], np.int32)
    ones = np.ones(3, np.int64)
    for costs, missed_again in (([9, 1, 1], 2), ([1, 1, 9], 0), ([5, 5, 5], 2)):
        hit, evictions = clairvoyant(keys, np.array(costs), ones, 2)
        assert evictions == 1
        assert keys[3:][~hit[3:]].tolist() == [missed_again]


@pytest.mark.parametrize("capacity", [3, 10**9])
def test_what_all_fits_is_missed_only_once(capacity: int) -> None:
    keys = np.array([0, 1, 2, 0, 1, 2], np.int32)
    costs, ones = np.array([1, 2, 3]), np.ones(3, np.int64)
    assert optimum(keys, costs, capacity, np.zeros(3, bool)).tolist() == [False] * 3 + [True] * 3
    assert clairvoyant(keys, costs, ones, capacity)[0].tolist() == [False] * 3 + [True] * 3
    assert optimum(keys, costs, capacity, np.ones(3, bool)).all()


def test_an_entry_larger_than_the_cache_and_costs_of_zero_and_2_to_the_40() -> None:
    keys = np.array([0, 1, 2, 0, 1, 2], np.int32)
    hit, _ = clairvoyant(keys, np.array([2**40, 0, 1]), np.array([2**33, 1, 1]), 1)
    assert hit.tolist() == [False] * 5 + [True]
