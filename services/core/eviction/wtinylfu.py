"""W-TinyLFU: a small window of newcomers, and a main part that one enters by being asked for more often.

Source: G. Einziger, R. Friedman and B. Manes, "TinyLFU: a highly efficient cache admission policy" (ACM ToS
2017), section 4:

    1  every request for p counts p in a sketch, up to 15; after 10 counts an entry all counts are halved
    2  insert: p goes to the head of the window, which keeps 1 % of the cache (an LRU)
    3  what falls out of the window is a candidate for the main part, a segmented LRU: probation, protected
    4  while the main part has room it enters; else it meets the main victim, the tail of probation: the one
       with the higher count stays, in probation; the other is evicted
    5  a hit in probation promotes to protected, which keeps 80 % of the main part and demotes its tail

Departures: shares are of what the cache holds; when the window is below its share, the main victim goes
without a duel; no doorkeeper. The sketch is ours (`sketch`), with so many counters that a count is nearly
exact. O(1) amortised. Knows no costs; sizes count in the shares only.
"""

from __future__ import annotations

from ..compiled import compiled
from . import sketch
from .state import BYTES, COUNT, HAND, NONE, PART, SEEN, State, link, oldest, unlink

LISTS = 3
_WINDOW, _PROBATION, _PROTECTED = 0, 1, 2
_WINDOW_SHARE = 100  # one part in
_MOST = 15
_SAMPLE = 10

_PROTECTED_BYTES = HAND


@compiled
def _count(s: State, digest: int) -> None:
    """Line 1."""
    sketch.store(s, digest, min(sketch.estimate(s, digest) + 1, _MOST))
    s.numbers[SEEN] += 1
    if s.numbers[SEEN] >= _SAMPLE * s.numbers[COUNT]:
        s.numbers[SEEN] = 0
        sketch.halve(s)


@compiled
def _place(s: State, slot: int, part: int) -> None:
    s.nodes[slot]["frequency"] = part
    if part == _WINDOW:
        s.numbers[PART] += s.nodes[slot]["size"]
    elif part == _PROTECTED:
        s.numbers[_PROTECTED_BYTES] += s.nodes[slot]["size"]
    link(s, part, slot)


@compiled
def remove(s: State, slot: int) -> None:
    """Take out an entry."""
    if s.nodes[slot]["frequency"] == _WINDOW:
        s.numbers[PART] -= s.nodes[slot]["size"]
    elif s.nodes[slot]["frequency"] == _PROTECTED:
        s.numbers[_PROTECTED_BYTES] -= s.nodes[slot]["size"]
    unlink(s, slot)


@compiled
def admit(s: State, slot: int) -> None:
    """Lines 2 and 3, where the main part has room."""
    _count(s, s.nodes[slot]["digest"])
    _place(s, slot, _WINDOW)
    while s.numbers[PART] * _WINDOW_SHARE > s.numbers[BYTES] and oldest(s, _WINDOW) != slot:
        passed = oldest(s, _WINDOW)
        remove(s, passed)
        _place(s, passed, _PROBATION)


@compiled
def hit(s: State, slot: int) -> None:
    """Lines 1 and 5."""
    _count(s, s.nodes[slot]["digest"])
    part = s.nodes[slot]["frequency"]
    remove(s, slot)
    _place(s, slot, _WINDOW if part == _WINDOW else _PROTECTED)
    while s.numbers[_PROTECTED_BYTES] * 5 > (s.numbers[BYTES] - s.numbers[PART]) * 4:
        demoted = oldest(s, _PROTECTED)
        remove(s, demoted)
        _place(s, demoted, _PROBATION)


@compiled
def pop(s: State) -> int:
    """Line 4; NONE when empty."""
    candidate, victim = oldest(s, _WINDOW), oldest(s, _PROBATION)
    if victim == _PROBATION:
        victim = oldest(s, _PROTECTED)
    if candidate == _WINDOW or s.numbers[PART] * _WINDOW_SHARE < s.numbers[BYTES]:
        loser = victim
    elif victim == _PROTECTED:
        loser = candidate
    elif _uses(s, candidate) > _uses(s, victim):
        remove(s, candidate)
        _place(s, candidate, _PROBATION)
        loser = victim
    else:
        loser = candidate
    if loser == _PROTECTED:
        loser = candidate
    if loser == _WINDOW:
        return NONE
    remove(s, loser)
    return loser


@compiled
def _uses(s: State, slot: int) -> int:
    return sketch.estimate(s, s.nodes[slot]["digest"])
