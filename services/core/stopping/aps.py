"""Rule: stop when the lists visited hold the neighbours with enough estimated probability, by geometry alone.

J. Mohoney et al., "Quake: Adaptive Indexing for Vector Search" (OSDI 2025), adaptive partition scanning. The
k nearest lie within rho of the query, rho the distance of the k-th found. A neighbour is in list j rather
than in the nearest one only beyond the hyperplane between the two centroids, at distance

    h_j = (|q - c_j|^2 - |q - c_0|^2) / (2 |c_j - c_0|)

so list j's share is proportional to the volume of the cap of the ball of radius rho beyond it,

    v_j = 1/2 I_{1 - (h_j/rho)^2} ((d+1)/2, 1/2)

(I: regularised incomplete beta), and the nearest list's v_0 to twice that of the first other, as in the
authors' code. Stop when the shares of the visited lists, of `candidates` lists in all, reach tau. No
training.

Departures. The paper normalises over a first 2 % of the lists; the number is tuned here. The authors' code
looks the beta function up by sin(phi) where the formula has its square; we follow the formula. |c_j - c_0|
comes from the `margins` that the search computes: coarse distances are not enough.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..compiled import compiled
from .state import LAST, LISTS, Floats, State

POINTS = 1024
"""Entries of the table of cap volumes, over (h/rho)^2 from 0 to 1."""
TAU, CANDIDATES, TABLE = 0, 1, 2
_TOTAL, _VISITED, _RADIUS, _COUNTED = 1, 2, 3, 4  # of memory
_SAME = 1e-3  # relative change of the radius below which the caps are kept, as in the paper


def parameters(tau: float, candidates: int, dimension: int) -> State:
    """The rule's parameters: tau, number of candidate lists, and the table of cap volumes."""
    from scipy.special import betainc  # for benches: serving needs the kernel only

    ratio = np.linspace(0.0, 1.0, POINTS)
    table = 0.5 * betainc((dimension + 1) / 2, 0.5, 1.0 - ratio)
    return np.concatenate(([tau, float(candidates)], table))


@compiled
def _cap(margin: float, squared_radius: float, parameters: State) -> float:
    ratio = margin * margin / squared_radius
    if ratio >= 1.0:
        return 0.0
    volume: float = parameters[TABLE + int(ratio * (POINTS - 1) + 0.5)]
    return volume


@compiled
def decide(
    seen: State, coarse: Floats, margins: Floats, query: Floats, memory: State, parameters: State, forest: Any
) -> int:
    """See `state`. parameters: as `parameters` makes them."""
    lists = int(seen[LISTS])
    if not seen[LAST] < math.inf:
        return lists + 1
    candidates = min(int(parameters[CANDIDATES]), margins.size)
    squared_radius = max(seen[LAST], 1e-30)
    unchanged = abs(squared_radius - memory[_RADIUS]) <= _SAME * memory[_RADIUS]
    if unchanged:  # the caps are those of the last time; one more list, or some, is visited
        for j in range(int(memory[_COUNTED]), min(lists, candidates)):
            memory[_VISITED] += _cap(margins[j], memory[_RADIUS], parameters)
    else:
        first = 2 * _cap(margins[1], squared_radius, parameters) if margins.size > 1 else 1.0
        memory[_TOTAL], memory[_VISITED], memory[_RADIUS] = first, first, squared_radius
        for j in range(1, candidates):
            volume = _cap(margins[j], squared_radius, parameters)
            memory[_TOTAL] += volume
            if j < lists:
                memory[_VISITED] += volume
    memory[_COUNTED] = lists
    return lists if memory[_VISITED] >= parameters[TAU] * memory[_TOTAL] else lists + 1
