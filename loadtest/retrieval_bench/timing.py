"""Time of live searches: stock FAISS at its budget beside our scan with each rule, interleaved, one thread.

Each round every contender answers all queries once, in turns of an order drawn anew, so that other load falls
on all alike; in one turn each has another query, so that none finds its lists in the caches because a rival
just read them. A query's time is its median over rounds; mean and percentiles are over queries. A batch
counts as its mean a query. Times are processor time of the thread: what a clock shows where nothing else
wants the processor.

The time of the model is measured apart, as that of the decisions alone over recorded searches, features
included.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from services.core.ivf.search import search
from services.core.stopping.policy import Policy
from services.core.stopping.replay import Trace, lists_visited

from .indexes import Built

FAISS = "faiss"
_PASSES = 5
_BLOCK = 16  # searches whose records stay in the caches, as a state does in a live search
_DECIDED = 480

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds a query."""

    mean: float
    p50: float
    p99: float


def measure(
    built: Built,
    queries: Floats,
    k: int,
    nprobe: int,
    depth: int,
    policies: Mapping[str, Policy],
    batch: int,
    rounds: int,
    seed: int,
) -> dict[str, Times]:
    """Times of FAISS (key `FAISS`) and of each policy over `queries` in calls of `batch`."""

    def faiss_call(block: Floats) -> object:
        return built.stock(block, k, nprobe, depth)

    def ours(policy: Policy) -> Callable[[Floats], object]:
        return lambda block: search(built.lists, block, k, policy)

    contenders: dict[str, Callable[[Floats], object]] = {FAISS: faiss_call}
    contenders |= {name: ours(policy) for name, policy in policies.items()}
    blocks = [queries[start : start + batch] for start in range(0, len(queries) - batch + 1, batch)]
    samples = {name: np.empty((rounds, len(blocks))) for name in contenders}
    rng = np.random.default_rng(seed)
    names = list(contenders)
    for call in contenders.values():
        call(blocks[0])
    for turn in range(rounds):
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
    return Times(float(per_query.mean()), float(p50), float(p99))


def decision_us(trace: Trace, policy: Policy) -> float:
    """Time of all decisions of a query, features and model included, microseconds in the mean."""
    total, queries = 0.0, min(_DECIDED, len(trace.seen))
    for start in range(0, queries, _BLOCK):
        part = Trace(*(array[start : min(start + _BLOCK, queries)].copy() for array in trace))
        asked = np.zeros(len(part.seen), dtype=np.int64)
        best = np.inf
        for _ in range(_PASSES):
            started = time.thread_time_ns()
            lists_visited(part, policy.rule, policy.parameters, policy.forest, policy.cap, asked)
            best = min(best, (time.thread_time_ns() - started) / 1e3)
        total += best
    return total / queries
