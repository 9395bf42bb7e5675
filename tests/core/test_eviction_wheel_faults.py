"""The four faults of a public GD-Wheel (Caffeine, commits 7ce1c9b and 83aaec1), each with its test.

Each test would fail on an implementation with its fault.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.core.eviction.batches import ADMIT
from services.core.eviction.keyed import KeyedOrder
from services.core.eviction.table import packed

WHEELS = ["gdwheel", "gdwheel2015", "ours"]
EXACT = ["gdwheel", "ours"]


def filled(name: str, costs: list[int]) -> KeyedOrder:
    """Entry n costs costs[n]; all of size 1, each used once."""
    order = KeyedOrder(name, entries=len(costs), typical_cost=200)
    words, ends = packed([b"%d" % n for n in range(len(costs))])
    ones = np.ones(len(costs), np.int64)
    order.apply(np.full(len(costs), ADMIT, np.uint8), words, ends, np.array(costs), ones)
    return order


@pytest.mark.parametrize("name", WHEELS)
@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 255), min_size=2, max_size=60))
def test_caffeine_7ce1c9b_costs_of_one_turn_leave_in_their_order(name: str, costs: list[int]) -> None:
    """Queue numbers modulo the number of wheels, not of queues: 254 of 256 queues were never reached."""
    order = filled(name, costs)
    victims = [(victim.cost, int(victim.key)) for victim in iter(order.pop, None)]
    assert victims == sorted((cost, n) for n, cost in enumerate(costs))


@pytest.mark.parametrize("name", WHEELS)
def test_caffeine_83aaec1_1_the_hand_moves_and_the_dearest_entry_ages(name: str) -> None:
    """Hand 1 was looked from but never moved: L stood still, and what cost much stayed for ever."""
    order = filled(name, [6_000])
    for n in range(20_000):
        order.admit(b"cheap %d" % (n % 50), 1, 100)
        if len(order) > 20:
            order.pop()
        if b"0" not in order:
            break
    assert b"0" not in order
    assert n > 300, "it outlives many turnovers of cheap entries first"


@pytest.mark.parametrize("name", WHEELS)
def test_caffeine_83aaec1_2_ten_thousand_entries_of_one_upper_queue_all_migrate(name: str) -> None:
    """A migration moved at most as many entries as a wheel has queues; the rest missed their turn."""
    order = filled(name, [1_000] * 10_000 + [1_300])
    victims = [int(victim.key) for victim in iter(order.pop, None)]
    assert victims == list(range(10_001))


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 70_000), min_size=2, max_size=40),
    st.lists(st.integers(0, 70_000), min_size=1, max_size=40),
)
def test_caffeine_83aaec1_3_an_entry_migrates_to_where_its_priority_lies(
    name: str, before: list[int], after: list[int]
) -> None:
    """The destination was counted from the hand of the wheel it came from.

    Entries that come while the hands stand apart tell: everything leaves by H, whatever its way down.
    """
    order = filled(name, before)
    order.pop()
    for n, cost in enumerate(after):
        order.admit(b"later %d" % n, 1, cost)
    priorities = [victim.priority for victim in iter(order.pop, None)]
    assert priorities == sorted(priorities)
