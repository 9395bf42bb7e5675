"""SIEVE: one queue, one bit an entry, and a hand that sieves.

Source: Y. Zhang, J. Yang et al., "SIEVE is simpler than LRU" (NSDI 2024), algorithm 1:

    1  hit:    visited(p) <- 1; nothing moves
    2  miss:   while there is no room, evict;  insert p at the head, visited(p) <- 0
    3  evict:  o <- the hand, or the tail when there is none
    4          while visited(o):  visited(o) <- 0;  o <- its newer neighbour, or the tail behind the head
    5          the hand <- the newer neighbour of o;  evict o

The hand stays where it stopped, so new entries behind it are tried before old ones that proved themselves.
O(1) amortised. Knows neither costs nor sizes; weak against scans that visit their keys twice.
"""

from __future__ import annotations

from ..compiled import compiled
from .state import HAND, NONE, State, link, oldest, unlink

LISTS = 1  # slot 0 is the head of the list, and a hand of 0 is no hand


@compiled
def admit(s: State, slot: int) -> None:
    """Line 2."""
    s.nodes[slot]["frequency"] = 0
    link(s, 0, slot)


@compiled
def hit(s: State, slot: int) -> None:
    """Line 1."""
    s.nodes[slot]["frequency"] = 1


@compiled
def remove(s: State, slot: int) -> None:
    """Take out an entry; a hand on it moves on, as in line 5."""
    if s.numbers[HAND] == slot:
        s.numbers[HAND] = s.nodes[slot]["previous"]
    unlink(s, slot)


@compiled
def pop(s: State) -> int:
    """Lines 3 to 5; NONE when empty."""
    slot = s.numbers[HAND]
    if slot == 0:
        slot = oldest(s, 0)
    if slot == 0:
        return NONE
    while s.nodes[slot]["frequency"]:
        s.nodes[slot]["frequency"] = 0
        slot = s.nodes[slot]["previous"]
        if slot == 0:
            slot = oldest(s, 0)
    s.numbers[HAND] = slot
    remove(s, slot)
    return int(slot)
