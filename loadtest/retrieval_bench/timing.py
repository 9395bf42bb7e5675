"""Time of live searches: stock FAISS at its budget beside our scan with each rule, interleaved, one thread.

Each round every contender answers all queries once, but the rivals in the first round only, in turns of an
order drawn anew, so that other load falls on all alike; in one turn each has another query, so that none
finds its lists in the caches because a rival just read them. A query's time is its median over rounds; mean
and percentiles are over queries. A batch counts as its mean a query. Times are processor time of the thread:
what a clock shows where nothing else wants the processor.

The time of the model is measured apart, as that of the decisions alone over recorded searches, features
included.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.termination.calibration import Trace
from services.core.stopping.policy import Policy

from . import hnsw
from .indexes import Built

FAISS = "faiss"
_ROUNDS = 3
_PASSES = 5
_BLOCK = 16  # searches whose records stay in the caches, as a state does in a live search
_DECIDED = 480

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds a query, and those of each call."""

    mean: float
    p50: float
    p99: float
    calls: npt.NDArray[np.float64]


def measure(
    built: Built | hnsw.Built,
    queries: Floats,
    k: int,
    nprobe: int,
    depth: int,
    policies: Mapping[str, Policy],
    batch: int,
    rivals: Collection[str],
    seed: int,
) -> dict[str, Times]:
    """Times of FAISS (key `FAISS`) and of each policy over `queries` in calls of `batch`; of the policies
    named in `rivals` in one round."""

    def faiss_call(block: Floats) -> object:
        return built.stock(block, k, nprobe, depth)

    def ours(policy: Policy) -> Callable[[Floats], object]:
        return lambda block: built.search(block, k, policy)

    contenders: dict[str, Callable[[Floats], object]] = {FAISS: faiss_call}
    contenders |= {name: ours(policy) for name, policy in policies.items()}
    blocks = [queries[start : start + batch] for start in range(0, len(queries) - batch + 1, batch)]
    samples = {name: np.empty((1 if name in rivals else _ROUNDS, len(blocks))) for name in contenders}
    rng = np.random.default_rng(seed)
    for call in contenders.values():
        call(blocks[0])
    for turn in range(_ROUNDS):
        names = [name for name in contenders if turn < len(samples[name])]
        for step in range(len(blocks)):
            for place in rng.permutation(len(names)):
                call = contenders[names[place]]
                at = (step + place * len(blocks) // len(names)) % len(blocks)
                block = blocks[at]
                started = time.thread_time_ns()
                call(block)
                samples[names[place]][turn, at] = (time.thread_time_ns() - started) / 1e3 / len(block)
    return {name: _times(np.median(taken, axis=0)) for name, taken in samples.items()}


def _times(per_query: npt.NDArray[np.float64]) -> Times:
    p50, p99 = np.percentile(per_query, (50, 99), method="inverted_cdf")
    return Times(float(per_query.mean()), float(p50), float(p99), per_query)


def decision_us(trace: Trace, k: int, policy: Policy) -> float:
    """Time of all decisions of a query, features and model included, microseconds in the mean."""
    total, queries = 0.0, min(_DECIDED, len(trace.found))
    for start in range(0, queries, _BLOCK):
        part = trace.part(slice(start, min(start + _BLOCK, queries)))
        best = np.inf
        for _ in range(_PASSES):
            started = time.thread_time_ns()
            part.replay(k, policy.rule, policy.parameters, policy.forest, policy.cap)
            best = min(best, (time.thread_time_ns() - started) / 1e3)
        total += best
    return total / queries
