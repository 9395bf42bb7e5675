"""Costs and sizes of cached entries: one of each a key, as published for production systems.

Costs. Groups and shares are those of GD-Wheel's single-size workloads (Li and Cox, EuroSys 2015, table 2),
whole numbers drawn evenly from a group's range: w1 the authors' baseline, w2 RUBiS, w3 TPC-W, w4 all the
same, w5 even. `lognormal` is fitted to the number of candidates scored for a request of the Bing ads log (Li
et al., SoCC 2017, figure 5), which ends at 10,100: rounded to whole numbers from 1 to that.

A key keeps its cost. GD-Wheel's client draws a new one at every miss; then what an order learns about a key
is gone with the entry, and no order can be much better than another. Computations cost what their input makes
them cost, so persistence is the rule here.

Cost and popularity are independent unless a correlation is asked for: then costs follow the number of
requests through a Gaussian copula whose rank correlation (Spearman) is .5 or -.5, ties at random, and their
distribution stays the same.

Sizes. `meta` is the model of the ETC pool, the largest Memcached pool of Facebook (Atikoglu et al., "Workload
analysis of a large-scale key-value store", SIGMETRICS 2012, section 5 and table 5): key length generalised
extreme value; value length below 15 bytes by the paper's table, from 15 on generalised Pareto, which starts
there (as the mutilate load generator has it). Drawn independently of costs and popularity, in bytes, keys at
most 250 bytes (Memcached's limit), values at most 1 MiB.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Group(NamedTuple):
    """A share of the keys whose costs are whole numbers from `low` to `high`, all equally likely."""

    share: float
    low: int
    high: int


def _three(low: float, middle: float, high: float) -> tuple[Group, ...]:
    return Group(low, 10, 30), Group(middle, 120, 180), Group(high, 350, 450)


GROUPS = {
    "w1": _three(0.80, 0.15, 0.05),
    "w2": _three(0.20, 0.75, 0.05),
    "w3": _three(0.50, 0.25, 0.25),
    "w4": (Group(1.0, 10, 10),),
    "w5": (Group(1.0, 20, 400),),
}
LOGNORMAL_MU, LOGNORMAL_SIGMA, LOGNORMAL_MAX = 7.23, 1.21, 10_100
COSTS = (*GROUPS, "lognormal")

RANK_CORRELATION = {"none": 0.0, "positive": 0.5, "negative": -0.5}

SIZES = ("unit", "meta")
KEY_MU, KEY_SIGMA, KEY_SHAPE, KEY_MAX_BYTES = 30.7984, 8.20449, 0.078688, 250
# Shares of values of 0 to 14 bytes. Of 0 and 1 only the sum is certain; the split moves no size by a byte.
SMALL_VALUES = (
    0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606,
    0.00023, 0.00837, 0.00837, 0.08989, 0.00092, 0.00326, 0.01980,
)  # fmt: skip
VALUE_SIGMA, VALUE_SHAPE, VALUE_MAX_BYTES = 214.476, 0.348238, 1 << 20


def draw_costs(model: str, requests: Integers, correlation: str, random: np.random.Generator) -> Integers:
    """One cost a key, int64, at least 1.

    model: one of COSTS. requests: how often each key is asked for. correlation: one of RANK_CORRELATION.
    """
    quantiles = _quantiles(requests, RANK_CORRELATION[correlation], random)
    if model == "lognormal":
        drawn = np.rint(np.exp(LOGNORMAL_MU + LOGNORMAL_SIGMA * ndtri(quantiles)))
        return np.asarray(np.clip(drawn, 1, LOGNORMAL_MAX), np.int64)
    groups = GROUPS[model]
    ends = np.cumsum([group.share for group in groups])
    which = np.minimum(np.searchsorted(ends, quantiles, side="right"), len(groups) - 1)
    share, low, high = (np.array(column)[which] for column in zip(*groups, strict=True))
    within = (quantiles - (ends[which] - share)) / share
    drawn = np.floor(low + within * (high - low + 1))
    return np.asarray(np.clip(drawn, low, high), np.int64)


def draw_sizes(model: str, keys: int, random: np.random.Generator) -> Integers:
    """One size a key, int64: all 1 (`unit`), or key and value in bytes (`meta`)."""
    if model == "unit":
        return np.ones(keys, np.int64)
    key = KEY_MU + KEY_SIGMA * ((-np.log(random.random(keys))) ** -KEY_SHAPE - 1) / KEY_SHAPE
    small = np.cumsum(SMALL_VALUES)
    uniform = random.random(keys)
    rest = np.maximum(1 - uniform, np.finfo(float).tiny) / (1 - small[-1])
    large = len(small) + VALUE_SIGMA * (np.minimum(rest, 1.0) ** -VALUE_SHAPE - 1) / VALUE_SHAPE
    value = np.where(uniform < small[-1], np.searchsorted(small, uniform, side="right"), large)
    key, value = np.clip(np.rint(key), 1, KEY_MAX_BYTES), np.minimum(np.floor(value), VALUE_MAX_BYTES)
    return np.asarray(key + value, np.int64)


def _quantiles(requests: Integers, rank_correlation: float, random: np.random.Generator) -> Floats:
    """Even on (0, 1), one a key, with this rank correlation to `requests`."""
    keys = len(requests)
    noise = random.random(keys)
    if rank_correlation == 0.0:
        return np.maximum(noise, np.finfo(float).tiny)
    rank = np.empty(keys)
    rank[np.lexsort((random.random(keys), requests))] = np.arange(keys) + 0.5
    rho = 2 * math.sin(math.pi * rank_correlation / 6)  # Pearson's, of the normal scores
    scores = rho * ndtri(rank / keys) + math.sqrt(1 - rho * rho) * ndtri(np.maximum(noise, 1e-300))
    return np.asarray(ndtr(scores))
