"""What a cache that knows the future would save: the yardstick beside which online orders are judged.

`clairvoyant` is a heuristic for any sizes. At a miss it evicts the entry of lowest cost / (size x time to its
next request), and never keeps one that is not asked for again. With equal costs and sizes that is Belady's
MIN ("A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5, 1966), which
is optimal; otherwise it is a good schedule, not a bound. Which entry is lowest changes as time passes, so
entries are kept in classes of nearly equal cost / size (an eighth of an octave); in a class the one whose
next request is farthest is lowest, to within the class's width, and classes are compared by their farthest.
O(classes) an eviction, O(log n) a request.

`optimum` is exact, for sizes of 1. To answer a request from the cache, its key has to be kept since its
previous request: an interval worth the key's cost, which takes one place for as long as it lasts. The cache
may keep any set of intervals of which at most `capacity` overlap. This is a flow of `capacity` units through
time (weighted interval scheduling on identical machines; E. Arkin and E. Silverberg, Discrete Applied
Mathematics 18, 1987): nodes are moments; an arc of cost 0 leads from each to the next; an arc of capacity 1
and cost -c leads from the previous request of a key to the next. The matrix is a network's, so a vertex of
the linear programme is integral. Only moments where the number of intervals that could overlap has a peak
behind it need a node. The cache may pass an entry by, which can only help it; no order that is measured here
does better.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array

from services.core.compiled import compiled

Keys = NDArray[np.int32]
Integers = NDArray[np.int64]
Hits = NDArray[np.bool_]

_CLASSES_PER_OCTAVE = 8
_INTEGRAL = 1e-6


def previous_requests(keys: Keys) -> Integers:
    """Index of the request before this one for the same key, -1 where this is the first: int64[n]."""
    previous = np.full(len(keys), -1, np.int64)
    order = np.argsort(keys, kind="stable")
    same = keys[order[1:]] == keys[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def clairvoyant(keys: Keys, costs: Integers, sizes: Integers, capacity: int) -> tuple[Hits, int]:
    """Hits, bool[n], and the number of evictions of the heuristic at the top of this file."""
    previous = previous_requests(keys)
    following = np.full(len(keys), len(keys), np.int64)
    again = previous >= 0
    following[previous[again]] = np.flatnonzero(again)
    weights = costs / np.maximum(sizes, 1)
    octaves = np.log2(np.maximum(weights, np.finfo(float).tiny))
    _, classes = np.unique(np.floor(_CLASSES_PER_OCTAVE * octaves), return_inverse=True)
    begins = np.concatenate([[0], np.cumsum(np.bincount(classes[keys]))])
    hits = np.zeros(len(keys), np.bool_)
    evictions = _clairvoyant(keys, following, weights, sizes, classes, begins, capacity, hits)
    return hits, evictions


@compiled
def _clairvoyant(
    keys: Keys,
    following: Integers,
    weights: NDArray[np.float64],
    sizes: Integers,
    classes: Integers,
    begins: Integers,
    capacity: int,
    hits: Hits,
) -> int:
    """Each class has a heap of next requests, the farthest first, in its part of one array.

    An item that lies in the past belongs to an entry that was asked for since; it is below all that do not.
    """
    n = len(keys)
    heaps, filled = np.empty(n, np.int64), np.zeros(len(begins) - 1, np.int64)
    cached = np.zeros(len(sizes), np.bool_)
    used, evictions = 0, 0
    for now in range(n):
        key = keys[now]
        size, hits[now] = sizes[key], cached[key]
        if cached[key]:
            cached[key] = False
            used -= size
        if following[now] == n or size > capacity:
            continue
        cached[key] = True
        used += size
        own = classes[key]
        _push(heaps, begins[own], filled[own], following[now])
        filled[own] += 1
        while used > capacity:
            lowest, worst = np.inf, -1
            for k in range(len(filled)):
                if filled[k] == 0:
                    continue
                farthest = heaps[begins[k]]
                if farthest <= now:
                    filled[k] = 0
                    continue
                score = weights[keys[farthest]] / (farthest - now)
                if score < lowest:
                    lowest, worst = score, k
            victim = keys[heaps[begins[worst]]]
            filled[worst] -= 1
            _pop(heaps, begins[worst], filled[worst])
            cached[victim] = False
            used -= sizes[victim]
            evictions += 1
    return evictions


@compiled
def _push(heaps: Integers, begin: int, count: int, item: int) -> None:
    """Adds an item to a heap of `count`, the largest first."""
    at = count
    while at > 0 and heaps[begin + (at - 1) // 2] < item:
        heaps[begin + at] = heaps[begin + (at - 1) // 2]
        at = (at - 1) // 2
    heaps[begin + at] = item


@compiled
def _pop(heaps: Integers, begin: int, count: int) -> None:
    """Takes the largest item out of a heap, of which `count` remain."""
    item, at = heaps[begin + count], 0
    while 2 * at + 1 < count:
        child = 2 * at + 1
        if child + 1 < count and heaps[begin + child + 1] > heaps[begin + child]:
            child += 1
        if heaps[begin + child] <= item:
            break
        heaps[begin + at] = heaps[begin + child]
        at = child
    heaps[begin + at] = item


def optimum(keys: Keys, costs: Integers, capacity: int, held: NDArray[np.bool_]) -> Hits:
    """Hits, bool[n], of a schedule of least cost for entries of size 1.

    costs: int64, one a key. held: bool, one a key: which the cache may have held before the first request, as
    many as fit and whichever it likes.
    """
    previous = previous_requests(keys)
    last = np.flatnonzero((previous >= 0) | held[keys])
    hits = np.zeros(len(keys), np.bool_)
    if len(last) == 0:
        return hits
    begin, end = _nodes(previous[last] + 1, last + 1)
    steps, arcs = int(end.max()), len(last)
    tail = np.concatenate([np.arange(steps), begin])
    head = np.concatenate([np.arange(1, steps + 1), end])
    column = np.arange(steps + arcs)
    flow = coo_array(
        (np.repeat([1.0, -1.0], steps + arcs), (np.concatenate([tail, head]), np.tile(column, 2)))
    ).tocsr()
    supply = np.zeros(steps + 1)
    supply[0], supply[-1] = capacity, -capacity
    solution = linprog(
        np.concatenate([np.zeros(steps), -costs[keys[last]].astype(float)]),
        A_eq=flow,
        b_eq=supply,
        bounds=np.column_stack([np.zeros(steps + arcs), np.repeat([capacity, 1], [steps, arcs])]),
        method="highs-ipm",
    )
    kept = solution.x[steps:] if solution.success else np.full(arcs, np.nan)
    if not np.all(np.minimum(np.abs(kept), np.abs(1 - kept)) < _INTEGRAL):
        raise RuntimeError(f"the linear programme has no integral solution: {solution.message}")
    hits[last[kept > 0.5]] = True
    return hits


def _nodes(begin: Integers, end: Integers) -> tuple[Integers, Integers]:
    """Begins and ends of intervals as numbers of nodes.

    A node begins at an end that comes after a begin: there the number of overlaps has a peak behind it. Ends
    come before begins at the same moment.
    """
    events = np.unique(np.concatenate([2 * end, 2 * begin + 1]))
    is_end = events % 2 == 0
    number = np.cumsum(is_end & ~np.concatenate([[True], is_end[:-1]]))
    return number[np.searchsorted(events, 2 * begin + 1)], number[np.searchsorted(events, 2 * end)]
