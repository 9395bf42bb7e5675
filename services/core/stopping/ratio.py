"""Rule: stop a best-first search when its next candidate is too far beyond what was found. No model.

A graph search expands the nearest node it knows of and has not expanded, so the distances at which it expands
tell how far out it has come. Of those it found, the k-th best says what a neighbour must beat. Their quotient
alone says nearly all that 100 trees can say about whether a neighbour is still missing:

    stop  <=>  next > g * last^(1-a) * best^a

(squared distances throughout). a = 0 is known as distance-adaptive beam search (Y. Al-Jazzazi et al.,
"Distance Adaptive Beam Search for Provably Accurate Graph-Based Nearest Neighbor Search", arXiv 2505.15636).
Where the one nearest is wanted, a geometric mix with it is better: one found far inside the rest is hardly
ever beaten. g and a are chosen in calibration.

As `last` and `best` only fall, a node beyond the reach now is never expanded later: it need not be queued.
That saves as much time as stopping does, and the heap of `ef` results that a fixed beam keeps.
"""

from __future__ import annotations

import math

from ..compiled import compiled

LOG_G, MIX = 0, 1
"""Parameters."""


@compiled
def reach(best: float, last: float, log_g: float, mix: float) -> float:
    """Squared distance beyond which no node is expanded; infinite while `last` is."""
    if not last < math.inf:
        return math.inf
    if mix == 0.0:
        return math.exp(log_g) * last
    mixed: float = math.exp(log_g) * last ** (1.0 - mix) * best**mix
    return mixed
