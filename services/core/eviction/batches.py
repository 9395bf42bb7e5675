"""Batches of operations on an order over byte keys, as kernels: the loop that a sidecar and a replay share.

`KeyedOrder` owns the arrays and checks what comes in; nothing here does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..compiled import compiled
from . import orders, table
from .state import BYTES, COUNT, NONE, State, full, give, take
from .table import Table

ADMIT, HIT, REMOVE, REQUEST, PLACE, LOOK = range(6)
"""Operations. A request hits where the key is present; else it evicts until the entry fits, and admits it.
PLACE puts a key at a priority: a new one with its cost and size, a present one as it is. LOOK only tells."""

AHEAD = 16
"""Operations whose memory is asked for together."""


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
def _tell(order: int, s: State, slot: int, operation: int, placed: NDArray[np.int64], at: int) -> None:
    """Lift an entry that was admitted to where its writer has placed it, and note where it stands."""
    if operation == REMOVE:
        placed[at] = NONE
        return
    if operation == ADMIT and placed[at, 0] > s.nodes[slot]["priority"]:
        orders.place(order, s, slot, placed[at, 0], True)
    placed[at, 0] = s.nodes[slot]["priority"]
    placed[at, 1] = s.nodes[slot]["frequency"]


@compiled
def run(
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
    placed: NDArray[np.int64],
    begin: int,
) -> int:
    """Operations from `begin` on; stops at the one that needs larger arrays. Returns where.

    The arrays are those of `KeyedOrder.apply`; evicted and touched are running sums, placed may be empty.
    """
    told = len(placed) > 0
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
            elif operation == PLACE:
                orders.place(order, s, slot, placed[at, 0], True)
            elif operation != LOOK:
                orders.hit(order, s, slot)
            if told:
                _tell(order, s, slot, operation, placed, at)
            continue
        if operation in (HIT, REMOVE, LOOK) or sizes[at] > capacity:
            if told:
                placed[at] = NONE
            continue
        if operation == REQUEST:
            while s.numbers[BYTES] + sizes[at] > capacity:
                _forget(s, t, orders.pop(order, s))
                evicted[0] += 1
        if full(s) or table.crowded(t, s.numbers[COUNT], end - start):
            return at
        slot = take(s, table.keep(t, words, start, end), digest, costs[at], sizes[at])
        table.insert(t, digest, slot)
        if operation == PLACE:
            orders.place(order, s, slot, placed[at, 0], False)
        else:
            orders.admit(order, s, slot)
        if told:
            _tell(order, s, slot, operation, placed, at)
    return len(operations)


@compiled
def pops(order: int, s: State, t: Table, enough_bytes: int, slots: NDArray[np.int64]) -> int:
    """Fill `slots` with the next victims, out of order and table, their nodes still readable, until their
    sizes reach `enough_bytes`. Returns how many."""
    taken_bytes = 0
    for at in range(len(slots)):
        if taken_bytes >= enough_bytes:
            return at
        slot = orders.pop(order, s)
        if slot == NONE:
            return at
        _forget(s, t, slot)
        slots[at] = slot
        taken_bytes += s.nodes[slot]["size"]
    return len(slots)
