"""Least recently used: the yardstick that every other order is measured against.

    on a request for p:  if p is cached, move it to the head of the list
                         else evict from the tail until there is room; insert p at the head

O(1). Costs and sizes play no part. Not to be used where a few entries cost most of the work, or where scans
pass through: one pass over many keys throws everything out.
"""

from __future__ import annotations

from ..compiled import compiled
from .state import NONE, State, link, oldest, unlink

LISTS = 1


@compiled
def admit(s: State, slot: int) -> None:
    """Insert at the head."""
    link(s, 0, slot)


@compiled
def hit(s: State, slot: int) -> None:
    """Move to the head."""
    unlink(s, slot)
    link(s, 0, slot)


@compiled
def pop(s: State) -> int:
    """Take out the tail, NONE when empty."""
    slot = oldest(s, 0)
    if slot == 0:
        return NONE
    unlink(s, slot)
    return slot
