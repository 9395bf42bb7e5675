"""The ledger against a Redis that loses, delays and rewrites: it converges, and never evicts what changed."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.core.eviction.greedydual import GreedyDual
from services.core.eviction.priority import EXPIRE_LIMIT_MS, MAX_PRIORITY, expire_at_ms, priority_of
from services.eviction.ledger import DONE, GONE, IMMORTAL, Ledger

PREFIX = b"p:"
keys = st.integers(0, 7).map(lambda n: PREFIX + b"%d" % n)
costs = st.one_of(st.integers(0, 20), st.integers(0, 2**40))


class LedgerMachine(RuleBasedStateMachine):
    """`redis` is what the server holds: key -> expiry, IMMORTAL without one."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(PREFIX, GreedyDual())
        self.redis: dict[bytes, int] = {}
        self.sequence = 0
        self.late: list[tuple[bytes, int, int]] = []

    def _set(self, key: bytes, cost: int) -> int:
        self.sequence += 1
        self.redis[key] = expire_at_ms(min(self.ledger.order.clock + cost, MAX_PRIORITY), self.sequence)
        return self.redis[key]

    @rule(key=keys, cost=costs, late=st.booleans())
    def client_writes(self, key: bytes, cost: int, late: bool) -> None:
        expiry = self._set(key, cost)
        if late:
            self.late.append((key, cost, expiry))
        else:
            self.ledger.write(key, 10, cost, expiry)

    @rule(data=st.data())
    def a_late_report_arrives(self, data: st.DataObject) -> None:
        if self.late:
            key, cost, expiry = self.late.pop(data.draw(st.integers(0, len(self.late) - 1)))
            self.ledger.write(key, 10, cost, expiry)

    @rule(key=keys)
    def client_reads(self, key: bytes) -> None:
        self.ledger.hit(key)

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
        answers = []
        for rise in rises:
            held = self.redis.get(rise.key, GONE)
            if 0 < held < rise.target_ms:
                self.redis[rise.key] = rise.target_ms
                held = DONE
            answers.append(held)
        self.ledger.settle_rises(rises, answers)

    @rule(count=st.integers(1, 4), answered=st.booleans())
    def evict(self, count: int, answered: bool) -> None:
        head = [entry.key for entry in self.ledger.order.head(count)]
        victims = self.ledger.take_victims(1 << 40, count, 1 << 40)
        assert [victim.entry.key for victim in victims] == head
        answers = []
        for key, expected in ((v.entry.key, v.expected_ms) for v in victims):
            held = self.redis.get(key, GONE)
            if held == expected:
                del self.redis[key]
                held = DONE
            answers.append(held)
        if answered:
            settled = self.ledger.settle_victims(victims, answers)
            assert settled.unlinked == answers.count(DONE)
            assert settled.gone == answers.count(GONE)
            assert settled.immortal == answers.count(IMMORTAL)
            assert sum(settled) == len(victims)
        else:
            self.ledger.return_victims(victims)

    @rule()
    def sweep(self) -> None:
        self.ledger.learn((key, expiry, 10) for key, expiry in [*self.redis.items(), (b"other", 5)])
        for key, size in self.ledger.immortal:
            if self.redis.get(key) == IMMORTAL:
                self.redis[key] = expire_at_ms(self.ledger.order.clock, 0)
                self.ledger.learn([(key, self.redis[key], size)])
        self.ledger.immortal.clear()

    @invariant()
    def books_balance(self) -> None:
        entries = self.ledger.order.head(100)
        assert len(entries) == len(self.ledger)
        for entry in entries:
            held = self.ledger.held_ms(entry.key)
            assert held is not None
            assert entry.key.startswith(PREFIX)
            if entry.priority > priority_of(held):
                assert entry.key in self.ledger._rising

    def teardown(self) -> None:
        """Once nothing happens any more, a few rounds make ledger and Redis agree, and everything can go."""
        for _ in range(20):
            self.sweep()
            self.rise(True)
        for _ in range(50):
            self.evict(4, True)
            self.sweep()
        assert not self.redis
        assert not len(self.ledger)
        assert self.ledger.order.total_bytes == 0


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def admitted(*costs: int) -> Ledger:
    ledger = Ledger(PREFIX, GreedyDual())
    for n, cost in enumerate(costs):
        ledger.write(PREFIX + b"%d" % n, 100, cost, expire_at_ms(cost, n))
    return ledger


def test_a_clock_from_before_our_restart_is_honoured() -> None:
    """A client that still starts from a higher L has written a higher priority: the order takes it over."""
    ledger = admitted(5)
    ledger.write(b"p:x", 100, 7, expire_at_ms(1_007, 1))
    assert [e.priority for e in ledger.order.head(2)] == [5, 1_007]
    assert ledger.take_rises(10) == []


def test_a_clock_that_lags_is_raised() -> None:
    ledger = admitted(5)
    ledger.order.advance(1_000)
    ledger.write(b"p:x", 100, 7, expire_at_ms(7, 3))
    rises = ledger.take_rises(10)
    assert [(r.key, r.target_ms) for r in rises] == [(b"p:x", expire_at_ms(1_007, 3))]


def test_victims_stop_at_enough_bytes_keys_or_a_byte_limit() -> None:
    assert len(admitted(*range(10)).take_victims(250, 64, 1 << 20)) == 3
    assert len(admitted(*range(10)).take_victims(1 << 20, 4, 1 << 20)) == 4
    assert len(admitted(*range(10)).take_victims(1 << 20, 64, 250)) == 2
    assert len(admitted(*range(10)).take_victims(1 << 20, 64, 1)) == 1, "one always goes"


def test_an_entry_larger_than_the_cache_is_next_whatever_it_cost_or_is_used() -> None:
    ledger = admitted(5, 6)
    ledger.max_entry_bytes = 1_000
    ledger.write(b"p:big", 1_001, 2**40, expire_at_ms(2**40, 0))
    ledger.hit(b"p:big")
    ledger.learn([(b"p:found", expire_at_ms(2**40, 0), 1_001)])
    assert {e.key for e in ledger.order.head(2)} == {b"p:big", b"p:found"}


def test_a_full_ledger_takes_no_new_entries_but_updates_old_ones() -> None:
    ledger = admitted(5, 6)
    ledger.max_entries = 2
    assert not ledger.write(b"p:new", 100, 1, expire_at_ms(1, 0))
    assert ledger.write(b"p:0", 100, 9, expire_at_ms(9, 5))
    assert len(ledger) == 2


def test_the_overhead_is_the_mean_of_what_was_observed() -> None:
    ledger = admitted()
    for used in (150, 170):
        ledger.observe(100, used)
    assert ledger.overhead_bytes == 60
    ledger.write(b"p:x", 100, 1, expire_at_ms(1, 0))
    assert ledger.order.total_bytes == ledger.grown_bytes == 160
    for _ in range(400):
        ledger.observe(100, 90)
    assert 0 <= ledger.overhead_bytes < 1


def test_only_a_confirmed_eviction_moves_the_clock() -> None:
    ledger = admitted()
    absurd_ms = EXPIRE_LIMIT_MS - 1
    for answer in (GONE, IMMORTAL, expire_at_ms(7, 3)):
        ledger.write(b"p:lie", 100, 5, absurd_ms)
        victims = ledger.take_victims(1, 64, 1 << 20)
        assert [victim.expected_ms for victim in victims] == [absurd_ms]
        assert ledger.settle_victims(victims, [answer]).unlinked == 0
        assert ledger.order.clock == 0
    victims = ledger.take_victims(1, 64, 1 << 20)
    assert [victim.entry.priority for victim in victims] == [7]
    assert ledger.settle_victims(victims, [DONE]).unlinked == 1
    assert ledger.order.clock == 7
