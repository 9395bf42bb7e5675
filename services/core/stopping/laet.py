"""Rule: predict once, or at a few stamps, how many lists this query needs, and visit as many.

C. Li, M. Zhang, D. Andersen, Y. He, "Improving Approximate Nearest Neighbor Search through Learned Adaptive
Early Termination" (SIGMOD 2020), sections 4.1 to 4.3; several stamps: C. Li's thesis (CMU-CS-20-105), section
5.2. After f lists a regression gives the number of lists with which the true neighbours are found; what is
visited is

    ceil(multiplier * max(1, prediction)),  the prediction being 2^x where the model was trained on log2

and at least f. The multiplier sets the recall. With more stamps a later prediction replaces the earlier one,
unless that lies before the next stamp.

Features (table 2 of the paper): the query; the distances of the 10th, 20th ... 100th centroid over the
nearest one's; the best distance, that of the last watched (the paper's tenth), best over last, best over the
nearest centroid. Departure: the multiplier is tuned on a calibration split, not on the test queries.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..compiled import compiled
from ..trees.evaluator import score_row
from .state import ASKED, BEST, LAST, LISTS, Floats, State, ahead_of

MULTIPLIER, LOGARITHMIC, STAMPS = 0, 1, 2
_PLAN = 1  # of memory
_GUARD = 1e-10
_BEHIND_QUERY = 14


@compiled
def features(seen: State, coarse: Floats, query: Floats, row: State) -> None:
    """The d + 14 features of a state."""
    d = query.size
    row[:d] = query
    nearest = coarse[0] + _GUARD
    for i in range(10):
        row[d + i] = coarse[ahead_of(coarse, 10 * (i + 1))] / nearest
    row[d + 10] = seen[BEST]
    row[d + 11] = seen[LAST]
    row[d + 12] = seen[BEST] / (seen[LAST] + _GUARD)
    row[d + 13] = seen[BEST] / nearest


@compiled
def decide(
    seen: State, coarse: Floats, margins: Floats, query: Floats, memory: State, parameters: State, forest: Any
) -> int:
    """See `state`. parameters: [multiplier, 1 where the model predicts log2, stamps from the first on]."""
    lists = int(seen[LISTS])
    following = math.inf
    at_stamp = False
    for i in range(STAMPS, parameters.size):
        if parameters[i] > lists:
            following = parameters[i]
            break
        at_stamp = parameters[i] == lists
    if lists < parameters[STAMPS]:
        return int(following)
    if at_stamp:
        row = np.empty(query.size + _BEHIND_QUERY)
        features(seen, coarse, query, row)
        memory[ASKED] += 1
        needed = score_row(forest, row)
        if parameters[LOGARITHMIC] != 0:
            needed = 2.0 ** max(0.0, needed)
        memory[_PLAN] = math.ceil(parameters[MULTIPLIER] * max(1.0, needed))
    return int(min(memory[_PLAN], following))
