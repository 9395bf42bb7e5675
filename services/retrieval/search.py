"""Searches: admit, plan, compare, merge. Any number of requests at once.

Requests that meet in a batch share compiled calls: rows of the same rule, k, filter and snapshot are compared
by one call, whatever their targets and budgets. Each gets the answer that it would get alone.

k ads are returned whenever k are admitted. A row that its plan left with fewer is searched again: without a
filter over the nearest lists that together hold k; with one over every list, because a filter that empties
the near lists is one that calibration says nothing about. The delta is always compared whole.

The time that remains to the callers caps how many lists are visited, by the measured cost of a vector; what
that gives up is told by the recall that the answer predicts. Without a deadline, or with time enough for the
plan, nothing depends on the clock.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from services.core.ivf import search as ivf
from services.core.ivf.exhaustive import exhaustive
from services.core.ivf.scan import ROW_CODES, ROW_LISTS
from services.core.stopping.policy import Policy, fixed
from services.retrieval.attributes import Condition
from services.retrieval.delta import Snapshot
from services.retrieval.index import Admitted, LoadedIndex
from services.retrieval.plan import Plan, Query, exact_plan, plan
from services.runtime.deadlines import Deadline
from services.runtime.errors import ServiceError

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

_Group = tuple[int, int, bytes, bool, int, int, int]
EXHAUSTED, BUDGET, RULE, DEADLINE = "exhausted", "budget", "rule", "deadline"


@dataclass(frozen=True, slots=True)
class Request:
    """A query of one or more rows, the snapshot that answers it, and how long its caller waits."""

    snapshot: Snapshot
    query: Query
    deadline: Deadline


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer for one row: ads by falling similarity, and the work done for it.

    stopped: EXHAUSTED, BUDGET, RULE or DEADLINE. recall: to expect, 0..1. fixed_budget: a calibrated budget
    stood in for a stop rule.
    """

    ad_ids: Ints
    similarities: Floats
    truncated: bool
    lists_planned: int
    lists_visited: int
    codes_scanned: int
    model_calls: int
    stopped: str
    recall: float
    fixed_budget: bool


@dataclass(frozen=True, slots=True)
class Answers:
    """One answer a row, and what filtering and comparing took in the batch, microseconds."""

    rows: list[Answer]
    filter_us: int
    scan_us: int


def search(snapshot: Snapshot, query: Query, exact_below: int, deadline: Deadline) -> Answers:
    """Answers one request alone; raises what `search_all` gives in place of an answer."""
    (outcome,) = search_all([Request(snapshot, query, deadline)], exact_below)
    if isinstance(outcome, ServiceError):
        raise outcome
    return outcome


def search_all(requests: Sequence[Request], exact_below: int) -> list[Answers | ServiceError]:
    """Answers each request, or says why not: DeadlineExceeded, FailedPrecondition for a target too high.

    A filter that admits fewer than `exact_below` ads is answered by comparing all of them.
    """
    started = time.perf_counter_ns()
    outcomes: list[Answers | ServiceError | None] = [None] * len(requests)
    tasks: list[_Task] = []
    admitted: dict[tuple[int, tuple[Condition, ...]], tuple[Admitted, Ints]] = {}
    for at, request in enumerate(requests):
        try:
            tasks.append(_task(at, request, exact_below, admitted))
        except ServiceError as error:
            outcomes[at] = error
    filtered = time.perf_counter_ns()
    _scan(tasks)
    answered = []
    for task in tasks:
        try:
            task.request.deadline.check("merging")
            answered.append((task.at, [_merged(task, row) for row in range(task.rows)]))
        except ServiceError as error:
            outcomes[task.at] = error
    done = time.perf_counter_ns()
    for at, rows in answered:
        outcomes[at] = Answers(rows, (filtered - started) // 1000, (done - filtered) // 1000)
    return [outcome for outcome in outcomes if outcome is not None]


class _Task:
    """A request on its way: its plan, and what the index gave for each of its rows."""

    def __init__(self, at: int, request: Request, admitted: Admitted, fresh: Ints, chosen: Plan) -> None:
        self.at = at
        self.request = request
        self.admitted = admitted
        self.fresh = fresh
        self.plan = chosen
        self.rows = len(request.query.vectors)
        self.distances = np.empty((self.rows, 0), dtype=np.float32)
        self.found = np.empty((self.rows, 0), dtype=np.int64)
        self.work = np.zeros((self.rows, 4), dtype=np.int64)
        self.widened = np.zeros(self.rows, dtype=np.bool_)
        self.capped = False

    @property
    def index(self) -> LoadedIndex:
        """The index that is searched."""
        return self.request.snapshot.index

    def group(self) -> _Group:
        """Tasks with equal groups are compared by one call."""
        policy, bitmap = self.plan.policy, self.admitted.bitmap
        rule = (policy.rule, policy.depth, policy.parameters[1:].tobytes())
        return (*rule, self.plan.exact, self.plan.k, id(self.request.snapshot), id(bitmap))


def _task(
    at: int,
    request: Request,
    exact_below: int,
    known: dict[tuple[int, tuple[Condition, ...]], tuple[Admitted, Ints]],
) -> _Task:
    request.deadline.check("filtering")
    snapshot, query = request.snapshot, request.query
    key = (id(snapshot), query.conditions)
    if key not in known:
        known[key] = snapshot.admit(query.conditions)
    admitted, fresh = known[key]
    index = snapshot.index
    if not admitted.count or (query.conditions and admitted.count < exact_below):
        chosen = exact_plan(index, query.k)
    else:
        chosen = plan(index, query.target, query.k, admitted.count)
    request.deadline.check("scanning")
    return _Task(at, request, admitted, fresh, chosen)


def _scan(tasks: Sequence[_Task]) -> None:
    """Compares the rows of every task with the index."""
    groups: dict[_Group, list[_Task]] = {}
    for task in tasks:
        if task.admitted.count:
            groups.setdefault(task.group(), []).append(task)
    rows = sum(task.rows for members in groups.values() for task in members)
    for members in groups.values():
        caps = np.concatenate([_caps(task, rows) for task in members])
        knobs = np.repeat(
            [task.plan.policy.parameters[0] for task in members], [task.rows for task in members]
        )
        first = members[0]
        vectors = np.concatenate([task.request.query.vectors for task in members])
        found = _compare(first, vectors, first.plan.policy, caps, knobs)
        start = 0
        for task in members:
            part = slice(start, start + task.rows)
            task.distances, task.found = found.distances[part], found.rows[part]
            task.work = found.work[part]
            start += task.rows
            _widen(task)
        rows -= len(vectors)


def _caps(task: _Task, rows: int) -> Ints:
    """Most lists of each row of a task, when `rows` are still to be compared in the time that remains."""
    index, chosen = task.index, task.plan
    cost = index.exact_cost if chosen.exact else index.cost
    affordable = cost.lists_within(task.request.deadline.remaining_s(), rows)
    task.capped = affordable < chosen.lists
    return np.full(task.rows, int(min(affordable, chosen.lists)), dtype=np.int64)


def _compare(
    task: _Task, vectors: Floats, policy: Policy, caps: Ints, knobs: npt.NDArray[np.float64]
) -> ivf.Found:
    index, exact, bitmap, k = task.index, task.plan.exact, task.admitted.bitmap, task.plan.k
    started = time.perf_counter_ns()
    if exact and caps.min() == index.lists:
        distances, rows, codes = exhaustive(index.exact_view, vectors, k, bitmap)
        work = np.zeros((len(vectors), 4), dtype=np.int64)
        work[:, ROW_LISTS], work[:, ROW_CODES] = index.lists, codes
        found = ivf.Found(distances, rows, work)
    else:
        view, unbounded = index.exact_view if exact else index.view, replace(policy, cap=index.lists)
        found = ivf.search(view, vectors, k, unbounded, caps=caps, knobs=knobs, bitmap=bitmap)
    if bitmap is None:
        cost = index.exact_cost if exact else index.cost
        cost.add(time.perf_counter_ns() - started, int(found.work[:, ROW_CODES].sum()))
    return found


def _widen(task: _Task) -> None:
    """Searches the rows again that came back with fewer ads than there are and are wanted."""
    query, index = task.request.query, task.index
    wanted = min(query.k - len(task.fresh), task.admitted.count)
    visited = task.work[:, ROW_LISTS]
    short = np.flatnonzero(((task.found >= 0).sum(axis=1) < wanted) & (visited < index.lists))
    if not short.size or task.capped:
        return
    caps = np.full(short.size, index.lists, dtype=np.int64)
    if not query.conditions:
        for at, row in enumerate(short):
            held = np.cumsum(task.admitted.per_list[index.rank(query.vectors[row])])
            caps[at] = np.searchsorted(held, wanted) + 1
    policy = fixed(index.lists, task.plan.policy.depth)
    found = _compare(task, query.vectors[short], policy, caps, caps.astype(np.float64))
    task.distances[short], task.found[short], task.work[short] = found
    task.widened[short] = True


def _merged(task: _Task, row: int) -> Answer:
    """The best k of index and delta: by falling similarity, equal ones by rising id."""
    snapshot, query, chosen = task.request.snapshot, task.request.query, task.plan
    index, fresh = snapshot.index, task.fresh
    rows = task.found[row]
    real = rows >= 0
    distances = np.concatenate((task.distances[row, real], snapshot.compare(query.vectors[row], fresh)))
    ad_ids = np.concatenate((index.ad_ids[rows[real]], snapshot.ad_ids[fresh]))
    best = np.lexsort((ad_ids, distances))[: query.k]
    visited, scanned, calls, ended = task.work[row].tolist()
    recall = chosen.recall
    if visited == index.lists or not task.admitted.count:
        stopped = EXHAUSTED
        recall = 1.0 if chosen.exact or index.exhaustive else index.calibration.ceiling(query.k)
    elif ended:
        stopped = RULE
    elif task.capped:
        stopped = DEADLINE
        recall = min(recall, index.calibration.predicted(query.k, visited))
    else:
        stopped = BUDGET
        if task.widened[row]:
            recall = index.calibration.predicted(query.k, visited)
    return Answer(
        ad_ids=ad_ids[best],
        similarities=np.clip(1 - distances[best] / 2, -1.0, 1.0).astype(np.float32),
        truncated=len(best) < query.k,
        lists_planned=chosen.lists if task.admitted.count else 0,
        lists_visited=visited,
        codes_scanned=scanned + len(fresh),
        model_calls=calls,
        stopped=stopped,
        recall=min(1.0, recall),
        fixed_budget=chosen.fixed_budget and stopped != EXHAUSTED,
    )
