"""Rule: stop when a closed form of the gain density falls below a threshold. No model.

How likely the next list holds a nearer vector falls with the distance of its centroid over that of the
neighbours found, about as a power e of it; and it falls with the work done, as what is found first is found
near. So

    density = (last^a best^(1-a) / next)^e / vectors compared

compared with one threshold for every query, in logarithms. `a` weighs the last of those watched against the
best: 1 when the k nearest are wanted and k is at least 10; about a half for the one nearest, for which the
best matters by itself. Exponent, a and threshold are chosen in calibration.

When not to use: where a trained `marginal` serves. It needs no training data beyond calibration, and holds up
better than a fixed budget when queries drift.
"""

from __future__ import annotations

import math
from typing import Any

from ..compiled import compiled
from .state import BEST, CODES, LAST, LISTS, Floats, State, ahead_of, next_rung

_TINY = 1e-12


@compiled
def decide(
    seen: State, coarse: Floats, margins: Floats, query: Floats, memory: State, parameters: State, forest: Any
) -> int:
    """See `state`. parameters: [log of the threshold, exponent, a]."""
    lists = int(seen[LISTS])
    if seen[LAST] < math.inf:
        a = parameters[2]
        found = a * math.log(seen[LAST] + _TINY) + (1 - a) * math.log(seen[BEST] + _TINY)
        following = math.log(coarse[ahead_of(coarse, lists + 1)] + _TINY)
        if parameters[1] * (found - following) - math.log(max(seen[CODES], 1.0)) < parameters[0]:
            return lists
    return next_rung(lists)
