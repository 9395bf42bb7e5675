"""The ledger against a Redis that loses, delays and rewrites: it converges, and never evicts what changed."""

from __future__ import annotations

import pytest
from core.machines import case
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.core.eviction.keyed import KeyedOrder
from services.core.eviction.priority import EXPIRE_LIMIT_MS, MAX_PRIORITY, expire_at_ms, priority_of
from services.core.eviction.values import MOST_WORTH
from services.eviction.answers import GONE, IMMORTAL, UNLINKED, Found
from services.eviction.events import Event
from services.eviction.key_classes import KeyClasses
from services.eviction.ledger import Ledger
from services.runtime.errors import ConfigError

PREFIX, LEASE = b"p:", b"p:~lease"
keys = st.sampled_from([PREFIX + name for name in (b"0", b"1", b"2", b"3", b"4", b"pin1", b"least1")])
costs = st.one_of(st.integers(0, 20), st.integers(0, 2**40))


def ledger_of(order: str, classes: str = "") -> Ledger:
    keyed = KeyedOrder(order, typical_cost=1_024, typical_size=1_024)
    return Ledger(PREFIX, keyed, KeyClasses(PREFIX, classes), LEASE)


class LedgerMachine(RuleBasedStateMachine):
    """`redis` is what the server holds: key -> expiry, IMMORTAL without one."""

    order: str

    def __init__(self) -> None:
        super().__init__()
        self.ledger = ledger_of(self.order, "pin=pin, least=70")
        self.redis: dict[bytes, int] = {}
        self.sequence = 0
        self.late: list[Event] = []

    @rule(key=keys, cost=costs, late=st.booleans())
    def client_writes(self, key: bytes, cost: int, late: bool) -> None:
        self.sequence += 1
        self.redis[key] = expire_at_ms(min(self.ledger.order.clock + cost, MAX_PRIORITY), self.sequence)
        event = Event(key, 10, cost, self.redis[key])
        if late:
            self.late.append(event)
        else:
            self.ledger.apply([event])

    @rule(key=keys, lives_until_ms=st.integers(1, 2**41))
    def somebody_writes_it_with_a_time_to_live(self, key: bytes, lives_until_ms: int) -> None:
        self.redis[key] = lives_until_ms

    @rule(count=st.integers(1, 4), reads=st.lists(keys, max_size=4))
    def late_reports_arrive_with_reads(self, count: int, reads: list[bytes]) -> None:
        events = self.late[:count] + [Event(key, 0, 0, 0) for key in reads]
        del self.late[:count]
        self.ledger.apply(events)

    @rule(key=keys)
    def redis_loses(self, key: bytes) -> None:
        self.redis.pop(key, None)

    @rule(key=keys)
    def somebody_sets_it_plainly(self, key: bytes) -> None:
        self.redis[key] = IMMORTAL

    @rule(arrives=st.booleans())
    def rise(self, arrives: bool) -> None:
        rises = self.ledger.take_rises(4)
        if not arrives:
            self.ledger.return_rises(rises)
            return
        for rise in rises:
            held = self.redis.get(rise.key, GONE)
            assert rise.target_ms > rise.held_ms
            if 0 < held < rise.target_ms:
                self.redis[rise.key] = rise.target_ms
        self.ledger.settle_rises(rises, [self.redis.get(rise.key, GONE) for rise in rises])

    @rule(count=st.integers(1, 4), answered=st.booleans())
    def evict(self, count: int, answered: bool) -> None:
        head = [entry.key for entry in self.ledger.order.head(count)]
        victims = self.ledger.take_victims(1 << 40, count)
        assert [victim.entry.key for victim in victims] == head
        answers = []
        for key, expected in ((v.entry.key, v.expected_ms) for v in victims):
            held = self.redis.get(key, GONE)
            if held == expected:
                del self.redis[key]
                held = UNLINKED
            answers.append(held)
        if answered:
            settled = self.ledger.settle_victims(victims, answers)
            assert settled.unlinked == answers.count(UNLINKED)
            assert settled.gone == answers.count(GONE)
            assert settled.immortal == answers.count(IMMORTAL)
            assert sum(settled) == len(victims)
        else:
            self.ledger.return_victims(victims)

    @rule()
    def sweep(self) -> None:
        foreign = {b"other": 5, LEASE: IMMORTAL, PREFIX + b"x" * 65_536: 5}
        found = [Found(key, expiry, 10, -1) for key, expiry in (self.redis | foreign).items()]
        self.ledger.recall([item.key for item in found])
        self.ledger.learn(found)
        for key in self.ledger.to_pin:
            if key in self.redis:
                self.redis[key] = IMMORTAL
        self.ledger.to_pin.clear()
        for item in map(self.ledger.repaired, self.ledger.immortal):
            if self.redis.get(item.key) == IMMORTAL:
                self.redis[item.key] = item.expiry_ms
                self.ledger.learn([item])
        self.ledger.immortal.clear()

    @invariant()
    def books_balance(self) -> None:
        entries = self.ledger.order.head(100)
        assert len(entries) == len(self.ledger)
        for entry in entries:
            held = self.ledger.held_ms(entry.key)
            assert held is not None
            assert entry.key.startswith(PREFIX)
            assert entry.key != LEASE
            assert not entry.key.startswith(PREFIX + b"pin")

    def teardown(self) -> None:
        """Once nothing happens any more, a few rounds make ledger and Redis agree, and everything can go."""
        for _ in range(20):
            self.sweep()
            self.rise(True)
        for entry in self.ledger.order.head(100):
            # A write whose report is lost or overtaken may stand lower; its eviction is skipped once.
            known = self.redis.get(entry.key) == self.ledger.held_ms(entry.key)
            if known and self.redis[entry.key] > 2**41:
                assert priority_of(self.redis[entry.key]) >= entry.priority, "Redis has heard of every rise"
        for _ in range(50):
            self.evict(4, True)
            self.sweep()
        assert all(key.startswith(PREFIX + b"pin") for key in self.redis)
        assert {e for e in self.redis.values() if e > 2**41} == set(), "pinned keys have no priority to go by"
        assert not len(self.ledger)
        assert self.ledger.order.total_bytes == 0


TestLedgerOfOurs = case(LedgerMachine, order="ours", examples=30)
TestLedgerOfGreedyDual = case(LedgerMachine, order="greedydual", examples=30)


def admitted(*costs: int, order: str = "greedydual") -> Ledger:
    ledger = ledger_of(order)
    ledger.apply(
        [Event(PREFIX + b"%d" % n, 100, cost, expire_at_ms(cost, n)) for n, cost in enumerate(costs)]
    )
    return ledger


def priorities(ledger: Ledger) -> list[int]:
    return [entry.priority for entry in ledger.order.head(100)]


def test_a_clock_from_before_our_restart_is_honoured() -> None:
    """A client that still starts from a higher L has written a higher priority: the order takes it over."""
    ledger = admitted(5)
    ledger.apply([Event(b"p:x", 100, 7, expire_at_ms(1_007, 1))])
    assert priorities(ledger) == [5, 1_007]
    assert ledger.take_rises(10) == []


def test_a_clock_that_lags_is_raised() -> None:
    ledger = ledger_of("greedydual")
    ledger.clear(1_000)
    ledger.apply([Event(b"p:x", 100, 7, expire_at_ms(7, 3))])
    rises = ledger.take_rises(10)
    assert [(r.key, r.target_ms) for r in rises] == [(b"p:x", expire_at_ms(1_007, 3))]


def test_redis_is_told_of_a_use_when_its_copy_has_fallen_behind_by_half() -> None:
    """Visits 2, 3, 4, ... lift by 4, 9, 16, ...: the expiry follows at 4, then where it lies below half."""
    ledger = ledger_of("ours")
    written = ledger.order.rule.priority(0, 1_000, 100)
    ledger.apply([Event(b"p:x", 100, 1_000, expire_at_ms(written, 0))])
    told = []
    for _ in range(8):
        ledger.apply([Event(b"p:x", 0, 0, 0)])
        rises = ledger.take_rises(10)
        told += [round(priority_of(rise.target_ms) / written) for rise in rises]
        ledger.settle_rises(rises, [rise.target_ms for rise in rises])
    assert told == [4, 9, 25, 64]
    ledger.recall([b"p:x"])
    assert [round(priority_of(rise.target_ms) / written) for rise in ledger.take_rises(10)] == [81]


def test_an_ordinary_time_to_live_stays_its_owners() -> None:
    ledger = ledger_of("ours")
    ledger.learn([Found(b"p:ttl", 1_900_000_000_000, 100, 5_000)])
    ledger.apply([Event(b"p:ttl", 0, 0, 0)])
    ledger.recall([b"p:ttl"])
    assert ledger.take_rises(10) == []


def test_victims_stop_at_enough_bytes_or_keys() -> None:
    assert len(admitted(*range(10)).take_victims(250, 64)) == 3
    assert len(admitted(*range(10)).take_victims(1 << 20, 4)) == 4
    assert len(admitted(*range(10)).take_victims(1, 64)) == 1, "one always goes"


def test_an_entry_larger_than_the_cache_is_next_whatever_it_cost_or_is_used() -> None:
    ledger = admitted(5, 6)
    ledger.max_entry_bytes = 1_000
    ledger.apply([Event(b"p:big", 1_001, 2**40, expire_at_ms(2**40, 0)), Event(b"p:big", 0, 0, 0)])
    ledger.learn([Found(b"p:found", expire_at_ms(2**40, 0), 1_001, -1)])
    assert {e.key for e in ledger.order.head(2)} == {b"p:big", b"p:found"}


def test_a_full_ledger_takes_no_new_entries_but_updates_old_ones() -> None:
    ledger = admitted(5, 6)
    ledger.max_entries = 2
    assert ledger.apply([Event(b"p:new", 100, 1, expire_at_ms(1, 0))])[1] == 1
    assert ledger.apply([Event(b"p:0", 100, 9, expire_at_ms(9, 5))])[1] == 0
    assert len(ledger) == 2


def test_the_overhead_is_the_mean_of_what_was_observed() -> None:
    ledger = admitted()
    for used in (150, 170):
        ledger.observe(100, used)
    assert ledger.overhead_bytes == 60
    ledger.apply([Event(b"p:x", 100, 1, expire_at_ms(1, 0))])
    assert ledger.order.total_bytes == ledger.grown_bytes == 160
    for _ in range(400):
        ledger.observe(100, 90)
    assert 0 <= ledger.overhead_bytes < 1


def test_hints_tell_writes_and_powers_of_two() -> None:
    ledger = ledger_of("gdsf")
    write, read = Event(b"p:a", 100, 5, expire_at_ms(5, 1)), Event(b"p:a", 0, 0, 0)
    assert ledger.apply([write]) == ([], 0), "a client takes one use for granted"
    assert ledger.apply([read, read, read]) == ([(b"p:a", 2), (b"p:a", 4)], 0)
    assert ledger.apply([write]) == ([(b"p:a", 5)], 0)
    assert admitted(5).apply([read, write]) == ([], 0), "greedydual counts nothing"


def test_one_absurd_expiry_costs_a_thousandth_of_the_clock() -> None:
    """Reported, or standing in Redis, and nothing else left to evict: the clock follows so far and stops."""
    ledger = ledger_of("ours")
    ledger.apply([Event(b"p:lie", 100, 5, EXPIRE_LIMIT_MS - 1)])
    ledger.learn([Found(b"p:found", EXPIRE_LIMIT_MS - 1, 100, -1)])
    victims = ledger.take_victims(1_000, 64)
    assert ledger.settle_victims(victims, [GONE, UNLINKED]).gone == 1
    assert ledger.order.clock == MOST_WORTH < MAX_PRIORITY / 1_000


def test_a_class_gives_the_least_cost_of_its_keys() -> None:
    """Reported or found, dear or cheap; the longest beginning decides, and a pinned key is no entry."""
    ledger = ledger_of("greedydual", "a=50, ab=9, abc=pin")
    reported = [Event(PREFIX + key, 10, 20, expire_at_ms(20, 0)) for key in (b"a1", b"ab1", b"abc1", b"z")]
    ledger.apply(reported)
    assert {e.key: e.priority for e in ledger.order.head(9)} == {b"p:a1": 50, b"p:ab1": 20, b"p:z": 20}
    ledger.learn([Found(PREFIX + key, expire_at_ms(2, 0), 10, -1) for key in (b"a2", b"ab2", b"abc2", b"y")])
    found = {e.key: e.priority for e in ledger.order.head(9)}
    assert (found[b"p:a2"], found[b"p:ab2"], found[b"p:y"]) == (50, 9, 2)
    assert list(ledger.to_pin) == [b"p:abc1", b"p:abc2"]
    ledger.learn([Found(b"p:absurd", expire_at_ms(2, 0), 10, 2**62)])
    assert max(priorities(ledger)) == MOST_WORTH
    repaired = ledger.repaired(Found(b"p:a3", IMMORTAL, 10, -1))
    assert repaired.expiry_ms == expire_at_ms(50, 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [("vip", "'vip' must end in pin"), ("a=1, a=2", "'a=2' is no class, or one again"), ("a=-1", "'a=-1'")],
)
def test_classes_that_are_none_are_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        KeyClasses(PREFIX, text)
