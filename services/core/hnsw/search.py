"""Searches of a graph: the calls that services, training and benches make.

`search` answers queries under a stop policy; `record` notes what walks go through, for training and tuning.
What a policy calls lists is here nodes expanded. Both check what a kernel would read out of bounds, and
nothing else: that vectors are finite is the caller's to see to.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..ivf.search import Found
from ..stopping.policy import Policy
from ..stopping.rules import FIXED, MARGINAL, NO_FOREST, PATIENCE, RATIO
from ..stopping.state import WATCHED
from .graph import Floats, Graph, Ints
from .replay import Trace
from .walk import RECORD, Record, walk

RULES = (FIXED, RATIO, MARGINAL, PATIENCE)
"""The rules that a walk knows."""
_EVERYONE = np.empty(0, dtype=np.uint8)


def _records(queries: int, width: int, nearest: Floats) -> Record:
    shape = (queries, width)
    return Record(
        np.empty(shape, dtype=np.float32),
        np.empty(shape, dtype=np.float32),
        np.empty(shape, dtype=np.float32),
        np.empty(shape, dtype=np.int32),
        np.empty(shape, dtype=np.int32),
        np.empty(shape, dtype=np.uint8),
        np.empty(shape, dtype=np.int16),
        np.empty(queries, dtype=np.float32),
        np.empty(queries, dtype=np.int64),
        nearest,
    )


def search(
    graph: Graph,
    queries: Floats,
    k: int,
    policy: Policy,
    *,
    caps: Ints | None = None,
    knobs: npt.NDArray[np.float64] | None = None,
    bitmap: npt.NDArray[np.uint8] | None = None,
) -> Found:
    """The k nearest vectors of each query, as far as the policy walks.

    The rule `fixed` is a beam of a width, as FAISS' efSearch; it expands some nodes more than it is wide, so
    the policy's cap does not bind it. queries: float32 [q, d], contiguous. caps: int64 [q], most nodes to
    expand for each query, on top of the policy's own cap. knobs: float64 [q], in place of the first parameter
    of the rule. bitmap: uint8, one bit a row, lowest first, of the rows admitted. Distances are squared, or
    negative inner products, as the graph compares. Releases the GIL; any number of threads may search at
    once. Raises ValueError for what a kernel would read out of bounds, and for a rule that a walk, or a graph
    of inner products, cannot follow.
    """
    if queries.ndim != 2 or queries.shape[1] != graph.dimension or queries.dtype != np.float32 or k < 1:
        raise ValueError(f"queries: {queries.dtype} {queries.shape} for dimension {graph.dimension}, k = {k}")
    if policy.rule not in RULES or (graph.arrays.inner and policy.rule in (RATIO, MARGINAL)):
        raise ValueError(f"rule {policy.rule}: not one that walks a graph of this metric")
    if bitmap is not None and 8 * bitmap.size < graph.size:
        raise ValueError(f"bitmap: {bitmap.size} bytes for {graph.size} rows")
    cap = graph.size if policy.rule == FIXED else min(policy.cap, graph.size)
    limits = np.full(len(queries), cap, dtype=np.int64)
    if caps is not None:
        if caps.shape != limits.shape:
            raise ValueError(f"caps: shape {caps.shape} for {len(queries)} queries")
        np.minimum(limits, caps, out=limits)
    first = np.full(len(queries), policy.parameters[0]) if knobs is None else knobs
    if first.shape != (len(queries),):
        raise ValueError(f"knobs: shape {first.shape} for {len(queries)} queries")
    found = _empty(len(queries), k)
    everyone = _EVERYONE if bitmap is None else bitmap
    scratch = graph.take()
    try:
        walk(
            graph.arrays,
            scratch,
            np.ascontiguousarray(queries),
            k,
            max(k, WATCHED),
            limits,
            policy.rule,
            policy.parameters,
            first,
            policy.forest,
            everyone,
            *found,
            None,
        )
    finally:
        graph.give(scratch)
    return found


def record(graph: Graph, queries: Floats, k: int, nearest: Floats, width: int) -> Trace:
    """The states of walks of `width` nodes, for replay.

    nearest: float32 [q], what a vector's squared distance may be to count as one of the k nearest, ties and
    rounding included. Memory: 23 bytes a query and node.
    """
    width = min(width, graph.size)
    count = len(queries)
    notes = _records(count, width, nearest)
    scratch = graph.take()
    try:
        walk(
            graph.arrays,
            scratch,
            np.ascontiguousarray(queries),
            k,
            max(k, WATCHED),
            np.full(count, width, dtype=np.int64),
            RECORD,
            np.zeros(1),
            np.zeros(count),
            NO_FOREST,
            _EVERYONE,
            *_empty(count, k),
            notes,
        )
    finally:
        graph.give(scratch)
    np.minimum(notes.found, k, out=notes.found)  # more than k vectors may tie for the k-th place
    return Trace(*notes[:-1])


def _empty(queries: int, k: int) -> Found:
    return Found(
        np.empty((queries, k), dtype=np.float32),
        np.empty((queries, k), dtype=np.int64),
        np.empty((queries, 4), dtype=np.int64),
    )
