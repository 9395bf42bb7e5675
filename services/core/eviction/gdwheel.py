"""GD-Wheel, exact: GreedyDual in constant time.

Source: C. Li and A. Cox, "GD-Wheel: a cost-aware replacement policy for key-value stores" (EuroSys 2015),
section 3.2 and algorithm 2; the same authors' LADIS 2013 paper, section III.

    1  on a request for p:  if p is cached,  take p out of its queue;  H(p) <- L + c(p);  insert p
    2    else while there is no room:        q <- the oldest entry of the first queue of wheel 1, after
                                             migrating from higher wheels while it is empty;  L <- H(q)
    3    insert p at H(p) <- L + c(p)

The paper of 2015 states that its decisions equal GreedyDual's, but its pseudo-code keeps only the cost of an
entry: a migration then forgets how far hand 1 had turned when the entry came (`gdwheel2015`). Here every node
keeps H, as in the paper of 2013, and the order is that of a heap, victim for victim. Sizes play no part, as
in the paper, whose slab classes keep sizes apart. Costs above the range saturate. The wheel itself, and line
2, are in `wheel`. O(1) amortised.
"""

from __future__ import annotations

from ..compiled import compiled
from . import wheel
from .state import CLOCK, State
from .values import raised

LISTS, WORDS = wheel.LISTS, wheel.WORDS


@compiled
def admit(s: State, slot: int) -> None:
    """Line 3."""
    s.nodes[slot]["priority"] = raised(s.numbers[CLOCK], s.nodes[slot]["cost"])
    wheel.insert(s, slot)


@compiled
def hit(s: State, slot: int) -> None:
    """Line 1."""
    wheel.remove(s, slot)
    admit(s, slot)
