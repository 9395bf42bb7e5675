"""GreedyDual, exact, on a heap: the yardstick of the wheels.

The algorithm, its source and its properties are told in `greedydual`, whose class serves the live sidecar:
that one restores, peeks and reorders, this one replays millions of requests.

    1  on a request for p:  if p is cached,  H(p) <- L + c(p)
    2    else while there is no room:        q <- argmin H, the least recently used among equals;  L <- H(q)
    3    insert p;                           H(p) <- L + c(p)

O(log n). Line 2 is `heap.pop`.
"""

from __future__ import annotations

from ..compiled import compiled
from . import heap
from .state import CLOCK, State, use
from .values import raised


@compiled
def admit(s: State, slot: int) -> None:
    """Line 3."""
    s.nodes[slot]["priority"] = raised(s.numbers[CLOCK], s.nodes[slot]["cost"])
    heap.insert(s, slot, use(s))


@compiled
def hit(s: State, slot: int) -> None:
    """Line 1."""
    s.nodes[slot]["priority"] = raised(s.numbers[CLOCK], s.nodes[slot]["cost"])
    heap.rise(s, slot, use(s))
