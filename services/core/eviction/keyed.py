"""An order over byte keys: the compiled orders behind the compiled table, fed in batches.

One call from Python into compiled code costs more than ten operations inside it, so `apply` takes arrays of
operations: a sidecar hands over the reports of a tick, a replay millions of requests. The methods for one key
are for tests and rare events. Not thread-safe; holds no values and reads no clock.
"""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

from ..compiled import compiled
from . import orders, table
from .order import Entry
from .orders import NAMES
from .state import BYTES, CLOCK, COUNT, NONE, State, full, give, take
from .table import Table, packed

ADMIT, HIT, REMOVE, REQUEST = range(4)
"""Operations of `apply`. A request hits where the key is present; else it evicts until the entry fits, and
admits it."""

UNLIMITED = 1 << 62
AHEAD = 16
"""Operations whose memory is asked for together."""
_LARGEST = 1 << 60  # of a size or a cost, so that sums stay in 64 bits
_MIXED_KEY_BYTES = 32


@compiled
def _forget(s: State, t: Table, slot: int) -> None:
    table.delete(t, s, slot)
    give(s, slot)


@compiled
def _touch(
    s: State,
    t: Table,
    words: NDArray[np.uint64],
    ends: NDArray[np.int64],
    begin: int,
    digests: NDArray[np.int64],
) -> int:
    """The digests of the next operations, and a first look at what these will read.

    With many keys each operation waits for memory several times: for its place in the table, its node, its
    key, the nodes beside it. Asked for one after the other the waits add up; asked for by all operations of a
    block at once they overlap. What comes back is of no use but that the looks cannot be left out.
    """
    count = min(AHEAD, len(ends) - begin)
    seen = 0
    for i in range(count):
        at = begin + i
        digests[i] = table.digest_of(t, words, ends[at - 1] if at else 0, ends[at])
    slots = np.empty(AHEAD, np.int64)
    for i in range(count):
        slots[i] = table.guess(t, digests[i])
    for i in range(count):
        if slots[i] != NONE:
            seen += s.nodes[slots[i]]["next"]
    for i in range(count):
        if slots[i] != NONE:
            node = s.nodes[slots[i]]
            seen += s.nodes[node["next"]]["previous"] + s.nodes[node["previous"]]["next"]
            seen += np.int64(t.arena[node["key"]] & np.uint64(255))
    return seen


@compiled
def _apply(
    order: int,
    s: State,
    t: Table,
    operations: NDArray[np.uint8],
    words: NDArray[np.uint64],
    ends: NDArray[np.int64],
    costs: NDArray[np.int64],
    sizes: NDArray[np.int64],
    capacity: int,
    found: NDArray[np.bool_],
    evicted: NDArray[np.int64],
    touched: NDArray[np.int64],
    begin: int,
) -> int:
    """Operations from `begin` on; stops at the one that needs larger arrays. Returns where."""
    digests = np.empty(AHEAD, np.int64)
    for at in range(begin, len(operations)):
        if (at - begin) % AHEAD == 0:
            touched[0] += _touch(s, t, words, ends, at, digests)
        start, end = ends[at - 1] if at else 0, ends[at]
        digest = digests[(at - begin) % AHEAD]
        slot = table.find(t, s, words, start, end, digest)
        operation = operations[at]
        found[at] = slot != NONE
        if slot != NONE:
            if operation == REMOVE:
                orders.remove(order, s, slot)
                _forget(s, t, slot)
            elif operation == ADMIT:
                orders.remove(order, s, slot)
                s.numbers[BYTES] += sizes[at] - s.nodes[slot]["size"]  # the growth, not the whole size again
                s.nodes[slot]["size"] = sizes[at]
                s.nodes[slot]["cost"] = costs[at]
                orders.admit(order, s, slot)
            else:
                orders.hit(order, s, slot)
            continue
        if operation in (HIT, REMOVE) or sizes[at] > capacity:
            continue
        if operation == REQUEST:
            while s.numbers[BYTES] + sizes[at] > capacity:
                _forget(s, t, orders.pop(order, s))
                evicted[0] += 1
        if full(s) or table.crowded(t, s.numbers[COUNT], end - start):
            return at
        slot = take(s, table.keep(t, words, start, end), digest, costs[at], sizes[at])
        table.insert(t, digest, slot)
        orders.admit(order, s, slot)
    return len(operations)


@compiled
def _pop(order: int, s: State, t: Table) -> int:
    """The next victim, out of order and table, its node still readable; NONE when empty."""
    slot = orders.pop(order, s)
    if slot != NONE:
        _forget(s, t, slot)
    return slot


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
    ) -> NDArray[np.bool_]:
        """Runs n operations in their order; bool[n], whether each found its key.

        operations: uint8[n]. words, ends: see `table.packed`. costs, sizes: int64[n], of the keys; only
        ADMIT and REQUEST read them. capacity: what REQUEST evicts for; larger entries are not admitted.

        Raises:
            ValueError: lengths differ, an unknown operation, ends that do not rise, a cost or size
                outside 0..2**60.
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
        if operations.max() > REQUEST:
            raise ValueError(f"operation {operations.max()} is none of 0..{REQUEST}")
        for field, column in (("costs", costs), ("sizes", sizes)):
            if column.min() < 0 or column.max() > _LARGEST:
                raise ValueError(f"{field}: {column.min()}..{column.max()} leave 0..2**60: at least 0 each")
        at = 0
        while True:
            at = _apply(
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
        slot = _pop(self._order, self._state, self._table)
        return None if slot == NONE else self._entry(slot)

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
        slots = [_pop(self._order, state, copied) for _ in range(min(limit, len(self)))]
        return [self._entry(slot) for slot in slots]

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
