"""GreedyDual, exact, on a heap: what costs least to compute again goes first, softened by age.

Source: N. Young, "The k-server dual and loose competitiveness for paging", Algorithmica 11 (1994), in the
form with an inflation value L that section 3.1 of GD-Wheel (C. Li and A. Cox, EuroSys 2015) gives:

    1  on a request for p:  if p is cached,  H(p) <- L + c(p)
    2    else while there is no room:        q <- argmin H, the least recently used among equals;  L <- H(q)
    3    insert p;                           H(p) <- L + c(p)

Properties: k-competitive for weighted caching; with equal costs it is LRU, since H then rises with every use.
L is what ages: an entry that was hot once stays until L has risen by its cost, however often it was used.
Sizes play no part. O(log n). Line 2 is `heap.pop`. The yardstick of the wheels.
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
