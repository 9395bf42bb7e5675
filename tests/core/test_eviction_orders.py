"""Every compiled order against its naive model, after every step: victims, priorities, clock and bytes."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
from core.eviction_models import MODELS, Model
from core.machines import case
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.core.eviction.batches import REQUEST
from services.core.eviction.keyed import KeyedOrder
from services.core.eviction.orders import NAMES, ORDERS
from services.core.eviction.table import packed

CAPACITY = 2**34
TYPICAL_COST, TYPICAL_SIZE = 40, 10

keys = st.sampled_from([b"k%d" % n for n in range(12)])
sizes = st.one_of(st.integers(0, 30), st.integers(2**31 - 2, 2**33), st.just(CAPACITY + 1))
costs = st.one_of(st.integers(0, 5), st.integers(0, 1_000), st.integers(0, 2**40), st.just(2**40))


class OrderMachine(RuleBasedStateMachine):
    name: str

    def __init__(self) -> None:
        super().__init__()
        # Grows from one entry, and its sketch and ghosts are large enough that twelve keys do not collide.
        self.order = KeyedOrder(
            self.name,
            entries=1 if self.name in ("lru", "greedydual", "gdwheel", "camp") else 4096,
            typical_cost=TYPICAL_COST,
            typical_size=TYPICAL_SIZE,
            secret=1,
        )
        self.model: Model = MODELS[self.name](TYPICAL_COST, TYPICAL_SIZE)

    def held_bytes(self) -> int:
        return sum(row.size for row in self.model.rows.values())

    @rule(key=keys, size=sizes, cost=costs)
    def admit(self, key: bytes, size: int, cost: int) -> None:
        self.order.admit(key, size, cost)
        self.model.admit(key, size, cost)

    @rule(key=keys, size=sizes, cost=costs)
    def request(self, key: bytes, size: int, cost: int) -> None:
        words, ends = packed([key])
        operation, column = np.array([REQUEST], np.uint8), np.array([cost])
        found = self.order.apply(operation, words, ends, column, np.array([size]), CAPACITY)
        assert found[0] == (key in self.model.rows)
        if found[0]:
            self.model.hit(key)
        elif size <= CAPACITY:
            while self.held_bytes() + size > CAPACITY:
                self.model.pop()
            self.model.admit(key, size, cost)

    @rule(key=keys)
    def hit(self, key: bytes) -> None:
        found = key in self.model.rows
        assert (self.order.hit(key) is not None) == found
        if found:
            self.model.hit(key)

    @rule(key=keys)
    def remove(self, key: bytes) -> None:
        found = key in self.model.rows
        assert self.order.remove(key) == found
        if found:
            self.model.remove(key)

    @rule()
    def pop(self) -> None:
        victim = self.order.pop()
        assert (victim is None) == (not self.model.rows)
        if victim is not None:
            row = self.model.pop()
            assert (victim.key, victim.size_bytes, victim.cost) == (row.key, row.size, row.cost)

    @invariant()
    def agrees(self) -> None:
        model = deepcopy(self.model)
        expected = [model.pop() for _ in range(len(model.rows))]
        head = self.order.head(len(expected) + 1)
        assert [entry.key for entry in head] == [row.key for row in expected]
        assert self.order.total_bytes == self.held_bytes()
        assert self.order.clock == self.model.clock
        assert len(self.order) == len(expected)
        for entry in head:
            row = self.model.rows[entry.key]
            assert self.order.get(entry.key) == entry
            assert entry.key in self.order
            assert (entry.size_bytes, entry.cost) == (row.size, row.cost)
            assert entry.priority == row.priority


TestLru = case(OrderMachine, name="lru")
TestGreedyDual = case(OrderMachine, name="greedydual")
TestGdWheel2015 = case(OrderMachine, name="gdwheel2015")
TestGdWheel = case(OrderMachine, name="gdwheel")
TestCamp = case(OrderMachine, name="camp")
TestGdsf = case(OrderMachine, name="gdsf")
TestS3Fifo = case(OrderMachine, name="s3fifo")
TestSieve = case(OrderMachine, name="sieve")
TestWTinyLfu = case(OrderMachine, name="wtinylfu")
TestOurs = case(OrderMachine, name="ours")
TestOursHeap = case(OrderMachine, name="ours-heap")


def test_every_order_has_a_model() -> None:
    assert set(MODELS) == set(NAMES) > set(ORDERS)


@pytest.mark.parametrize("name", NAMES)
def test_an_order_grows_from_one_entry_and_loses_nothing(name: str) -> None:
    """Five thousand entries: arrays, table, arena, sketch and ghosts are enlarged many times."""
    order = KeyedOrder(name, entries=1, key_bytes=1, typical_cost=500, typical_size=10)
    held = [b"key of entry %d" % n for n in range(5_000)]
    words, ends = packed(held)
    ones = np.ones(len(held), np.int64)
    for _ in range(2):
        order.apply(np.full(len(held), REQUEST, np.uint8), words, ends, 7 * ones, 3 * ones)
    assert order.total_bytes == 15_000
    assert len(order) == 5_000
    victims = [victim.key for victim in iter(order.pop, None)]
    assert sorted(victims) == sorted(held)
    assert order.total_bytes == len(order) == 0
    if name in ("lru", "greedydual", "gdwheel", "gdwheel2015", "camp", "gdsf"):
        assert victims == held, "equal costs and sizes: the least recently used first"


@pytest.mark.parametrize("name", NAMES)
def test_bytes_stay_within_the_capacity(name: str) -> None:
    random = np.random.default_rng(3)
    requested = [b"%d" % key for key in random.integers(0, 60, 4_000)]
    words, ends = packed(requested)
    order = KeyedOrder(name, typical_cost=500, typical_size=10)
    cost, size = random.integers(0, 1_000, 4_000), random.integers(0, 40, 4_000)
    for at in range(0, 4_000, 50):
        part = slice(at, at + 50)
        first = ends[at - 1] if at else 0
        operations = np.full(50, REQUEST, np.uint8)
        order.apply(operations, words[first:], ends[part] - first, cost[part], size[part], 100)
        assert order.total_bytes <= 100
    assert order.evictions > 100


def test_bad_input_is_refused_by_name() -> None:
    order = KeyedOrder("lru")
    with pytest.raises(ValueError, match="order 'fifo' is none of lru"):
        KeyedOrder("fifo")
    with pytest.raises(ValueError, match="at least 1"):
        KeyedOrder("lru", entries=0)
    with pytest.raises(ValueError, match=r"sizes: -1\.\.-1"):
        order.admit(b"a", -1, 0)
    with pytest.raises(ValueError, match=r"costs: .* leave 0\.\.2\*\*60"):
        order.admit(b"a", 0, 2**60 + 1)
    with pytest.raises(ValueError, match="65536 bytes are more than 65535"):
        order.admit(b"a" * 65_536, 0, 0)
    words, ends = packed([b"a"])
    column = np.array([1])
    with pytest.raises(ValueError, match=r"operation 9 is none of 0\.\.3"):
        order.apply(np.array([9], np.uint8), words, ends, column, column)
    with pytest.raises(ValueError, match="must have the 2 rows"):
        order.apply(np.zeros(2, np.uint8), words, ends, column, column)
    with pytest.raises(ValueError, match="beyond the 1 words"):
        order.apply(np.zeros(1, np.uint8), words, ends + 1, column, column)
    assert len(order) == 0
