"""Counter-based random numbers: every draw is a hash of what it is about, not of what was drawn before.

Problem. Policies are compared on one log, so what a user does must not depend on which list was served, on
the chunk being made or on the number of days. A draw is therefore a function of the seed, a purpose (one
number per kind of draw) and up to two counters, through the finaliser of SplitMix64 (Steele, Lea & Flood,
OOPSLA 2014), which passes BigCrush as a generator over consecutive counters.

Common random numbers. A click is drawn once per request and ad: the user of request `r` clicks ad `a` where
shown iff `click_uniform(seed, r, a) < probability`. `seed` is the log's, `r` the row of the request in the
whole log (day 0 starts at 0) and `a` the public id of the ad, not its row. A replay that shows another list
to the same request asks the same numbers.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from services.core.compiled import compiled

# Purposes. Never reuse a number: two draws of one purpose with equal counters are equal.
CLICK = 1
ATOM, STICK, PICK, DEVICE = 2, 3, 4, 5
MATCH, ERROR, ROUND_ERROR, CONTEXT, AGEING, PHASE, ALGORITHM = 6, 7, 8, 9, 10, 11, 12
EMPTY_SLOT, EMPTY_CONTEXT, EMPTY_REQUEST, COST, LENGTH = 13, 14, 15, 16, 17
STATIC, DEMAND, STAND_IN, ORDER = 18, 19, 20, 21
LIFE, BUDGET, BID, MARKET, TRICKLE, FIRST_AD = 22, 23, 24, 25, 26, 27
THROTTLE, MERCHANT, TAKES_PART = 28, 29, 30

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_A, _B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


@compiled
def mix(value: np.uint64) -> np.uint64:
    """The finaliser of SplitMix64: a bijection of 64 bits in which every bit depends on every other."""
    value = (value ^ (value >> _S30)) * _A
    value = (value ^ (value >> _S27)) * _B
    return value ^ (value >> _S31)


@compiled
def stream(seed: int, purpose: int, first: int) -> np.uint64:
    """The state shared by all draws of one purpose and first counter; `at` takes the second counter."""
    state = mix(np.uint64(seed) * _GOLDEN + np.uint64(purpose))
    return mix(state + np.uint64(first) * _GOLDEN)


@compiled
def at(state: np.uint64, second: int) -> float:
    """A number in 0 <= u < 1 of a stream."""
    return float(mix(state + np.uint64(second) * _GOLDEN) >> _S11) * 2.0**-53


@compiled
def uniform(seed: int, purpose: int, first: int, second: int) -> float:
    """A number in 0 <= u < 1."""
    return at(stream(seed, purpose, first), second)


@compiled
def click_uniform(seed: int, request: int, ad_id: int) -> float:
    """The number in 0 <= u < 1 that decides whether the user of a request clicks an ad.

    seed: of the log. request: row in the whole log. ad_id: the ad's public id.
    """
    return uniform(seed, CLICK, request, ad_id)


@compiled
def to_normal(u: float) -> float:
    """The standard normal quantile of u (Acklam's rational approximation, relative error below 1.2e-9)."""
    u = min(max(u, 1e-15), 1.0 - 1e-15)
    if 0.02425 <= u <= 0.97575:
        q = u - 0.5
        r = q * q
        top = -3.969683028665376e1 * r + 2.209460984245205e2
        top = ((top * r - 2.759285104469687e2) * r + 1.383577518672690e2) * r
        top = (top - 3.066479806614716e1) * r + 2.506628277459239
        low = -5.447609879822406e1 * r + 1.615858368580409e2
        low = ((low * r - 1.556989798598866e2) * r + 6.680131188771972e1) * r - 1.328068155288572e1
        return top * q / (low * r + 1.0)
    q = math.sqrt(-2.0 * math.log(min(u, 1.0 - u)))
    top = (-7.784894002430293e-3 * q - 3.223964580411365e-1) * q - 2.400758277161838
    top = ((top * q - 2.549732539343734) * q + 4.374664141464968) * q + 2.938163982698783
    low = (7.784695709041462e-3 * q + 3.224671290700398e-1) * q + 2.445134137142996
    low = (low * q + 3.754408661907416) * q + 1.0
    return top / low if u < 0.5 else -top / low


CELLS = 4096
_QUANTILES = np.array([to_normal(cell / CELLS) for cell in range(CELLS + 1)])


@compiled
def normal(state: np.uint64, second: int) -> float:
    """A standard normal number of a stream; from a table, exact in the outer two of 4,096 cells."""
    place = at(state, second) * CELLS
    cell = int(place)
    if cell == 0 or cell == CELLS - 1:
        return to_normal(place / CELLS)
    return float(_QUANTILES[cell] + (place - cell) * (_QUANTILES[cell + 1] - _QUANTILES[cell]))


@compiled
def uniforms(seed: int, purpose: int, first: int, second: NDArray[np.int64]) -> NDArray[np.float64]:
    """`uniform` of every second counter."""
    state = stream(seed, purpose, first)
    out = np.empty(len(second))
    for i in range(len(second)):
        out[i] = at(state, second[i])
    return out


@compiled
def normals(seed: int, purpose: int, first: int, second: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard normal numbers of every second counter."""
    state = stream(seed, purpose, first)
    out = np.empty(len(second))
    for i in range(len(second)):
        out[i] = normal(state, second[i])
    return out


def stratified(seed: int, number: int, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
    """Evenly spread numbers in 0 <= u < 1 over the ranks of a popularity order, one sequence per `number`.

    A few hundred keys carry half of the requests. Independent draws for them would move every statistic that
    weighs requests by several times its bounds from seed to seed; these additive (Kronecker) sequences, whose
    steps come from the generalised golden ratio of 12 dimensions (Roberts 2018), keep any run of ranks evenly
    spread in each dimension and nearly so in pairs of them. The seed shifts every sequence.
    """
    steps = ROOT ** -(1.0 + number)
    shift = uniform(seed, STATIC, number, 0)
    return np.asarray(np.mod(shift + (ranks + 1.0) * steps, 1.0))


ROOT = 1.0
for _ in range(60):  # x^13 = x + 1
    ROOT = (1.0 + ROOT) ** (1.0 / 13.0)
