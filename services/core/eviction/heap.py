"""A binary heap of slots by (priority, number of the last use), with every slot's place known.

The yardstick of exactness: what a wheel claims is held to this. Because places are known, an entry that rises
or leaves is moved in O(log n), and no dead item stays behind.
"""

from __future__ import annotations

from ..compiled import compiled
from .state import CLOCK, HEAPED, NONE, State


@compiled
def _before(s: State, one: int, other: int) -> bool:
    mine, others = s.nodes[one]["priority"], s.nodes[other]["priority"]
    return bool(mine < others or (mine == others and s.extras[one]["used"] < s.extras[other]["used"]))


@compiled
def _put(s: State, place: int, slot: int) -> None:
    s.heap[place] = slot
    s.extras[slot]["place"] = place


@compiled
def _sift(s: State, place: int, slot: int) -> None:
    """Bring a slot from a place, up or down, to where it belongs."""
    while place > 0 and _before(s, slot, s.heap[(place - 1) >> 1]):
        _put(s, place, s.heap[(place - 1) >> 1])
        place = (place - 1) >> 1
    size = s.numbers[HEAPED]
    child = 2 * place + 1
    while child < size:
        if child + 1 < size and _before(s, s.heap[child + 1], s.heap[child]):
            child += 1
        if not _before(s, s.heap[child], slot):
            break
        _put(s, place, s.heap[child])
        place, child = child, 2 * child + 1
    _put(s, place, slot)


@compiled
def insert(s: State, slot: int, used: int) -> None:
    """Add a slot at its node's priority, with the number of its last use."""
    s.extras[slot]["used"] = used
    s.numbers[HEAPED] += 1
    _sift(s, s.numbers[HEAPED] - 1, slot)


@compiled
def rise(s: State, slot: int, used: int) -> None:
    """Move a slot whose node's priority or last use has changed."""
    s.extras[slot]["used"] = used
    _sift(s, s.extras[slot]["place"], slot)


@compiled
def delete(s: State, slot: int) -> None:
    """Take a slot out."""
    place = s.extras[slot]["place"]
    s.numbers[HEAPED] -= 1
    last = s.heap[s.numbers[HEAPED]]
    if last != slot:
        _sift(s, place, last)


@compiled
def first(s: State) -> int:
    """The slot of lowest priority, the least recently used among equals; NONE when empty."""
    return int(s.heap[0]) if s.numbers[HEAPED] else NONE


@compiled
def pop(s: State) -> int:
    """Take out the slot of lowest priority, and move the clock there; NONE when empty."""
    slot = first(s)
    if slot != NONE:
        delete(s, slot)
        s.numbers[CLOCK] = max(s.numbers[CLOCK], s.nodes[slot]["priority"])
    return slot
