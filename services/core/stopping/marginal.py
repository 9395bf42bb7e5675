"""Rule: stop when the gain that a model expects of the next lists, per unit of work, falls below a threshold.

Problem. Of many queries some are done after one list and some need a hundred. To reach a mean recall at the
least work, work on must go where it brings most: at the optimum the *marginal* gain, true neighbours per
vector compared, is equal over queries (Lagrange), not the recall. So one threshold lambda per recall target
is the whole calibration, and stopping queries at equal predicted recall, as LAET (SIGMOD'20) and DARTH
(SIGMOD'26) do, is the better rule only where each query has to reach the target.

Model. The number of true neighbours in the lists up to the next rung is a count, rare at high recall, so both
parts are fitted to the Poisson likelihood:

    log E[gain] = w0 + w.x + x'Wx + forest(x)

a log-linear start over eight features x and their products, on which LightGBM boosts few small trees. The
start alone costs 45 multiplications (about 30 ns) and says nearly all; the forest is asked only where the
start lies within `band` of the threshold, so that it can change the answer. At the end

    stop  <=>  log E[gain] - log(vectors in those lists) < log lambda

Features; all but log last are free of the scale of distances, which is there for what is not:

    log lists, log vectors ahead, log next/last, log next/best, log (1 + lists since the watched set changed),
    log twice/last, log first/last, log last, log k (in the forest only)

where next, twice and first are the centroids at the next list, at twice the lists visited and of the nearest
list; `best` and `last` see `state`. For the one nearest, "since" tells of the best.

Complexity: O(1) a rung, about five rungs a doubling of the lists. Approximate: gains beyond the next rung are
not looked at, so a poor rung before a rich one ends a search early; longer horizons brought nothing when
measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..compiled import compiled
from ..trees.evaluator import raw_row
from .state import (
    AHEAD,
    ASKED,
    BEST,
    BEST_AT,
    LAST,
    LAST_AT,
    LISTS,
    Floats,
    State,
    ahead_of,
    next_rung,
)

FEATURES = (
    "log_lists",
    "log_ahead",
    "log_next_over_last",
    "log_next_over_best",
    "log_since",
    "log_twice_over_last",
    "log_first_over_last",
    "log_last",
    "log_k",
)
STARTING = len(FEATURES) - 1
"""The features of the start, all but log k: each k has a start of its own, and all share the forest."""
TERMS = 1 + STARTING + STARTING * (STARTING + 1) // 2
"""Coefficients of the log-linear start: constant, each feature, each product of two."""

THRESHOLD, BAND, K, START = 0, 1, 2, 3
_TINY = 1e-12


@compiled
def features(seen: State, coarse: Floats, k: float, row: State) -> None:
    """The model's features of a state, for the k nearest, into row [9]."""
    lists = int(seen[LISTS])
    last = math.log(seen[LAST] + _TINY)
    following = math.log(coarse[ahead_of(coarse, lists + 1)] + _TINY)
    row[0] = math.log(lists)
    row[1] = math.log(max(seen[AHEAD], 1.0))
    row[2] = following - last
    row[3] = following - math.log(seen[BEST] + _TINY)
    row[4] = math.log(1 + lists - (seen[BEST_AT] if k < 2 else seen[LAST_AT]))
    row[5] = math.log(coarse[ahead_of(coarse, 2 * lists + 1)] + _TINY) - last
    row[6] = math.log(coarse[0] + _TINY) - last
    row[7] = last
    row[8] = math.log(k)


@compiled
def start(row: State, terms: State) -> float:
    """The log-linear part of log E[gain]: constant, features, then products i <= j, row by row."""
    total: float = terms[0]
    at = 1 + STARTING
    for i in range(STARTING):
        inner = terms[1 + i]
        for j in range(i, STARTING):
            inner += terms[at] * row[j]
            at += 1
        total += inner * row[i]
    return total


@compiled
def decide(
    seen: State, coarse: Floats, margins: Floats, query: Floats, memory: State, parameters: State, forest: Any
) -> int:
    """See `state`. parameters: [log lambda, band, k, terms of the start]."""
    lists = int(seen[LISTS])
    if not seen[LAST] < math.inf:  # fewer found than watched
        return next_rung(lists)
    row = np.empty(len(FEATURES))
    features(seen, coarse, parameters[K], row)
    excess = start(row, parameters[START:]) - row[1] - parameters[THRESHOLD]
    if abs(excess) < parameters[BAND]:
        memory[ASKED] += 1
        excess += raw_row(forest, row)
    return lists if excess < 0 else next_rung(lists)


def parameters(log_threshold: float, band: float, k: int, terms: Sequence[float]) -> State:
    """The rule's parameters: lambda as a logarithm, band, k, and the TERMS terms of the start of that k."""
    return np.array([log_threshold, band, float(k), *terms])
