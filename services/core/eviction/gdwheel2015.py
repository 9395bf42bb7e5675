"""GD-Wheel as its pseudo-code of 2015 has it, for comparison only: it keeps the cost of an entry, not H.

Source: C. Li and A. Cox, EuroSys 2015, algorithm 2: two wheels of NQ = 256 queues, a hand C[i] each.

    insert p   1  W <- the largest i with floor(c / NQ^(i-1)) > 0
               2  Q <- (floor(c / NQ^(W-1)) + C[W]) mod NQ;  push p to the head of queue Q of wheel W
    evict      3  advance C[1] to the next queue that is not empty; when it completes a turn, migrate(2)
               4  evict the tail of that queue
    migrate(i) 5  C[i] <- C[i] + 1 mod NQ;  when it completes a turn, migrate(i + 1) first
               6  move each p of queue C[i] to queue (floor((c mod NQ^(i-1)) / NQ^(i-2)) + C[i-1]) mod NQ of
                  wheel i - 1

Departures: floor, where the text says round, since its figure 2 leaves queue 1 of wheel 2 unused, which
rounding would not; costs are clamped to the range, which the paper does not discuss; while wheel 1 is empty,
migration goes on, which it leaves open. What is wrong with it: line 6 adds the rest of the cost to C[1],
which stands at the start of a turn, and not to where C[1] stood at line 2: an entry from wheel 2 goes up to
255 units early. There is no L to read: the order's clock stays 0.
"""

from __future__ import annotations

from ..compiled import compiled
from .state import COUNT, HAND, NONE, PART, State, link, oldest, unlink

_NQ = 256
_WHEELS = 2
LISTS = _WHEELS * _NQ

_HAND_1, _HAND_2 = HAND, PART


@compiled
def admit(s: State, slot: int) -> None:
    """Lines 1 and 2."""
    cost = min(s.nodes[slot]["cost"], _NQ * _NQ - 1)
    if cost < _NQ:
        link(s, (cost + s.numbers[_HAND_1]) % _NQ, slot)
    else:
        link(s, _NQ + (cost // _NQ + s.numbers[_HAND_2]) % _NQ, slot)


@compiled
def hit(s: State, slot: int) -> None:
    """Remove and insert anew."""
    unlink(s, slot)
    admit(s, slot)


@compiled
def pop(s: State) -> int:
    """Lines 3 and 4; NONE when empty. The caller still counts the entry, so `COUNT` tells emptiness."""
    if s.numbers[COUNT] == 0:
        return NONE
    while oldest(s, s.numbers[_HAND_1]) == s.numbers[_HAND_1]:
        s.numbers[_HAND_1] = (s.numbers[_HAND_1] + 1) % _NQ
        if s.numbers[_HAND_1] == 0:
            _migrate(s)
    slot = oldest(s, s.numbers[_HAND_1])
    unlink(s, slot)
    return slot


@compiled
def _migrate(s: State) -> None:
    """Lines 5 and 6 for wheel 2, the last one."""
    s.numbers[_HAND_2] = (s.numbers[_HAND_2] + 1) % _NQ
    queue = _NQ + s.numbers[_HAND_2]
    slot = oldest(s, queue)
    while slot != queue:
        unlink(s, slot)
        rest = min(s.nodes[slot]["cost"], _NQ * _NQ - 1) % _NQ
        link(s, (rest + s.numbers[_HAND_1]) % _NQ, slot)
        slot = oldest(s, queue)
