"""Rule: predict the recall reached so far, and stop when it is the recall wanted.

M. Chatzakis, Y. Papakonstantinou, T. Palpanas, "DARTH: Declarative Recall Through Early Termination for
Approximate Nearest Neighbor Search" (SIGMOD 2026, arXiv 2505.19001). One regression per k, of features that
the search has at hand; asked at intervals that shrink as the prediction R_p nears the target R_t,

    interval = mpi + (ipi - mpi) (R_t - R_p)     distances, ipi = D/2, mpi = D/10

with D the mean number of distances that reaches R_t. Departures: an inverted file stops only between lists,
so an interval is rounded to lists of the mean size seen; R_t is the knob, tuned on a calibration split,
because the recall where predictions reach r is not r.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..compiled import compiled
from ..trees.evaluator import score_row
from .state import (
    ASKED,
    BEST,
    CODES,
    INSERTED,
    LAST,
    LISTS,
    MEAN,
    MEDIAN,
    QUARTER,
    THREE_QUARTERS,
    VARIANCE,
    Floats,
    State,
)

FEATURES = 11
TARGET, FIRST_INTERVAL, LEAST_INTERVAL = 0, 1, 2


@compiled
def features(seen: State, coarse: Floats, row: State) -> None:
    """The 11 features of a state."""
    row[0], row[1], row[2], row[3] = seen[LISTS], seen[CODES], seen[INSERTED], coarse[0]
    row[4], row[5], row[6], row[7] = seen[BEST], seen[LAST], seen[MEAN], seen[VARIANCE]
    row[8], row[9], row[10] = seen[QUARTER], seen[MEDIAN], seen[THREE_QUARTERS]


@compiled
def decide(
    seen: State, coarse: Floats, margins: Floats, query: Floats, memory: State, parameters: State, forest: Any
) -> int:
    """See `state`. parameters: [target, first interval, least interval], intervals in distances."""
    lists = int(seen[LISTS])
    interval = parameters[FIRST_INTERVAL]
    if seen[CODES] >= interval and seen[LAST] < math.inf:
        row = np.empty(FEATURES)
        features(seen, coarse, row)
        memory[ASKED] += 1
        missing = parameters[TARGET] - score_row(forest, row)
        if missing <= 0:
            return lists
        least = parameters[LEAST_INTERVAL]
        interval = least + (interval - least) * missing
    else:
        interval = max(interval - seen[CODES], 0.0)
    return lists + max(1, int(interval * lists / max(seen[CODES], 1.0) + 0.5))
