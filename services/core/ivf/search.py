"""Searches of an inverted-file index: the calls that services, training and benches make.

`search` answers queries under a stop policy; `record` notes what searches go through, for training and
tuning. Both check what a kernel would read out of bounds, and nothing else: that vectors are finite is the
caller's to see to.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..stopping.policy import Policy
from ..stopping.replay import Trace
from ..stopping.rules import NO_FOREST
from ..stopping.state import SLOTS, WATCHED
from .memory import Floats, Ints, Lists
from .scan import RECORD, Record, scan

_EVERY = np.empty(0, dtype=np.uint8)
_EMPTY = np.empty((0, 0), dtype=np.float32)
_NO_RECORD = Record(
    np.empty((0, 0, 0), dtype=np.float32), _EMPTY, _EMPTY, _EMPTY, _EMPTY, np.empty(0, dtype=np.float32)
)


class Found(NamedTuple):
    """Answers of q queries.

    distances: float32 [q, k], squared, nearest first, infinite where fewer were found. rows: int64 [q, k], -1
    there. work: int64 [q, 4], columns `scan.ROW_LISTS` and on.
    """

    distances: Floats
    rows: Ints
    work: Ints

    @classmethod
    def empty(cls, queries: int, k: int) -> Found:
        """For a kernel to fill."""
        return cls(
            np.empty((queries, k), dtype=np.float32),
            np.empty((queries, k), dtype=np.int64),
            np.empty((queries, 4), dtype=np.int64),
        )


def search(
    lists: Lists,
    queries: Floats,
    k: int,
    policy: Policy,
    *,
    caps: Ints | None = None,
    knobs: npt.NDArray[np.float64] | None = None,
    bitmap: npt.NDArray[np.uint8] | None = None,
) -> Found:
    """The k nearest vectors of each query, as far as the policy searches.

    queries: float32 [q, d], contiguous, before any rotation. caps: int64 [q], most lists of each query, on
    top of the policy's own cap. knobs: float64 [q], in place of the first parameter of the rule, which in
    every rule is the one that decides how much is searched; so queries with different targets share a call.
    bitmap: uint8, one bit a row, lowest first, of the rows admitted. Releases the GIL; any number of threads
    may search at once. Raises ValueError for what a kernel would read out of bounds.
    """
    count, dimension = lists.centroids.shape
    rows = 0 if bitmap is None else int(lists.sizes.sum())
    cap, knob = min(policy.cap, count), policy.parameters[0]
    limits, first = bounds(queries, k, dimension, rows, cap, knob, caps, knobs, bitmap)
    found = Found.empty(len(queries), k)
    scan(
        lists,
        queries,
        k,
        depth_of(lists, k, policy.depth),
        limits,
        policy.rule,
        policy.parameters,
        first,
        policy.forest,
        _EVERY if bitmap is None else bitmap,
        *found,
        _NO_RECORD,
    )
    return found


def bounds(
    queries: Floats,
    k: int,
    dimension: int,
    rows: int,
    cap: int,
    knob: float,
    caps: Ints | None = None,
    knobs: npt.NDArray[np.float64] | None = None,
    bitmap: npt.NDArray[np.uint8] | None = None,
) -> tuple[Ints, npt.NDArray[np.float64]]:
    """The cap and the knob of each query; ValueError for what does not fit.

    rows: vectors of the index, which a bitmap must cover.
    """
    if queries.ndim != 2 or queries.shape[1] != dimension or queries.dtype != np.float32 or k < 1:
        raise ValueError(f"queries: {queries.dtype} {queries.shape} for dimension {dimension}, k = {k}")
    if bitmap is not None and 8 * bitmap.size < rows:
        raise ValueError(f"bitmap: {bitmap.size} bytes for {rows} rows")
    limits = np.full(len(queries), cap, dtype=np.int64) if caps is None else np.minimum(caps, cap)
    least = cap if caps is None or not caps.size else limits.min()
    if limits.shape != (len(queries),) or least < 1:
        raise ValueError(f"caps: shape {limits.shape} for {len(queries)} queries, or below 1")
    first = np.full(len(queries), knob) if knobs is None else knobs
    if first.shape != (len(queries),):
        raise ValueError(f"knobs: shape {first.shape} for {len(queries)} queries")
    return limits, first


def depth_of(lists: Lists, k: int, depth: int) -> int:
    """Candidates a search keeps: those watched, and for quantized codes at least `depth` to re-rank."""
    return max(k, WATCHED, depth if len(lists.books) else 0)


def record(lists: Lists, queries: Floats, k: int, depth: int, nearest: Floats, width: int) -> Trace:
    """The states of searches over the `width` nearest lists, for `stopping.replay`.

    nearest: float32 [q], what a vector's squared distance may be to count as one of the k nearest, ties and
    rounding included. Memory: 60 bytes a query and list. Raises ValueError as `search` does.
    """
    count, dimension = lists.centroids.shape
    width = min(width, count)
    limits, knobs = bounds(queries, k, dimension, 0, width, 0.0)
    q = len(queries)
    if nearest.shape != limits.shape:
        raise ValueError(f"nearest: shape {nearest.shape} for {q} queries")
    columns = min(count, 2 * width + 1)
    trace = Trace(
        np.empty((q, width, SLOTS), dtype=np.float32),
        np.empty((q, columns), dtype=np.float32),
        np.zeros((q, width), dtype=np.float32),
        np.empty((q, dimension), dtype=np.float32),
        np.empty((q, width), dtype=np.float32),
    )
    depth = depth_of(lists, k, depth)
    scan(
        lists,
        queries,
        k,
        depth,
        limits,
        RECORD,
        np.zeros(1),
        knobs,
        NO_FOREST,
        _EVERY,
        *Found.empty(q, k),
        Record(*trace, nearest),
    )
    np.minimum(trace.found, k, out=trace.found)  # more than k vectors may tie for the k-th place
    return trace
