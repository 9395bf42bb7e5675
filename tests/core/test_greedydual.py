"""GreedyDual against a model that keeps every entry in a list and sorts it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.core.eviction.greedydual import GreedyDual
from services.core.eviction.order import Entry, Order
from services.core.eviction.priority import MAX_PRIORITY

keys = st.sampled_from([b"k%d" % n for n in range(12)])
sizes = st.one_of(st.integers(0, 100), st.integers(2**31 - 2, 2**33))
costs = st.one_of(st.integers(0, 5), st.integers(0, 2**40))


@dataclass
class Row:
    priority: int
    used: int
    size_bytes: int
    cost: int
    credit: int


class Model:
    """Young's algorithm on a plain dictionary."""

    def __init__(self) -> None:
        self.clock = 0
        self.uses = 0
        self.rows: dict[bytes, Row] = {}

    def order(self) -> list[Entry]:
        ranked = sorted(self.rows.items(), key=lambda item: (item[1].priority, item[1].used))
        return [Entry(key, row.priority, row.size_bytes, row.cost) for key, row in ranked]


class GreedyDualMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.order: Order = GreedyDual()
        self.model = Model()

    def _use(self) -> int:
        self.model.uses += 1
        return self.model.uses

    @rule(key=keys, size=sizes, cost=costs)
    def admit(self, key: bytes, size: int, cost: int) -> None:
        priority = min(self.model.clock + cost, MAX_PRIORITY)
        assert self.order.admit(key, size, cost) == priority
        self.model.rows[key] = Row(priority, self._use(), size, cost, cost)

    @rule(key=keys)
    def hit(self, key: bytes) -> None:
        row = self.model.rows.get(key)
        if row is None:
            assert self.order.hit(key) is None
            return
        row.priority = max(row.priority, min(self.model.clock + row.credit, MAX_PRIORITY))
        row.used = self._use()
        assert self.order.hit(key) == row.priority

    @rule(key=keys)
    def remove(self, key: bytes) -> None:
        assert self.order.remove(key) == (self.model.rows.pop(key, None) is not None)

    @rule()
    def pop(self) -> None:
        ranked = self.model.order()
        victim = self.order.pop()
        if not ranked:
            assert victim is None
            return
        assert victim == ranked[0]
        del self.model.rows[victim.key]
        self.model.clock = max(self.model.clock, victim.priority)

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data(), priority=costs)
    def set_priority(self, data: st.DataObject, priority: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.model.rows)))
        self.order.set_priority(key, priority)
        self.model.rows[key].priority = priority
        self.model.rows[key].used = self._use()

    @rule(entries=st.lists(st.tuples(keys, sizes, costs), max_size=4))
    def restore(self, entries: list[tuple[bytes, int, int]]) -> None:
        self.order.restore(entries)
        for key, size, priority in entries:
            if key not in self.model.rows:
                credit = max(priority - self.model.clock, 0)
                self.model.rows[key] = Row(priority, self._use(), size, 0, credit)

    @rule(clock=costs)
    def advance(self, clock: int) -> None:
        self.order.advance(clock)
        self.model.clock = max(self.model.clock, min(clock, MAX_PRIORITY))

    @rule()
    def clear(self) -> None:
        self.order.clear()
        self.model.rows.clear()

    @invariant()
    def agrees(self) -> None:
        ranked = self.model.order()
        assert self.order.head(len(ranked) + 1) == ranked
        assert self.order.head(3) == ranked[:3]
        assert self.order.total_bytes == sum(row.size_bytes for row in self.model.rows.values())
        assert self.order.clock == self.model.clock
        assert len(self.order) == len(ranked)
        assert all(self.order.get(entry.key) == entry and entry.key in self.order for entry in ranked)


TestGreedyDual = GreedyDualMachine.TestCase
TestGreedyDual.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


class Cache:
    """The caller's half of the algorithm: a budget, and eviction until the newcomer fits."""

    def __init__(self, budget_bytes: int) -> None:
        self.order: Order = GreedyDual()
        self.budget_bytes = budget_bytes
        self.evicted: list[bytes] = []

    def request(self, key: bytes, size_bytes: int, cost: int) -> bool:
        if self.order.hit(key) is not None:
            return True
        self.write(key, size_bytes, cost)
        return False

    def write(self, key: bytes, size_bytes: int, cost: int) -> None:
        held = self.order.get(key)
        growth = size_bytes - (held.size_bytes if held else 0)
        while (
            self.order.total_bytes + growth > self.budget_bytes and (victim := self.order.pop()) is not None
        ):
            self.evicted.append(victim.key)
            if victim.key == key:
                growth = size_bytes
        if growth <= self.budget_bytes:
            self.order.admit(key, size_bytes, cost)


def test_equal_costs_are_lru() -> None:
    cache, lru = Cache(3), [b"a", b"b", b"c"]
    for key in lru:
        cache.request(key, 1, 7)
    for key in [b"a", b"d", b"b", b"a", b"e", b"f", b"a", b"g"]:
        if key in lru:
            lru.remove(key)
        else:
            lru.pop(0)
        lru.append(key)
        cache.request(key, 1, 7)
        assert [entry.key for entry in cache.order.head(10)] == lru


def test_one_shot_scan_displaces_a_stale_hot_entry() -> None:
    """However often it was used, an entry without uses leaves when L has risen by its cost."""
    cache = Cache(10)
    for _ in range(1000):
        cache.request(b"hot", 1, 1_000)
    scanned = 0
    while b"hot" in cache.order:
        cache.request(b"scan%d" % scanned, 1, 100)
        scanned += 1
        assert scanned < 1_000
    assert scanned > 9 * 9, "dear entries outlive several turnovers of cheap ones"


def test_growing_an_entry_that_fits_evicts_nobody() -> None:
    cache = Cache(10)
    cache.write(b"a", 4, 1)
    cache.write(b"b", 4, 1)
    cache.write(b"b", 6, 1)
    assert cache.evicted == []
    assert cache.order.total_bytes == 10


def test_sizes_beyond_32_bits_are_summed() -> None:
    cache = Cache(2**34)
    for n in range(9):
        cache.write(b"%d" % n, 2**31 + 1, 1)
        assert cache.order.total_bytes <= 2**34
    assert len(cache.order) == 7


def test_an_item_larger_than_the_cache_never_leaves_it_over_budget() -> None:
    cache = Cache(10)
    cache.write(b"a", 4, 1)
    cache.write(b"huge", 11, 2**40)
    assert cache.order.total_bytes <= 10
    assert b"huge" not in cache.order


def test_dear_entries_outlive_cheap_ones_in_a_full_cache() -> None:
    cache = Cache(100)
    for n in range(50):
        cache.request(b"dear%d" % n, 1, 350)
        cache.request(b"cheap%d" % n, 1, 10)
    for n in range(50):
        cache.request(b"new%d" % n, 1, 10)
    assert {key[:4] for key in cache.evicted} == {b"chea"}


def test_priorities_saturate_and_fall_back_to_recency() -> None:
    order = GreedyDual()
    order.advance(MAX_PRIORITY)
    assert order.admit(b"a", 1, 2**40) == order.admit(b"b", 1, 5) == MAX_PRIORITY
    assert order.hit(b"a") == MAX_PRIORITY
    assert [entry.key for entry in order.head(2)] == [b"b", b"a"]


def test_a_restored_entry_is_raised_by_what_it_was_ahead_of_the_clock() -> None:
    order = GreedyDual()
    order.advance(100)
    order.restore([(b"a", 1, 100), (b"b", 1, 150)])
    order.advance(130)
    assert order.hit(b"b") == 180
    assert order.hit(b"a") == 130


def test_dead_items_do_not_pile_up() -> None:
    """A write that costs less than the last one leaves a dead item in the heap; hits leave none."""
    order = GreedyDual()
    for n in range(100):
        order.admit(b"%d" % n, 1, 10**6)
    for cost in range(10**5, 10**5 - 200, -1):
        for n in range(100):
            order.admit(b"%d" % n, 1, cost)
            order.hit(b"%d" % n)
    assert len(order._heap) <= 2 * 100 + 65


@pytest.mark.parametrize(("size", "cost"), [(-1, 0), (0, -1)])
def test_negative_numbers_are_refused(size: int, cost: int) -> None:
    with pytest.raises(ValueError, match="at least 0"):
        GreedyDual().admit(b"a", size, cost)
