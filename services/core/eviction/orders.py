"""The orders by name and number, and their four operations dispatched on the number.

One function with branches, because the loops around it are then compiled once for all orders; the branch is
the same for every operation of a run and costs next to nothing.
"""

from __future__ import annotations

import numpy as np

from ..compiled import compiled
from . import (
    camp,
    costwheel,
    gdsf,
    gdwheel,
    gdwheel2015,
    greedydual,
    heap,
    lru,
    s3fifo,
    sieve,
    sketch,
    wheel,
    wtinylfu,
)
from .state import (
    CLOCK,
    EXTRA,
    FREE,
    FRESH,
    NODE,
    NONE,
    NUMBERS,
    TYPICAL_COST,
    TYPICAL_SIZE,
    State,
    unlink,
    use,
)
from .values import raised

ORDERS = (
    "lru",
    "greedydual",
    "gdwheel2015",
    "gdwheel",
    "camp",
    "gdsf",
    "s3fifo",
    "sieve",
    "wtinylfu",
    "ours",
)
"""Names of the orders; `ours` is `costwheel`."""

NAMES = (*ORDERS, "ours-heap")
"""The place of a name is the order's number. The last one is the twin of `ours` that it is held to."""

LRU, GREEDYDUAL, GDWHEEL2015, GDWHEEL, CAMP, GDSF, S3FIFO, SIEVE, WTINYLFU, OURS, OURS_HEAP = range(11)

_LISTS = (
    lru.LISTS,
    0,
    gdwheel2015.LISTS,
    gdwheel.LISTS,
    camp.LISTS,
    0,
    s3fifo.LISTS,
    sieve.LISTS,
    wtinylfu.LISTS,
    costwheel.LISTS,
    0,
)
_HEAPS = (GREEDYDUAL, GDSF, OURS_HEAP)
_WHEELS = (GDWHEEL, OURS)
_COUNTERS = {WTINYLFU: 128, OURS: 8, OURS_HEAP: 8}
"""In the sketch, an entry. W-TinyLFU counts every request in it, ours what was evicted."""
_LEAST_SHARE = 5 / 8  # of its counters; below it the sketch is doubled


@compiled
def admit(order: int, s: State, slot: int) -> None:
    """Place an entry that has just been put into its slot, or rewritten after `remove`."""
    if order == OURS:
        costwheel.admit(s, slot)
    elif order == LRU:
        lru.admit(s, slot)
    elif order == GREEDYDUAL:
        greedydual.admit(s, slot)
    elif order == GDWHEEL2015:
        gdwheel2015.admit(s, slot)
    elif order == GDWHEEL:
        gdwheel.admit(s, slot)
    elif order == CAMP:
        camp.admit(s, slot)
    elif order == GDSF:
        gdsf.admit(s, slot)
    elif order == S3FIFO:
        s3fifo.admit(s, slot)
    elif order == SIEVE:
        sieve.admit(s, slot)
    elif order == WTINYLFU:
        wtinylfu.admit(s, slot)
    else:
        costwheel.admit_to_heap(s, slot)


@compiled
def hit(order: int, s: State, slot: int) -> None:
    """Count a use of an entry."""
    if order == OURS:
        costwheel.hit(s, slot)
    elif order == LRU:
        lru.hit(s, slot)
    elif order == GREEDYDUAL:
        greedydual.hit(s, slot)
    elif order == GDWHEEL2015:
        gdwheel2015.hit(s, slot)
    elif order == GDWHEEL:
        gdwheel.hit(s, slot)
    elif order == CAMP:
        camp.hit(s, slot)
    elif order == GDSF:
        gdsf.hit(s, slot)
    elif order == S3FIFO:
        s3fifo.hit(s, slot)
    elif order == SIEVE:
        sieve.hit(s, slot)
    elif order == WTINYLFU:
        wtinylfu.hit(s, slot)
    else:
        costwheel.hit_in_heap(s, slot)


@compiled
def pop(order: int, s: State) -> int:
    """Take out the next victim and move the clock; its slot is still to be given back. NONE when empty."""
    if order == OURS:
        return costwheel.pop(s)
    if order == LRU:
        return lru.pop(s)
    if order == GREEDYDUAL:
        return heap.pop(s)
    if order == GDWHEEL2015:
        return gdwheel2015.pop(s)
    if order == GDWHEEL:
        return wheel.pop(s)
    if order == CAMP:
        return camp.pop(s)
    if order == GDSF:
        return heap.pop(s)
    if order == S3FIFO:
        return s3fifo.pop(s)
    if order == SIEVE:
        return sieve.pop(s)
    if order == WTINYLFU:
        return wtinylfu.pop(s)
    return costwheel.pop_from_heap(s)


@compiled
def remove(order: int, s: State, slot: int) -> None:
    """Take out an entry without moving the clock; its slot is still to be given back."""
    if order == OURS:
        costwheel.remove(s, slot)
    elif order == OURS_HEAP:
        costwheel.remove_from_heap(s, slot)
    elif order == GDWHEEL:
        wheel.remove(s, slot)
    elif order in (GREEDYDUAL, GDSF):
        heap.delete(s, slot)
    elif order == CAMP:
        camp.remove(s, slot)
    elif order == S3FIFO:
        s3fifo.remove(s, slot)
    elif order == SIEVE:
        sieve.remove(s, slot)
    elif order == WTINYLFU:
        wtinylfu.remove(s, slot)
    else:
        unlink(s, slot)


@compiled
def place(order: int, s: State, slot: int, priority: int, held: bool) -> None:
    """Put an entry at a priority of its owner's, as just used but not counted as a use. held: it is in the
    order already. For LIVE orders only."""
    wheeled = order in _WHEELS
    if held and wheeled:
        wheel.remove(s, slot)
    clock = s.numbers[CLOCK]
    s.nodes[slot]["priority"] = raised(clock, max(priority - clock, 0))
    if wheeled:
        use(s)
        wheel.insert(s, slot)
    elif held:
        heap.rise(s, slot, use(s))
    else:
        heap.insert(s, slot, use(s))


def empty(order: int, entries: int, typical_cost: int, typical_size: int) -> State:
    """An order with room for `entries` entries before its arrays must grow.

    typical_cost, typical_size: at least 1; roughly what an entry costs and occupies, in the units of the
    entries. Orders that weigh costs by sizes take their integer resolution from them, nothing else.
    """
    lists = _LISTS[order]
    numbers = np.zeros(NUMBERS, np.int64)
    numbers[FREE], numbers[FRESH] = NONE, lists
    numbers[TYPICAL_COST], numbers[TYPICAL_SIZE] = typical_cost, typical_size
    nodes = np.zeros(lists + entries, NODE)
    nodes["next"][:lists] = nodes["previous"][:lists] = np.arange(lists)
    in_heap = lists if order == CAMP else entries if order in _HEAPS else 1
    lines = -(-entries * _COUNTERS.get(order, 0) // sketch.LINE)
    return State(
        numbers,
        nodes,
        np.zeros(in_heap, EXTRA),
        np.zeros(in_heap, np.int32),
        np.zeros(wheel.WORDS if order in _WHEELS else 1, np.int64),
        np.zeros(max(lines * sketch.LINE, 1), np.uint8),
        np.zeros(entries if order == S3FIFO else 1, np.int64),
    )


def grown(order: int, s: State, entries: int) -> State:
    """The same order with room for `entries` entries, which must not be fewer than it has room for."""
    wider = empty(order, entries, 1, 1)
    for old, new in ((s.numbers, wider.numbers), (s.nodes, wider.nodes), (s.words, wider.words)):
        new[: len(old)] = old
    wider.extras[: len(s.extras)] = s.extras
    wider.heap[: len(s.heap)] = s.heap
    counters = s.counters.copy()
    while len(counters) < _LEAST_SHARE * _COUNTERS.get(order, 0) * entries:
        counters = np.repeat(counters.reshape(-1, sketch.LINE), 2, axis=0).ravel()
    if order == S3FIFO:
        told = s.ghosts[s.ghosts != 0]
        wider.ghosts[((told >> 32) & 0xFFFFFFFF) * len(wider.ghosts) >> 32] = told
    return wider._replace(counters=counters)
