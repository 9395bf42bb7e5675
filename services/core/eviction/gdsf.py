"""GreedyDual-Size with Frequency: value is cost x frequency / size, while the entry stays.

Source: L. Cherkasova, "Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching policy",
HP Laboratories report HPL-98-69 (1998), algorithm on page 4:

    1  on a hit:   Fr(f) <- Fr(f) + 1;  Pr(f) <- Clock + Fr(f) * Cost(f) / Size(f)
    2  on a miss:  Fr(f) <- 1;          Pr(f) <- Clock + Cost(f) / Size(f)
    3    evict the entries of lowest Pr until f fits;  Clock <- the highest Pr evicted

Popular implementations drop Cost (libCacheSim: frequency / size); it is the point here and stays in. The
paper's last rule, not to admit f when f itself is among the lowest, is left out: it changed nothing where we
measured it, and a refused write would be a surprise in a cache that others fill.

Priorities are integers: RESOLUTION units stand for one unit of cost in an entry of typical size.
Frequency is forgotten with the entry, so a key that comes back starts from nothing; `ours` differs there.
Order kept by a heap: O(log n). Line 3 is `heap.pop`.
"""

from __future__ import annotations

from ..compiled import compiled
from . import heap
from .state import CLOCK, TYPICAL_SIZE, State, use
from .values import raised, value

RESOLUTION = 16


@compiled
def _placed(s: State, slot: int) -> None:
    s.nodes[slot]["frequency"] += 1
    node = s.nodes[slot]
    weight = node["frequency"] * RESOLUTION * s.numbers[TYPICAL_SIZE]
    s.nodes[slot]["priority"] = raised(s.numbers[CLOCK], value(node["cost"], node["size"], weight))


@compiled
def admit(s: State, slot: int) -> None:
    """Line 2; an entry that is written again keeps its frequency."""
    _placed(s, slot)
    heap.insert(s, slot, use(s))


@compiled
def hit(s: State, slot: int) -> None:
    """Line 1."""
    _placed(s, slot)
    heap.rise(s, slot, use(s))
