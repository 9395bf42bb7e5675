"""What the sidecar believes the cache holds: the order, and the expiry of every entry in Redis.

The order is in this process; Redis holds a copy of each priority as an expiry, always a little behind. The
ledger keeps both in step without asking: a client reports the expiry that it wrote, and the sidecar knows the
expiries that it raised itself. Where the two diverge (a lost report, a race between a write and a rise, an
entry that Redis evicted) the compare in unlink.lua fails harmlessly and its answer tells the truth, which is
learnt here. So a wrong belief costs one skipped eviction, never a wrong one. Nor does it move the clock L,
which rises by evictions that Redis confirmed: every later priority starts from it, and it never falls, so one
report of an absurd expiry would otherwise turn the order into LRU for good.

Pure: no I/O, no clock. Every method is O(log n) or better per entry.

Invariants:
- an entry is in the order exactly when its expiry is known;
- every key begins with the prefix;
- an entry whose priority lies above its expiry in Redis is waiting for a rise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from services.core.eviction.order import Entry, Order
from services.core.eviction.priority import expire_at_ms, priority_of, sequence_of

GONE = -2
"""Answer of Redis for a key that does not exist."""
IMMORTAL = -1
"""Answer of Redis for a key without an expiry."""
DONE = 0
"""Answer of our scripts for a key that was unlinked or raised."""

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
    client reports. `immortal` collects keys without an expiry (key, bytes), `sampled` a few reported sizes;
    the owner repairs and measures them.
    """

    def __init__(self, prefix: bytes, order: Order) -> None:
        self.prefix = prefix
        self.order = order
        self.max_entry_bytes = 1 << 62
        self.max_entries = 1 << 62
        self.overhead_bytes = 0.0
        self.grown_bytes = 0
        self.unknown_hits = 0
        self.immortal: list[tuple[bytes, int]] = []
        self.sampled: dict[bytes, int] = {}
        self._observations = 0
        self._held: dict[bytes, int] = {}
        self._rising: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self.order)

    @property
    def waiting_rises(self) -> int:
        """Entries whose priority lies above their expiry in Redis."""
        return len(self._rising)

    def held_ms(self, key: bytes) -> int | None:
        """The expiry that Redis is believed to hold for a key, None when the key is unknown."""
        return self._held.get(key)

    def write(self, key: bytes, reported_bytes: int, cost: int, written_ms: int) -> bool:
        """A client wrote an entry with this expiry; False when the ledger is full and does not take it."""
        order = self.order
        known = key in self._held
        if not known and len(order) >= self.max_entries:
            return False
        size_bytes = reported_bytes + int(self.overhead_bytes)
        before_bytes = order.total_bytes
        if size_bytes > self.max_entry_bytes:
            order.admit(key, size_bytes, 0)  # goes first, and no use helps it
            self._rising.pop(key, None)
        else:
            priority = order.admit(key, size_bytes, cost)
            written = priority_of(written_ms)
            if (
                written > priority
            ):  # a clock from before our restart: Redis already holds more, so does the order
                order.set_priority(key, written)
                self._rising.pop(key, None)
            elif written < priority:
                self._rising[key] = None
            else:
                self._rising.pop(key, None)
        self._held[key] = written_ms
        self.grown_bytes += order.total_bytes - before_bytes
        if len(self.sampled) < _SAMPLED:
            self.sampled[key] = reported_bytes
        return True

    def hit(self, key: bytes) -> None:
        """A client read an entry. Unknown keys are counted; the sweep finds them."""
        priority = self.order.hit(key)
        if priority is None:
            self.unknown_hits += 1
        elif priority > priority_of(self._held[key]):
            self._rising[key] = None

    def learn(self, found: Iterable[tuple[bytes, int, int]]) -> int:
        """Takes in (key, expiry in Redis, bytes in Redis) triples of a scan; how many were new.

        Keys already known stay: their reports are fresher. Keys without an expiry go to `immortal`.
        """
        new = []
        for key, expiry_ms, size_bytes in found:
            if key in self._held or expiry_ms == GONE or not key.startswith(self.prefix):
                continue
            if expiry_ms == IMMORTAL:
                self.immortal.append((key, size_bytes))
                continue
            self._held[key] = expiry_ms
            too_large = size_bytes > self.max_entry_bytes
            new.append((key, size_bytes, 0 if too_large else priority_of(expiry_ms)))
        self.order.restore(new)
        return len(new)

    def observe(self, reported_bytes: int, used_bytes: int) -> None:
        """An entry reported with one size occupies another: moves `overhead_bytes`, a mean of the last 64."""
        self._observations = min(self._observations + 1, _OBSERVED)
        overhead = max(used_bytes - reported_bytes, 0)
        self.overhead_bytes += (overhead - self.overhead_bytes) / self._observations

    def take_victims(self, enough_bytes: int, max_keys: int, max_bytes: int) -> list[Victim]:
        """Takes the next victims out of the order, until `enough_bytes` or a limit is reached.

        At least one, if there is any, so that an entry above `max_bytes` still goes.
        """
        victims: list[Victim] = []
        taken_bytes = 0
        while len(victims) < max_keys and taken_bytes < enough_bytes:
            head = self.order.head(1)
            if not head:
                break
            entry = head[0]
            if victims and taken_bytes + entry.size_bytes > max_bytes:
                break
            self.order.remove(entry.key)
            self._rising.pop(entry.key, None)
            victims.append(Victim(entry, self._held.pop(entry.key)))
            taken_bytes += entry.size_bytes
        return victims

    def settle_victims(self, victims: Sequence[Victim], answers: Sequence[int]) -> Settled:
        """Draws the conclusions from unlink.lua; returns how many victims met which end."""
        evicted = [v.entry.priority for v, answer in zip(victims, answers, strict=True) if answer == DONE]
        self.order.advance(max(evicted, default=0))
        changed = gone = immortal = 0
        for victim, answer in zip(victims, answers, strict=True):
            if answer == DONE:
                continue
            if answer == IMMORTAL:
                immortal += 1
                self.immortal.append((victim.entry.key, victim.entry.size_bytes))
            elif answer == GONE:
                gone += 1
            else:
                changed += 1
                self._put(victim.entry, priority_of(answer), answer)
        return Settled(len(evicted), changed, gone, immortal)

    def return_victims(self, victims: Iterable[Victim]) -> None:
        """Puts victims back whose fate is unknown; a later try finds out."""
        for victim in victims:
            self._put(victim.entry, victim.entry.priority, victim.expected_ms)

    def take_rises(self, limit: int) -> list[Rise]:
        """Takes out up to `limit` rises that Redis does not have yet, longest waiting first."""
        rises: list[Rise] = []
        while self._rising and len(rises) < limit:
            key = next(iter(self._rising))
            del self._rising[key]
            entry, held_ms = self.order.get(key), self._held[key]
            assert entry is not None
            target_ms = expire_at_ms(entry.priority, sequence_of(held_ms))
            if target_ms > held_ms:
                rises.append(Rise(key, held_ms, target_ms))
        return rises

    def settle_rises(self, rises: Sequence[Rise], answers: Sequence[int]) -> None:
        """Draws the conclusions from rise.lua; entries reported again meanwhile keep what was reported."""
        for rise, answer in zip(rises, answers, strict=True):
            if self._held.get(rise.key) != rise.held_ms:
                continue
            if answer == DONE:
                self._held[rise.key] = rise.target_ms
            elif answer in (GONE, IMMORTAL):
                entry = self.order.get(rise.key)
                assert entry is not None
                self.forget(rise.key)
                if answer == IMMORTAL:
                    self.immortal.append((rise.key, entry.size_bytes))
            else:  # Redis holds more than we asked for
                self._held[rise.key] = answer
                if answer > rise.target_ms:
                    self.order.set_priority(rise.key, priority_of(answer))

    def return_rises(self, rises: Iterable[Rise]) -> None:
        """Puts rises back that may not have arrived; repeating one is harmless."""
        for rise in rises:
            if rise.key in self._held:
                self._rising[rise.key] = None

    def forget(self, key: bytes) -> None:
        """Drops an entry that is no longer in Redis."""
        if self._held.pop(key, None) is not None:
            self.order.remove(key)
            self._rising.pop(key, None)

    def clear(self) -> None:
        """Drops everything but the clock."""
        self.order.clear()
        self._held.clear()
        self._rising.clear()
        self.immortal.clear()
        self.sampled.clear()

    def _put(self, entry: Entry, priority: int, held_ms: int) -> None:
        if entry.key in self._held:  # reported again meanwhile
            return
        if entry.cost:
            self.order.admit(entry.key, entry.size_bytes, entry.cost)
            self.order.set_priority(entry.key, priority)
        else:
            self.order.restore([(entry.key, entry.size_bytes, priority)])
        self._held[entry.key] = held_ms
        if priority > priority_of(held_ms):
            self._rising[entry.key] = None
