"""What a stop rule sees of a search, and the interface of the rules.

A search over an inverted file visits lists from the nearest centroid on. After some of them it asks its rule

    decide(seen, coarse, margins, query, memory, parameters, forest) -> lists

which answers how many lists to have visited when it wants to be asked again; an answer that is not above
the number visited ends the search. So a rule may look at every list, at the rungs of a ladder, or only once
where it knows how much to do, and asking costs no call of Python: rules and search are compiled together.

    seen        float64 [SLOTS], the state, by the constants below
    coarse      float32 [lists of the index], squared distances of the centroids, nearest first. Valid up to
                twice the lists visited, at least up to READY
    margins     float32, distance of the query from the hyperplane between the nearest centroid and each, in
                the order of coarse. Computed for the rule `aps` alone
    query       float32 [d], as the index compares it (rotated where the index rotates)
    memory      float64 [MEMORY], zero at the start of a query and the rule's own from then on; memory[ASKED]
                counts the evaluations of its model
    parameters  float64, meaning set by the rule
    forest      the arrays of a `trees.Forest`; a forest without trees where the rule has no model

Every rule is a function of these alone. A trace of `seen` after every list, recorded once per query, hence
decides what any rule with any parameters would have done (`replay`), which is how they are trained and tuned.

The state tells of the nearest vectors found so far: k of them, but 10 for k below 10, as the first one or two
alone say too little (the 10th best carries most of what is known about whether the best will be beaten).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..compiled import compiled

LISTS = 0  # lists visited
CODES = 1  # vectors compared with the query
BEST = 2  # squared distance of the nearest found
LAST = 3  # of the farthest of those watched; infinite while fewer were found
BEST_AT = 4  # lists visited when BEST changed last
LAST_AT = 5  # lists visited when the watched set changed last
STABLE_AT = 6  # lists visited when more than 5 % of the k nearest were displaced by one list
INSERTED = 7  # vectors that entered the watched set
AHEAD = 8  # vectors in the lists up to the next rung
MEAN, VARIANCE, QUARTER, MEDIAN, THREE_QUARTERS = 9, 10, 11, 12, 13  # of the watched distances (rule DARTH)
SLOTS = 14

ASKED = 0
MEMORY = 5
READY = 128
WATCHED = 10
"""The least number of nearest vectors whose distances the state tells of."""

State: TypeAlias = npt.NDArray[np.float64]
Floats: TypeAlias = npt.NDArray[np.float32]


@compiled
def next_rung(lists: int) -> int:
    """The rung above `lists` of a ladder that grows by two fifths: 1, 2, 3, 4, 5, 7, 9, 12, 16, 22 ..."""
    return lists + max(1, int(0.4 * lists))


@compiled
def ahead_of(coarse: Floats, lists: int) -> int:
    """Place in `coarse` of the `lists`-th centroid, or of the farthest where there are fewer."""
    return min(lists, coarse.size) - 1
