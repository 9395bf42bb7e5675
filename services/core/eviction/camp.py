"""CAMP: GreedyDual-Size with rounded ratios, one LRU queue a ratio, and a heap over the queues only.

Source: S. Ghandeharizadeh, S. Irani, J. Lam and J. Yap, "CAMP: a cost adaptive multi-queue eviction policy
for key-value stores" (Middleware 2014), sections 2 and 3:

    1  ratio(p) <- cost(p) / size(p), scaled to an integer by the largest size seen, rounded to its PRECISION
       most significant bits
    2  hit or insert: H(p) <- L + ratio(p);  p goes to the end of the queue of its ratio
    3  evict: among the queues the one whose first entry has the lowest H; evict that entry
    4  L <- the lowest H that is left

L does not fall, so H rises along each queue and its first entry is its lowest. An eviction is
(1 + 2^(1 - PRECISION))-competitive where GreedyDual-Size is 1. There are at most 2^(PRECISION - 1) queues a
bit length, found by number and not by a table. Ties between queues go to the one whose first entry is the
least recently used. A hit costs O(log queues) where it empties or heads a queue, else O(1).
"""

from __future__ import annotations

from ..compiled import compiled
from . import heap
from .state import CLOCK, LARGEST, NONE, State, link, oldest, unlink, use
from .values import raised, value

PRECISION = 5
_STEPS = 1 << (PRECISION - 1)
LISTS = 64 * _STEPS


@compiled
def rounded(ratio: int) -> int:
    """A ratio with its PRECISION most significant bits kept.

    >>> [rounded(n) for n in (0, 31, 32, 33, 1023)]
    [0, 31, 32, 32, 992]
    """
    drop = 0
    while ratio >> drop >= 2 * _STEPS:
        drop += 1
    return ratio >> drop << drop


@compiled
def _queue(ratio: int) -> int:
    drop = 0
    while ratio >> drop >= 2 * _STEPS:
        drop += 1
    return drop * _STEPS + (ratio >> drop)


@compiled
def _ranked(s: State, queue: int) -> None:
    """Bring a queue to its place among the queues after its first entry has changed."""
    first = oldest(s, queue)
    held = s.extras[queue]["used"] != 0
    if first == queue:
        if held:
            heap.delete(s, queue)
            s.extras[queue]["used"] = 0
        return
    s.nodes[queue]["priority"] = s.nodes[first]["priority"]
    if held:
        heap.rise(s, queue, s.nodes[first]["used"])
    else:
        heap.insert(s, queue, s.nodes[first]["used"])


@compiled
def admit(s: State, slot: int) -> None:
    """Lines 1 and 2. `frequency` holds the number of the queue."""
    node = s.nodes[slot]
    s.numbers[LARGEST] = max(s.numbers[LARGEST], node["size"], 1)
    ratio = rounded(value(node["cost"], node["size"], s.numbers[LARGEST]))
    queue = _queue(ratio)
    s.nodes[slot]["used"] = use(s)
    s.nodes[slot]["priority"] = raised(s.numbers[CLOCK], ratio)
    s.nodes[slot]["frequency"] = queue
    link(s, queue, slot)
    if oldest(s, queue) == slot:
        _ranked(s, queue)


@compiled
def remove(s: State, slot: int) -> None:
    """Take out an entry."""
    queue = s.nodes[slot]["frequency"]
    headed = oldest(s, queue) == slot
    unlink(s, slot)
    if headed:
        _ranked(s, queue)


@compiled
def hit(s: State, slot: int) -> None:
    """Line 2."""
    remove(s, slot)
    admit(s, slot)


@compiled
def pop(s: State) -> int:
    """Lines 3 and 4; NONE when empty."""
    queue = heap.first(s)
    if queue == NONE:
        return NONE
    slot = oldest(s, queue)
    remove(s, slot)
    lowest = heap.first(s)
    s.numbers[CLOCK] = s.nodes[slot]["priority"] if lowest == NONE else s.nodes[lowest]["priority"]
    return slot
