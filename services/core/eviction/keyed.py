"""An order over byte keys: the compiled orders behind the compiled table, fed in batches.

One call from Python into compiled code costs more than ten operations inside it, so `apply` takes arrays of
operations: a sidecar hands over a report, a replay millions of requests. The methods for one key are for
tests and rare events. Not thread-safe; holds no values and reads no clock.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import batches, costwheel, gdsf, orders, table
from .batches import ADMIT, HIT, PLACE, REMOVE, REQUEST
from .orders import NAMES
from .priority import LIVE
from .rules import Rule
from .state import BYTES, CLOCK, COUNT, NONE, RETURNING, SEEN, TYPICAL_COST, TYPICAL_SIZE, USES, full
from .table import packed

UNLIMITED = 1 << 62
_LARGEST = 1 << 60  # of a size or a cost, so that sums stay in 64 bits
_MIXED_KEY_BYTES = 32
_UNTOLD = np.zeros((0, 2), np.int64)


class Entry(NamedTuple):
    """A key in an order: its priority (priority units), size (bytes) and last known cost."""

    key: bytes
    priority: int
    size_bytes: int
    cost: int


class KeyedOrder:
    """An order by name (`orders.NAMES`), with room for `entries` keys of `key_bytes` before it must grow.

    typical_cost, typical_size: see `orders.empty`. secret: 128 bits that key the hash, random where None.

    Raises:
        ValueError: unknown name, or a number below 1.
    """

    def __init__(
        self,
        name: str,
        *,
        entries: int = 1024,
        key_bytes: int = _MIXED_KEY_BYTES,
        typical_cost: int = 1,
        typical_size: int = 1,
        secret: int | None = None,
    ) -> None:
        if name not in NAMES:
            raise ValueError(f"order {name!r} is none of {', '.join(NAMES)}")
        if min(entries, key_bytes, typical_cost, typical_size) < 1:
            raise ValueError("entries, key_bytes, typical_cost and typical_size must be at least 1")
        self.name = name
        self._order = NAMES.index(name)
        self._entries = entries
        self._state = orders.empty(self._order, entries, typical_cost, typical_size)
        drawn = secrets.randbits(128) if secret is None else secret
        halves = np.array([drawn & (1 << 64) - 1, drawn >> 64 & (1 << 64) - 1], np.uint64)
        self._table = table.empty(entries, key_bytes, halves)
        self._evicted = np.zeros(1, np.int64)
        self._touched = np.zeros(1, np.int64)

    @property
    def clock(self) -> int:
        """L."""
        return int(self._state.numbers[CLOCK])

    @property
    def total_bytes(self) -> int:
        """Sum of the entries' sizes."""
        return int(self._state.numbers[BYTES])

    @property
    def evictions(self) -> int:
        """Entries that requests have evicted so far."""
        return int(self._evicted[0])

    @property
    def state_bytes(self) -> int:
        """Memory of order and table, without the keys themselves."""
        return sum(array.nbytes for array in self._state) + self._table.places.nbytes

    def __len__(self) -> int:
        return int(self._state.numbers[COUNT])

    def apply(
        self,
        operations: NDArray[np.uint8],
        words: NDArray[np.uint64],
        ends: NDArray[np.int64],
        costs: NDArray[np.int64],
        sizes: NDArray[np.int64],
        capacity: int = UNLIMITED,
        placed: NDArray[np.int64] | None = None,
    ) -> NDArray[np.bool_]:
        """Runs n operations in their order; bool[n], whether each found its key.

        operations: uint8[n]. words, ends: see `table.packed`. costs, sizes: int64[n], of the keys, read by
        ADMIT, REQUEST and PLACE. capacity: what REQUEST evicts for; larger entries are not admitted.
        placed: int64[n, 2], for LIVE orders. Its first column goes in with the priority that PLACE gives, and
        the least that ADMIT does; it comes out with priority and frequency of each key after its operation,
        -1 where it is absent.

        Raises:
            ValueError: lengths differ, an unknown operation, ends that do not rise, a cost or size
                outside 0..2**60, PLACE or placed where there must be none.
        """
        n = len(operations)
        if not len(ends) == len(costs) == len(sizes) == n:
            raise ValueError(f"ends, costs and sizes must have the {n} rows of operations")
        found = np.zeros(n, np.bool_)
        if n == 0:
            return found
        lengths = np.diff(ends, prepend=0)
        if lengths.min() < 1 or ends[-1] > len(words):
            raise ValueError(f"ends: {ends[-1]} must rise, and not beyond the {len(words)} words")
        most = REQUEST if placed is None else batches.LOOK
        if operations.max() > most:
            raise ValueError(f"operation {operations.max()} is none of 0..{most}")
        if placed is not None and (self.name not in LIVE or placed.shape != (n, 2)):
            raise ValueError(f"placed must have {n} rows of 2, of an order of {', '.join(LIVE)}")
        for field, column in (("costs", costs), ("sizes", sizes)):
            if column.min() < 0 or column.max() > _LARGEST:
                raise ValueError(f"{field}: {column.min()}..{column.max()} leave 0..2**60: at least 0 each")
        at = 0
        while True:
            at = batches.run(
                self._order,
                self._state,
                self._table,
                np.ascontiguousarray(operations, np.uint8),
                np.ascontiguousarray(words, np.uint64),
                np.ascontiguousarray(ends, np.int64),
                np.ascontiguousarray(costs, np.int64),
                np.ascontiguousarray(sizes, np.int64),
                capacity,
                found,
                self._evicted,
                self._touched,
                _UNTOLD if placed is None else placed,
                at,
            )
            if at == n:
                break
            self._grow(int(lengths[at]))
        return found

    def admit(self, key: bytes, size_bytes: int, cost: int) -> int:
        """Insert or replace an entry as just used; its new priority."""
        self._one(ADMIT, key, cost, size_bytes)
        entry = self.get(key)
        assert entry is not None
        return entry.priority

    def hit(self, key: bytes) -> int | None:
        """Count a use; the new priority, None when the key is absent."""
        self._one(HIT, key)
        entry = self.get(key)
        return None if entry is None else entry.priority

    def remove(self, key: bytes) -> bool:
        """Drop an entry without moving the clock; whether it was there."""
        return self._one(REMOVE, key)

    def pop(self) -> Entry | None:
        """Remove and return the next victim, None when empty; moves the clock."""
        popped = self.pops(1, 1)
        return popped[0] if popped else None

    def pops(self, limit: int, enough_bytes: int) -> list[Entry]:
        """Remove and return the next victims, until `limit` or until their sizes reach `enough_bytes`."""
        slots = np.empty(min(limit, len(self)), np.int64)
        count = batches.pops(self._order, self._state, self._table, enough_bytes, slots)
        return [self._entry(slot) for slot in slots[:count].tolist()]

    @property
    def rule(self) -> Rule:
        """How this order values an entry, for those who write entries; ValueError unless it is LIVE."""
        numbers = self._state.numbers
        per_byte = float(numbers[TYPICAL_COST]) / float(numbers[TYPICAL_SIZE])
        if self.name == "ours":
            powers = costwheel.COST_POWER, costwheel.COST_POWER, costwheel.visit_power(self._state)
            return Rule(costwheel.RESOLUTION / per_byte**costwheel.COST_POWER, *powers)
        if self.name == "gdsf":
            return Rule(float(gdsf.RESOLUTION * numbers[TYPICAL_SIZE]), 1.0, 1.0, 1.0)
        if self.name in LIVE:
            return Rule(1.0, 1.0, 0.0, 0.0)
        raise ValueError(f"order {self.name!r} is none of {', '.join(LIVE)}")

    def restore(self, entries: Sequence[Entry]) -> None:
        """Put entries at their priorities, without counting a use, in LIVE orders.

        A present key keeps size and cost and only moves. A new one of cost 0 gets the cost that its priority
        implies if it was used once. Priorities below the clock become the clock, and those more than
        MOST_WORTH above it that.
        """
        rule, clock, count = self.rule, self.clock, len(entries)
        words, ends = packed([entry.key for entry in entries])
        placed = np.zeros((count, 2), np.int64)
        placed[:, 0] = [entry.priority for entry in entries]
        implied = (rule.cost(entry.priority - clock, entry.size_bytes) for entry in entries)
        costs = [entry.cost or min(cost, _LARGEST) for entry, cost in zip(entries, implied, strict=True)]
        sizes = [entry.size_bytes for entry in entries]
        operations = np.full(count, PLACE, np.uint8)
        self.apply(operations, words, ends, np.array(costs), np.array(sizes), placed=placed)

    def clear(self, clock: int = 0) -> None:
        """Drop all entries and raise the clock to `clock`; what is remembered of evicted keys stays."""
        old = self._state.numbers
        state = orders.empty(self._order, self._entries, int(old[TYPICAL_COST]), int(old[TYPICAL_SIZE]))
        kept = [USES, SEEN, RETURNING]
        state.numbers[kept] = old[kept]
        state.numbers[CLOCK] = max(int(old[CLOCK]), clock)
        self._state = state._replace(counters=self._state.counters)
        self._table = table.empty(self._entries, _MIXED_KEY_BYTES, self._table.secret)

    def get(self, key: bytes) -> Entry | None:
        """The entry of a key, None when absent; does not count as a use."""
        words, ends = packed([key])
        digest = table.digest_of(self._table, words, 0, int(ends[0]))
        slot = table.find(self._table, self._state, words, 0, int(ends[0]), digest)
        return None if slot == NONE else self._entry(slot)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and self.get(key) is not None

    def head(self, limit: int) -> list[Entry]:
        """The next `limit` victims in order, from a copy of everything; changes nothing."""
        state = orders.grown(self._order, self._state, self._entries)
        copied = self._table._replace(places=self._table.places.copy(), marks=self._table.marks.copy())
        slots = np.empty(min(limit, len(self)), np.int64)
        batches.pops(self._order, state, copied, UNLIMITED, slots)
        return [self._entry(slot) for slot in slots.tolist()]

    def _one(self, operation: int, key: bytes, cost: int = 0, size_bytes: int = 0) -> bool:
        words, ends = packed([key])
        column = np.array([operation], np.uint8)
        return bool(self.apply(column, words, ends, np.array([cost]), np.array([size_bytes]))[0])

    def _entry(self, slot: int) -> Entry:
        node = self._state.nodes[slot]
        key = table.key_at(self._table, int(node["key"]))
        return Entry(key, int(node["priority"]), int(node["size"]), int(node["cost"]))

    def _grow(self, words: int) -> None:
        """Make room for one more record of this length."""
        if full(self._state) or len(self) + 1 > len(self._table.places) * table.LOAD:
            self._entries += self._entries // 4 + 64
            self._state = orders.grown(self._order, self._state, self._entries)
        self._table = table.enlarged(self._table, self._state, self._entries, words)
