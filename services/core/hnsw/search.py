"""Searches of a graph: the calls that services, training and benches make.

`search` answers queries under a stop policy; `record` notes what walks go through, for training and tuning.
What a policy calls lists is here nodes expanded. Both check what a kernel would read out of bounds, and
nothing else: that vectors are finite is the caller's to see to.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..ivf.search import Found, bounds
from ..stopping.policy import Policy
from ..stopping.rules import FIXED, MARGINAL, PATIENCE, RATIO
from ..stopping.state import WATCHED
from .graph import Floats, Graph, Ints
from .replay import Trace
from .walk import RECORD, Record, walk

RULES = (FIXED, RATIO, MARGINAL, PATIENCE)
"""The rules that a walk knows."""
_EVERYONE = np.empty(0, dtype=np.uint8)
_RECORDING = Policy(RECORD, np.zeros(1), 0)  # the cap stands in the call


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
    if policy.rule not in RULES or (graph.arrays.inner and policy.rule in (RATIO, MARGINAL)):
        raise ValueError(f"rule {policy.rule}: not one that walks a graph of this metric")
    cap = graph.size if policy.rule == FIXED else min(policy.cap, graph.size)
    knob = policy.parameters[0]
    limits, first = bounds(queries, k, graph.dimension, graph.size, cap, knob, caps, knobs, bitmap)
    return _walked(graph, queries, k, policy, limits, first, _EVERYONE if bitmap is None else bitmap, None)


def record(graph: Graph, queries: Floats, k: int, nearest: Floats, width: int) -> Trace:
    """The states of walks of `width` nodes, for replay.

    nearest: float32 [q], what a vector's squared distance may be to count as one of the k nearest, ties and
    rounding included. Memory: 23 bytes a query and node. Raises ValueError as `search` does.
    """
    width = min(width, graph.size)
    limits, knobs = bounds(queries, k, graph.dimension, graph.size, width, 0.0)
    if nearest.shape != limits.shape:
        raise ValueError(f"nearest: shape {nearest.shape} for {len(queries)} queries")
    notes = _records(len(queries), width, nearest)
    _walked(graph, queries, k, _RECORDING, limits, knobs, _EVERYONE, notes)
    np.minimum(notes.found, k, out=notes.found)  # more than k vectors may tie for the k-th place
    return Trace(*notes[:-1])


def _walked(
    graph: Graph,
    queries: Floats,
    k: int,
    policy: Policy,
    caps: Ints,
    knobs: npt.NDArray[np.float64],
    bitmap: npt.NDArray[np.uint8],
    notes: Record | None,
) -> Found:
    found = Found.empty(len(queries), k)
    scratch = graph.take()
    try:
        walk(
            graph.arrays,
            scratch,
            np.ascontiguousarray(queries),
            k,
            max(k, WATCHED),
            caps,
            policy.rule,
            policy.parameters,
            knobs,
            policy.forest,
            bitmap,
            *found,
            notes,
        )
    finally:
        graph.give(scratch)
    return found
