"""One search: admit, plan, rank, scan, merge.

A plan is a number of inverted lists. Exact searches, and filters that admit few ads, take every list. A
budget is taken as given. A recall target is served by the calibrated fixed budget; under a filter that
admits a share s of the ads, the k nearest admitted are about the k/s nearest of all, so the budget is that of
k/s (right when the filter is independent of the query; measured figures are without filters).

k ads are returned whenever k are admitted. How many ads a list admits is known before it is scanned, so a row
whose planned lists hold fewer than k takes more: without a filter the next nearest lists until they hold k;
with one every list, because a filter that empties the near lists is one that calibration says nothing about.
The delta is always scanned whole.

All rows of a batch share filter, k and target and are scanned by one FAISS call; each gets the answer that
it would get alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from services.retrieval.attributes import Condition
from services.retrieval.delta import Snapshot
from services.retrieval.index import Admitted, LoadedIndex
from services.runtime.deadlines import Deadline

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MeanRecall:
    """Mean recall over queries of the exact k nearest, 0 < recall <= 1."""

    recall: float


@dataclass(frozen=True, slots=True)
class Coverage:
    """A recall that a share of the queries must reach."""

    recall: float
    share: float


@dataclass(frozen=True, slots=True)
class Budget:
    """Lists to visit, 1..lists of the index."""

    lists: int


@dataclass(frozen=True, slots=True)
class Exact:
    """Compare with every admitted ad."""


Target = MeanRecall | Coverage | Budget | Exact


@dataclass(frozen=True, slots=True)
class Query:
    """A valid request: unit vectors float32 [rows, dimension], and what the rows share."""

    vectors: Floats
    k: int
    conditions: tuple[Condition, ...]
    target: Target


@dataclass(frozen=True, slots=True)
class Plan:
    """Lists to visit, the recall to expect, and whether calibration chose them for a recall target."""

    lists: int
    recall: float
    calibrated: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer for one row: ads by falling similarity, and the work done for it."""

    ad_ids: Ints
    similarities: Floats
    truncated: bool
    lists_planned: int
    lists_visited: int
    codes_scanned: int
    exhausted: bool
    recall: float
    fixed_budget: bool


@dataclass(frozen=True, slots=True)
class Answers:
    """One answer a row, and what filtering and scanning took, microseconds."""

    rows: list[Answer]
    filter_us: int
    scan_us: int


def plan(index: LoadedIndex, target: Target, k: int, admitted: int) -> Plan:
    """How many lists to visit for the k nearest of `admitted` > 0 ads."""
    everything = Plan(index.lists, 1.0, False)
    if isinstance(target, Exact):
        return everything
    deep = min(k, admitted) * index.size / admitted
    calibration = index.calibration
    if isinstance(target, Budget):
        if target.lists == index.lists:
            return everything
        return Plan(target.lists, calibration.predicted(deep, target.lists), False)
    if isinstance(target, MeanRecall):
        choice = calibration.for_mean_recall(deep, target.recall)
    else:
        choice = calibration.for_coverage(deep, target.recall, target.share)
    return everything if choice.lists == index.lists else Plan(choice.lists, choice.recall, True)


def search(snapshot: Snapshot, query: Query, exact_below: int, deadline: Deadline) -> Answers:
    """Answers every row of the query from one snapshot; raises DeadlineExceeded between stages."""
    started = time.perf_counter_ns()
    deadline.check("filtering")
    admitted, fresh = snapshot.admit(query.conditions)
    filtered = time.perf_counter_ns()
    deadline.check("scanning")
    index = snapshot.index
    found = _Found.none(len(query.vectors))
    chosen = Plan(0, 1.0, False)
    if admitted.count:
        few = bool(query.conditions) and admitted.count < exact_below
        chosen = plan(index, Exact() if few else query.target, query.k, admitted.count)
        found = _scan(index, query, chosen, admitted, len(fresh), deadline)
    deadline.check("merging")
    answers = [
        _merged(snapshot, query.vectors[row], query.k, chosen, found, row, fresh)
        for row in range(len(query.vectors))
    ]
    done = time.perf_counter_ns()
    return Answers(answers, (filtered - started) // 1000, (done - filtered) // 1000)


@dataclass(frozen=True, slots=True)
class _Found:
    """What the index gave: [rows, ...] similarities and row numbers (-1: none), lists and codes a row."""

    similarities: Floats
    rows: Ints
    visited: Ints
    scanned: Ints

    @staticmethod
    def none(rows: int) -> _Found:
        empty = np.zeros(rows, dtype=np.int64)
        return _Found(
            np.empty((rows, 0), dtype=np.float32),
            np.empty((rows, 0), dtype=np.int64),
            empty,
            empty,
        )


def _scan(
    index: LoadedIndex, query: Query, chosen: Plan, admitted: Admitted, fresh: int, deadline: Deadline
) -> _Found:
    keys = _lists_to_visit(index, query, chosen, admitted, fresh)
    deadline.check("scanning")
    similarities, rows = index.scan(query.vectors, keys, min(query.k, admitted.count), admitted)
    real = keys >= 0
    return _Found(similarities, rows, real.sum(axis=1), (admitted.per_list[keys] * real).sum(axis=1))


def _lists_to_visit(index: LoadedIndex, query: Query, chosen: Plan, admitted: Admitted, fresh: int) -> Ints:
    """The lists of each row [rows, width], -1 behind the last: the planned ones, more where they are too few.

    `fresh` ads of the delta count towards k.
    """
    count, every = len(query.vectors), np.arange(index.lists)
    if chosen.lists == index.lists:
        return np.tile(every, (count, 1))
    keys = index.rank(query.vectors, chosen.lists)
    wanted = min(query.k - fresh, admitted.count)
    short = np.flatnonzero(admitted.per_list[keys].sum(axis=1) < wanted)
    if not short.size:
        return keys
    wider = np.full((count, index.lists), -1, dtype=np.int64)
    wider[:, : chosen.lists] = keys
    if query.conditions:
        wider[short] = every
    else:
        ranked = index.rank(query.vectors[short], index.lists)
        held = np.cumsum(admitted.per_list[ranked], axis=1)
        before = held - admitted.per_list[ranked]
        wider[short] = np.where(before < wanted, ranked, -1)
    return wider


def _merged(
    snapshot: Snapshot, vector: Floats, k: int, chosen: Plan, found: _Found, row: int, fresh: Ints
) -> Answer:
    """The best k of index and delta: by falling similarity, equal ones by rising id."""
    rows = found.rows[row]
    real = rows >= 0
    ad_ids = np.concatenate((snapshot.index.ad_ids[rows[real]], snapshot.ad_ids[fresh]))
    similarities = np.concatenate((found.similarities[row, real], snapshot.compare(vector, fresh)))
    best = np.lexsort((ad_ids, -similarities))[:k]
    visited, scanned = int(found.visited[row]), int(found.scanned[row])
    exhausted = visited == snapshot.index.lists or not chosen.lists
    recall = chosen.recall
    if visited > chosen.lists:
        recall = snapshot.index.calibration.predicted(k, visited)
    return Answer(
        ad_ids=ad_ids[best],
        similarities=np.clip(similarities[best], -1.0, 1.0),
        truncated=len(best) < k,
        lists_planned=chosen.lists,
        lists_visited=visited,
        codes_scanned=scanned + len(fresh),
        exhausted=exhausted,
        recall=1.0 if exhausted else recall,
        fixed_budget=chosen.calibrated and not exhausted,
    )
