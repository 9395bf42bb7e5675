"""What the sidecar believes the cache holds: the order, and the expiry of every entry in Redis.

The order is in this process; Redis holds a copy of each priority as an expiry, a little behind. The ledger
keeps both in step without asking: a client reports the expiry that it wrote, and the sidecar knows the
expiries that it raised itself. Where the two diverge (a lost report, a race between a write and a rise, an
entry that Redis evicted) the compare in unlink.lua fails harmlessly and its answer tells the truth, which is
learnt here. So a wrong belief costs one skipped eviction, never a wrong one.

Every use lifts an entry in the order, but Redis is told only where its copy has fallen behind by half: the
expiry stands less than half as far above the clock L as the priority does. That is a few rises in an entry's
life instead of one a use, and what Redis would evict by itself stays close to the order. The rest is raised
by and by, as the sweep comes past.

Pure: no I/O, no clock. O(1) amortised per event, or O(log n) in orders that keep a heap.

Invariants:
- an entry is in the order exactly when its expiry is known;
- every key begins with the prefix, and none is the lease or pinned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from services.core.eviction.batches import ADMIT, HIT, LOOK
from services.core.eviction.keyed import Entry, KeyedOrder
from services.core.eviction.priority import BASE_MS, expire_at_ms, priority_of, sequence_of
from services.core.eviction.table import MAX_KEY_BYTES, packed
from services.eviction.answers import GONE, IMMORTAL, UNLINKED, Found
from services.eviction.events import MAX_COST, Event
from services.eviction.key_classes import PIN, KeyClasses

_OBSERVED = 64
_SAMPLED = 4


class Victim(NamedTuple):
    """An entry taken out of the order, to be unlinked if its expiry is still the expected one."""

    entry: Entry
    expected_ms: int


class Settled(NamedTuple):
    """Numbers of victims: unlinked; or left alone because written since, gone, or without an expiry."""

    unlinked: int
    changed: int
    gone: int
    immortal: int


class Rise(NamedTuple):
    """An expiry that Redis should hold; `held_ms` is the one it is believed to hold."""

    key: bytes
    held_ms: int
    target_ms: int


class Ledger:
    """The order of one cache and its copy in Redis.

    `max_entry_bytes` (set by the owner) is the room of the whole cache: an entry above it is never worth
    evicting the rest for and goes first. `overhead_bytes` is what an entry occupies beyond the size that its
    client reports. The owner repairs, frees and measures what collects in `immortal` (keys without an
    expiry), `to_pin` (pinned keys with one) and `sampled` (a few reported sizes).
    """

    def __init__(self, prefix: bytes, order: KeyedOrder, classes: KeyClasses, lease_key: bytes = b"") -> None:
        self.prefix = prefix
        self.order = order
        self.max_entry_bytes = 1 << 62
        self.max_entries = 1 << 62
        self.overhead_bytes = 0.0
        self.grown_bytes = 0
        self.unknown_hits = 0
        self.immortal: list[Found] = []
        self.to_pin: dict[bytes, None] = {}
        self.sampled: dict[bytes, int] = {}
        self._classes = classes
        self._lease_key = lease_key
        self._observations = 0
        self._held: dict[bytes, int] = {}
        self._rising: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    @property
    def waiting_rises(self) -> int:
        """Entries that Redis is to hold higher."""
        return len(self._rising)

    def held_ms(self, key: bytes) -> int | None:
        """The expiry that Redis is believed to hold for a key, None when the key is unknown."""
        return self._held.get(key)

    def apply(self, events: Sequence[Event]) -> tuple[list[tuple[bytes, int]], int]:
        """Takes in a checked report.

        Returns frequencies that its client should know, of keys that were written or whose count has reached
        a power of two; and how many writes were not taken because the ledger is full.
        """
        before_bytes = self.order.total_bytes
        taken, operations, rows, dropped = self._prepared(events)
        if not taken:
            return [], dropped
        placed = self._run(operations, taken, rows)
        self.grown_bytes += self.order.total_bytes - before_bytes
        counts = self.order.rule.frequency_power > 0
        hints: list[tuple[bytes, int]] = []
        for key, operation, (priority, frequency) in zip(taken, operations, placed, strict=True):
            if priority < 0:
                self.unknown_hits += 1
                continue
            self._compare(key, priority)
            if counts and frequency > 1 and (operation == ADMIT or not frequency & (frequency - 1)):
                hints.append((key, frequency))
        return hints, dropped

    def _prepared(
        self, events: Sequence[Event]
    ) -> tuple[list[bytes], list[int], list[tuple[int, int, int]], int]:
        """Keys, operations, (cost, size, least priority) of events for the order; how many were dropped."""
        held, overhead = self._held, int(self.overhead_bytes)
        keys, operations, rows, dropped = [], [], [], 0
        for key, reported_bytes, cost_us, written_ms in events:
            least_us = self._classes.least_cost_us(key)
            if least_us == PIN:
                if written_ms:
                    self.to_pin[key] = None
            elif not written_ms:
                keys.append(key)
                operations.append(HIT)
                rows.append((0, 0, 0))
            elif len(held) >= self.max_entries and key not in held:
                dropped += 1
            else:
                held[key] = written_ms
                keys.append(key)
                operations.append(ADMIT)
                size_bytes = reported_bytes + overhead
                if size_bytes > self.max_entry_bytes:  # goes first, and no use helps it
                    rows.append((0, size_bytes, 0))
                else:
                    rows.append((max(cost_us, least_us), size_bytes, priority_of(written_ms)))
                if len(self.sampled) < _SAMPLED:
                    self.sampled[key] = reported_bytes
        return keys, operations, rows, dropped

    def _run(
        self, operations: Sequence[int], keys: Sequence[bytes], rows: Sequence[tuple[int, int, int]]
    ) -> list[list[int]]:
        """Operations on the order; (priority, frequency) of each key after its own."""
        words, ends = packed(keys)
        columns = np.array(rows, np.int64)
        placed = np.zeros((len(keys), 2), np.int64)
        placed[:, 0] = columns[:, 2]
        operation = np.array(operations, np.uint8)
        self.order.apply(operation, words, ends, columns[:, 0], columns[:, 1], placed=placed)
        told: list[list[int]] = placed.tolist()
        return told

    def _compare(self, key: bytes, priority: int, share: int = 2) -> None:
        """Notes a rise where Redis holds less than a share (1/share) of the height above the clock.

        An expiry that is an ordinary time to live is its owner's, and stays.
        """
        held_ms, clock = self._held[key], self.order.clock
        written = priority_of(held_ms)
        if priority <= written or held_ms < BASE_MS:
            self._rising.pop(key, None)
        elif key in self._rising or share * (written - clock) < priority - clock:
            self._rising[key] = priority

    def manages(self, key: bytes) -> bool:
        """Whether a key is an entry: under the prefix, not the lease, not longer than an order can hold."""
        return key.startswith(self.prefix) and key != self._lease_key and len(key) <= MAX_KEY_BYTES

    def learn(self, found: Iterable[Found]) -> int:
        """Takes in what a scan found; how many entries were new.

        Keys already known stay: their reports are fresher. Keys without an expiry go to `immortal`.
        """
        new: list[Entry] = []
        rule, clock = self.order.rule, self.order.clock
        for item in found:
            key, expiry_ms, size_bytes, cost_us = item
            if key in self._held or expiry_ms == GONE or not self.manages(key):
                continue
            least_us = self._classes.least_cost_us(key)
            if least_us == PIN:
                if expiry_ms >= BASE_MS:
                    self.to_pin[key] = None
                continue
            if expiry_ms == IMMORTAL:
                self.immortal.append(item)
                continue
            self._held[key] = expiry_ms
            cost, priority = max(min(cost_us, MAX_COST), least_us, 0), 0
            if size_bytes > self.max_entry_bytes:
                cost = 0
            else:
                priority = max(priority_of(expiry_ms), rule.priority(clock, cost, size_bytes))
            new.append(Entry(key, priority, size_bytes, cost))
        self.order.restore(new)
        for entry in new:
            self._compare(entry.key, entry.priority)
        return len(new)

    def repaired(self, item: Found) -> Found:
        """What a key without an expiry is to be: the same with the expiry that its cost makes it worth."""
        cost_us = max(item.cost_us, self._classes.least_cost_us(item.key), 0)
        priority = self.order.rule.priority(self.order.clock, cost_us, item.size_bytes)
        return item._replace(expiry_ms=expire_at_ms(priority, 0))

    def recall(self, keys: Sequence[bytes]) -> None:
        """Notes every rise, however small, of known keys."""
        known = [key for key in keys if key in self._held]
        if known:
            looked = self._run([LOOK] * len(known), known, [(0, 0, 0)] * len(known))
            for key, (priority, _) in zip(known, looked, strict=True):
                self._compare(key, priority, share=1)

    def observe(self, reported_bytes: int, used_bytes: int) -> None:
        """An entry reported with one size occupies another: moves `overhead_bytes`, a mean of the last 64."""
        self._observations = min(self._observations + 1, _OBSERVED)
        overhead = max(used_bytes - reported_bytes, 0)
        self.overhead_bytes += (overhead - self.overhead_bytes) / self._observations

    def take_victims(self, enough_bytes: int, max_keys: int) -> list[Victim]:
        """Takes the next victims out of the order, until a limit is reached; the last one may exceed it."""
        victims = []
        for entry in self.order.pops(max_keys, enough_bytes):
            self._rising.pop(entry.key, None)
            victims.append(Victim(entry, self._held.pop(entry.key)))
        return victims

    def settle_victims(self, victims: Sequence[Victim], answers: Sequence[int]) -> Settled:
        """Draws the conclusions from unlink.lua; returns how many victims met which end."""
        changed: list[Victim] = []
        gone = immortal = 0
        for victim, answer in zip(victims, answers, strict=True):
            entry = victim.entry
            if answer == IMMORTAL:
                immortal += 1
                self.immortal.append(Found(entry.key, IMMORTAL, entry.size_bytes, entry.cost))
            elif answer == GONE:
                gone += 1
            elif answer != UNLINKED:
                changed.append(Victim(entry._replace(priority=priority_of(answer)), answer))
        self.return_victims(changed)
        return Settled(len(victims) - len(changed) - gone - immortal, len(changed), gone, immortal)

    def return_victims(self, victims: Iterable[Victim]) -> None:
        """Puts victims back; those that were reported meanwhile are there already."""
        absent = [victim for victim in victims if victim.entry.key not in self._held]
        self.order.restore([victim.entry for victim in absent])
        for entry, expected_ms in absent:
            self._held[entry.key] = expected_ms
            self._compare(entry.key, entry.priority)

    def take_rises(self, limit: int) -> list[Rise]:
        """Takes out up to `limit` rises that Redis does not have yet, longest waiting first."""
        rises: list[Rise] = []
        while self._rising and len(rises) < limit:
            key = next(iter(self._rising))
            priority, held_ms = self._rising.pop(key), self._held[key]
            rises.append(Rise(key, held_ms, expire_at_ms(priority, sequence_of(held_ms))))
        return rises

    def settle_rises(self, rises: Sequence[Rise], held_ms: Sequence[int]) -> None:
        """Learns what Redis holds after rises; entries reported again meanwhile keep what was reported."""
        higher: list[Entry] = []
        for rise, now_ms in zip(rises, held_ms, strict=True):
            if self._held.get(rise.key) != rise.held_ms:
                continue
            if now_ms == GONE:
                self.forget(rise.key)
            elif now_ms == IMMORTAL:
                entry = self.forget(rise.key)
                self.immortal.append(Found(rise.key, IMMORTAL, entry.size_bytes, entry.cost))
            else:
                self._held[rise.key] = now_ms
                if now_ms > rise.target_ms:  # a write whose report is still to come
                    higher.append(Entry(rise.key, priority_of(now_ms), 0, 0))
        self.order.restore(higher)

    def return_rises(self, rises: Iterable[Rise]) -> None:
        """Puts rises back that may not have arrived; repeating one is harmless."""
        for rise in rises:
            if rise.key in self._held:
                self._rising[rise.key] = priority_of(rise.target_ms)

    def forget(self, key: bytes) -> Entry:
        """Drops a known entry that is no longer in Redis; what it was."""
        entry = self.order.get(key)
        assert entry is not None
        self.order.remove(key)
        del self._held[key]
        self._rising.pop(key, None)
        return entry

    def clear(self, clock: int = 0) -> None:
        """Drops everything but the clock, which is raised to `clock`."""
        self.order.clear(clock)
        self._held.clear()
        self._rising.clear()
        self.immortal.clear()
        self.to_pin.clear()
        self.sampled.clear()
