"""The orders of a live cache: placed, lifted, restored and cleared, against their naive models."""

from __future__ import annotations

import numpy as np
import pytest
from core.eviction_models import GreedyDualModel, Row
from core.machines import case
from core.test_eviction_orders import OrderMachine, costs, keys, sizes
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from services.core.eviction.batches import ADMIT, HIT, LOOK, PLACE, REMOVE
from services.core.eviction.keyed import Entry, KeyedOrder
from services.core.eviction.orders import NAMES
from services.core.eviction.priority import LIVE, MAX_PRIORITY
from services.core.eviction.rules import Rule
from services.core.eviction.table import packed
from services.core.eviction.values import MOST_WORTH

priorities = st.one_of(st.integers(0, 5_000), st.integers(0, MAX_PRIORITY))


class LiveMachine(OrderMachine):
    model: GreedyDualModel

    @rule(entries=st.lists(st.tuples(keys, sizes, costs, priorities), max_size=4))
    def restore(self, entries: list[tuple[bytes, int, int, int]]) -> None:
        law, clock = self.order.rule, self.order.clock
        self.order.restore([Entry(key, priority, size, cost) for key, size, cost, priority in entries])
        for key, size, cost, priority in entries:
            new = Row(key, size, cost or min(law.cost(priority - clock, size), 2**60))
            self.model.place(self.model.rows.get(key, new), priority)

    @rule(key=keys, size=sizes, cost=costs, priority=priorities)
    def admit_at_least(self, key: bytes, size: int, cost: int, priority: int) -> None:
        words, ends = packed([key])
        placed = np.array([[priority, 0]])
        operation, columns = np.array([ADMIT], np.uint8), (np.array([cost]), np.array([size]))
        self.order.apply(operation, words, ends, *columns, placed=placed)
        self.model.admit(key, size, cost)
        row = self.model.rows[key]
        if priority > row.priority:
            self.model.place(row, priority)
        assert placed[0, 0] == row.priority

    @rule(clock=priorities)
    def clear(self, clock: int) -> None:
        self.order.clear(clock)
        self.model.rows.clear()
        self.model.clock = max(self.model.clock, clock)
        assert len(self.order) == self.order.total_bytes == 0

    @rule(limit=st.integers(1, 4), enough=st.integers(1, 60))
    def pops(self, limit: int, enough: int) -> None:
        expected: list[bytes] = []
        taken = 0
        while len(expected) < limit and taken < enough and self.model.rows:
            row = self.model.pop()
            expected.append(row.key)
            taken += row.size
        assert [entry.key for entry in self.order.pops(limit, enough)] == expected


TestLiveOurs = case(LiveMachine, name="ours")
TestLiveGdsf = case(LiveMachine, name="gdsf")
TestLiveGdWheel = case(LiveMachine, name="gdwheel")
TestLiveGreedyDual = case(LiveMachine, name="greedydual")


def apply(order: KeyedOrder, operations: list[int], names: list[bytes]) -> list[list[int]]:
    """Operations at cost 700 and size 20; (priority, frequency) of each."""
    words, ends = packed(names)
    ones, placed = np.ones(len(names), np.int64), np.zeros((len(names), 2), np.int64)
    order.apply(np.array(operations, np.uint8), words, ends, 700 * ones, 20 * ones, placed=placed)
    rows: list[list[int]] = placed.tolist()
    return rows


def test_a_batch_tells_where_its_keys_stand() -> None:
    order = KeyedOrder("gdsf")
    told = apply(order, [ADMIT, HIT, LOOK, HIT, REMOVE, LOOK], [b"a", b"a", b"a", b"gone", b"a", b"a"])
    assert told == [[560, 1], [1120, 2], [1120, 2], [-1, -1], [-1, -1], [-1, -1]]


@pytest.mark.parametrize("name", LIVE)
@given(
    cost=st.integers(1, 10**7),
    size=st.integers(1, 10**6),
    uses=st.integers(1, 6),
    clock=st.integers(0, 10**6),
)
@settings(max_examples=30, deadline=None)
def test_the_rule_is_what_the_order_does(name: str, cost: int, size: int, uses: int, clock: int) -> None:
    """A client that knows clock and frequency computes what the order computes, to its rounding."""
    order = KeyedOrder(name, typical_cost=1024, typical_size=1024)
    order.clear(clock)
    priority = order.admit(b"k", size, cost)
    for _ in range(uses - 1):
        hit = order.hit(b"k")
        assert hit is not None
        priority = hit
    told = order.rule.priority(clock, cost, size, uses)
    assert abs(told - priority) <= 1 + 1e-9 * (priority - clock)


@pytest.mark.parametrize("name", LIVE)
def test_a_restored_entry_that_is_used_is_worth_what_it_was(name: str) -> None:
    """Where no report told a cost, the priority implies one: a use lifts the entry as far above L again."""
    order = KeyedOrder(name, typical_cost=1024, typical_size=1024)
    order.clear(1_000_000)
    order.restore([Entry(b"k", 1_900_000, 250, 0), Entry(b"other", 1_000_500, 250, 0)])
    assert [victim.key for victim in order.pops(1, 1)] == [b"other"]
    risen = order.hit(b"k")
    assert risen is not None
    assert abs(risen - 1_900_500) < 0.002 * 900_000


def test_one_absurd_entry_does_not_use_up_the_clock() -> None:
    """Where nothing else is left the clock follows what there is: by 1/1024 of its range at most."""
    order = KeyedOrder("ours")
    order.restore([Entry(b"expiry", MAX_PRIORITY, 100, 0)])
    order.admit(b"cost", 1, 2**40)
    assert {entry.priority for entry in iter(order.pop, None)} == {MOST_WORTH}
    assert order.clock == MOST_WORTH


def test_what_is_remembered_outlives_a_clearing() -> None:
    order = KeyedOrder("ours")
    for operation in (ADMIT, HIT, HIT):
        apply(order, [operation], [b"a"])
    assert order.pop() is not None
    order.clear()
    assert apply(order, [ADMIT, ADMIT], [b"a", b"b"])[0][1] == 4


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(LIVE)))
def test_orders_without_a_priority_of_their_own_are_refused(name: str) -> None:
    order = KeyedOrder(name)
    with pytest.raises(ValueError, match="is none of ours, gdsf"):
        order.restore([Entry(b"a", 1, 1, 1)])
    words, ends = packed([b"a"])
    column = np.ones(1, np.int64)
    with pytest.raises(ValueError, match="of an order of ours"):
        order.apply(np.array([HIT], np.uint8), words, ends, column, column, placed=np.zeros((1, 2), np.int64))
    with pytest.raises(ValueError, match=r"operation 4 is none of 0\.\.3"):
        order.apply(np.array([PLACE], np.uint8), words, ends, column, column)


def test_a_rule_bounds_what_it_gives() -> None:
    assert Rule(4096.0, 1.25, 1.25, 2.0).priority(5, 2**40, 0) == 5 + MOST_WORTH
