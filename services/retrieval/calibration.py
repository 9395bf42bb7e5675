"""What a fixed budget of inverted lists reaches, measured on held-out queries when the index is built.

For each calibrated k and a ladder of budgets the table holds the mean recall of the exact k nearest, and the
share of queries whose recall reaches each level of `LEVELS`. A search with a recall target takes the smallest
budget that reaches it. At the full number of lists an IVF-Flat search is exhaustive, so every target is
reachable, if only by comparing every ad; quantized lists have a ceiling, beyond which no budget helps.

Recall counts ties: an ad as similar as the k-th nearest is as good as it, so that copies of one ad text do
not lower the figure. Measuring flat lists needs one pass over the vectors per query block and no search:
where the list of a true neighbour stands in the query's own ranking of lists is the budget that finds it (Li
et al., SIGMOD'20, section 3.2), so the whole ladder comes from one exact scan. O(queries x n x d). Quantized
lists may miss a neighbour whose list they visit, so there a search over every list is recorded, and what it
held after each is the ladder.

What is approximate: the figures are sample means. Between two calibrated k the lower figures of both hold:
mostly the larger k is the harder one, but the one nearest ad is often harder to find than most of ten. And a
k up to 10 % above a calibrated one takes its figures: one deleted ad makes the k nearest a little more than
the k nearest of all, which must not cost the budget of the next row, or above the last one every list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from services.runtime.errors import BundleError

CALIBRATION_FILE = "calibration.json"
CALIBRATED_K = (1, 10, 50, 100, 200, 500, 1000)
DEPTH_K = 100
MAX_DEPTH = 100_000
LEVELS = (0.8, 0.9, 0.95, 0.99, 1.0)
_TIE = 1e-6  # inner products of unit vectors in float32 agree to this
SLACK = 1.1  # ratio of k that moves a mean recall by less than 0.002 (products, MiniLM)
_STEP = 1.15  # ratio between two budgets of the ladder: at most 15 % more lists than needed
_BLOCK_BYTES = 64 << 20
# Mean recalls are quotients of small integers summed in float64: equal figures may differ by this.
_ROUNDING = 1e-9

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Choice:
    """A budget, and the mean recall it reached in calibration."""

    lists: int
    recall: float


@dataclass(frozen=True)
class Calibration:
    """The table: `mean_recall` [k, budget], `coverage` [k, budget, level], in 0..1, rising with budget.

    depth: candidates that quantized lists re-rank for k up to DEPTH_K; 0 for flat lists.
    """

    ks: tuple[int, ...]
    budgets: npt.NDArray[np.int64]
    mean_recall: Floats
    coverage: Floats
    queries: int
    source: str
    depth: int = 0

    def depth_of(self, k: int) -> int:
        """Candidates that a search for the k nearest re-ranks; 0: flat lists."""
        return depth_of(self.depth, k)

    def for_mean_recall(self, k: float, recall: float) -> Choice | None:
        """The smallest budget whose mean recall of the k nearest is at least `recall`; None: no budget
        is."""
        return self._first(k, self.mean_recall, recall)

    def for_coverage(self, k: float, recall: float, share: float) -> Choice | None:
        """The smallest budget with which at least `share` of the queries reach `recall`; None: none does.

        Between two measured levels the higher one counts.
        """
        return self._first(k, self._coverage(recall), share)

    def ceiling(self, k: float) -> float:
        """The mean recall of the k nearest when every list is visited."""
        return self.predicted(k, int(self.budgets[-1]))

    def coverage_ceiling(self, k: float, recall: float) -> float:
        """The share of queries that reach `recall` when every list is visited."""
        return float(self._coverage(recall)[self._rows(k) or slice(-1, None), -1].min())

    def measures(self, k: float) -> bool:
        """Whether k is not above every calibrated one."""
        return self._rows(k) is not None

    def predicted(self, k: float, lists: int) -> float:
        """Mean recall of the k nearest to expect from `lists` lists, 0..1.

        A k above every calibrated one takes the figure of the largest, which flatters it a little.
        """
        column = int(np.searchsorted(self.budgets, lists, side="right")) - 1
        return float(self.mean_recall[self._rows(k) or slice(-1, None), column].min())

    def _rows(self, k: float) -> slice | None:
        """The rows whose lower figures hold for this k; None above every calibrated one."""
        above = next((row for row, calibrated in enumerate(self.ks) if calibrated * SLACK >= k), None)
        if above is None:
            return None
        return slice(above if self.ks[above] <= k else max(0, above - 1), above + 1)

    def _coverage(self, recall: float) -> Floats:
        level = int(np.searchsorted(LEVELS, recall - _ROUNDING))
        return self.coverage[:, :, level]

    def _first(self, k: float, table: Floats, least: float) -> Choice | None:
        """The smallest budget at which `table` [k, budget] reaches `least`."""
        rows = self._rows(k)
        if rows is None:
            return Choice(int(self.budgets[-1]), 1.0)
        reached = table[rows].min(axis=0) >= least - _ROUNDING
        if not reached.any():
            return None
        column = int(reached.argmax())
        return Choice(int(self.budgets[column]), float(self.mean_recall[rows, column].min()))

    def to_json(self) -> dict[str, Any]:
        """The document written to the bundle."""
        return {
            "queries": self.queries,
            "depth": self.depth,
            "source": self.source,
            "ks": list(self.ks),
            "budgets": self.budgets.tolist(),
            "levels": list(LEVELS),
            "mean_recall": self.mean_recall.tolist(),
            "coverage": self.coverage.tolist(),
        }

    @classmethod
    def from_json(cls, document: dict[str, Any], lists: int, *, exhaustive: bool = True) -> Calibration:
        """The table of an index with this number of lists; BundleError unless the document is a valid one.

        exhaustive: a search over every list finds everything, as it does in flat lists.
        """
        try:
            ks = tuple(int(k) for k in document["ks"])
            budgets = np.asarray(document["budgets"], dtype=np.int64)
            mean = np.asarray(document["mean_recall"], dtype=np.float64)
            coverage = np.asarray(document["coverage"], dtype=np.float64)
            queries, source = int(document["queries"]), str(document["source"])
            depth = int(document["depth"])
            levels = tuple(float(level) for level in document["levels"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise BundleError(f"{CALIBRATION_FILE}: {error!r}") from error
        if depth != 0 if exhaustive else not DEPTH_K <= depth <= MAX_DEPTH:
            raise BundleError(f"{CALIBRATION_FILE}: re-ranks {depth} candidates")
        shape = (len(ks), budgets.size)
        if levels != LEVELS or not ks or list(ks) != sorted(set(ks)) or ks[0] < 1:
            raise BundleError(f"{CALIBRATION_FILE}: levels or k values are not the expected ones")
        if budgets.ndim != 1 or not budgets.size or budgets[0] != 1 or budgets[-1] != lists:
            raise BundleError(f"{CALIBRATION_FILE}: budgets do not run from 1 to {lists} lists")
        if (np.diff(budgets) <= 0).any():
            raise BundleError(f"{CALIBRATION_FILE}: budgets do not rise")
        for name, table, expected in (
            ("mean_recall", mean, shape),
            ("coverage", coverage, (*shape, len(LEVELS))),
        ):
            if table.shape != expected:
                raise BundleError(f"{CALIBRATION_FILE}: {name} has shape {table.shape}, expected {expected}")
            if not ((table >= 0) & (table <= 1 + _ROUNDING)).all() or (np.diff(table, axis=1) < 0).any():
                raise BundleError(f"{CALIBRATION_FILE}: {name} is not in 0..1 or falls with the budget")
            if exhaustive and (table[:, -1] < 1 - _ROUNDING).any():
                raise BundleError(f"{CALIBRATION_FILE}: {name} of an exhaustive search is below 1")
        return cls(ks, budgets, mean, coverage, queries, source, depth)


def depth_of(depth: int, k: int) -> int:
    """Candidates to re-rank for the k nearest, where `depth` are for k up to DEPTH_K: in proportion above."""
    return -(-depth * max(k, DEPTH_K) // DEPTH_K)


def ladder(lists: int) -> npt.NDArray[np.int64]:
    """Budgets from 1 to `lists`, each about 15 % above the one before."""
    steps = int(np.ceil(np.log(lists) / np.log(_STEP))) if lists > 1 else 0
    rungs = np.minimum(np.round(_STEP ** np.arange(steps + 1)), lists).astype(np.int64)
    return np.unique(np.append(rungs, lists))


def measure(
    queries: npt.NDArray[np.float32],
    vectors: npt.NDArray[np.float32],
    list_of: npt.NDArray[np.int64],
    rankings: Callable[[npt.NDArray[np.float32]], npt.NDArray[np.int64]],
    lists: int,
    source: str,
    progress: Callable[[int, int], None],
) -> Calibration:
    """Measures the table of flat lists for unit `queries` [m, d] over unit `vectors` [n, d].

    `list_of` [n] names the list of each vector; `rankings` returns, for queries [b, d], all lists from the
    nearest on [b, lists], as the search itself would visit them. `progress` gets queries done and in all.
    """
    m, ks, budgets = len(queries), calibrated_ks(len(vectors)), ladder(lists)
    recalls = np.empty((len(ks), budgets.size, m))
    for block, similarities in _similarities(queries, vectors):
        order = rankings(queries[block])
        rank_of = np.empty_like(order)
        np.put_along_axis(rank_of, order, np.arange(lists)[None, :], axis=1)
        for row, k in enumerate(ks):
            floor = _kth(similarities, k) - _TIE
            for i in range(len(order)):
                near = np.flatnonzero(similarities[i] >= floor[i])
                ranks = np.sort(rank_of[i, list_of[near]])[:k]
                recalls[row, :, block.start + i] = np.searchsorted(ranks, budgets) / k
        progress(min(block.stop, m), m)
    return _table(ks, budgets, recalls, source, 0)


def measure_recorded(
    queries: npt.NDArray[np.float32],
    vectors: npt.NDArray[np.float32],
    found: Callable[[npt.NDArray[np.float32], int, npt.NDArray[np.float32]], npt.NDArray[np.float32]],
    lists: int,
    source: str,
    depth: int,
    progress: Callable[[int, int], None],
) -> Calibration:
    """Measures the table of quantized lists for unit `queries` [m, d] over unit `vectors` [n, d].

    `found` returns, for queries [b, d], k and the squared distances [b] that count as one of the k nearest,
    how many of them a search holds after each of all lists, [b, lists].
    """
    m, ks, budgets = len(queries), calibrated_ks(len(vectors)), ladder(lists)
    recalls = np.empty((len(ks), budgets.size, m))
    for block, similarities in _similarities(queries, vectors):
        for row, k in enumerate(ks):
            held = found(queries[block], k, _limits(similarities, k)) / k
            # Later lists may crowd a neighbour out of the candidates: what is promised is what stays.
            kept = np.minimum.accumulate(held[:, ::-1], axis=1)[:, ::-1]
            recalls[row, :, block] = kept[:, budgets - 1].T
        progress(min(block.stop, m), m)
    return _table(ks, budgets, recalls, source, depth)


def calibrated_ks(n: int) -> tuple[int, ...]:
    """The depths that are measured over n vectors."""
    return tuple(k for k in CALIBRATED_K if k < n) or (n,)


def limits_of(
    queries: npt.NDArray[np.float32], vectors: npt.NDArray[np.float32], ks: Sequence[int]
) -> npt.NDArray[np.float32]:
    """Squared distances [ks, m] that count as one of the k nearest, ties included."""
    limits = np.empty((len(ks), len(queries)), dtype=np.float32)
    for block, similarities in _similarities(queries, vectors):
        for row, k in enumerate(ks):
            limits[row, block] = _limits(similarities, k)
    return limits


def _limits(similarities: npt.NDArray[np.float32], k: int) -> npt.NDArray[np.float32]:
    return (2 - 2 * (_kth(similarities, k) - _TIE)).astype(np.float32)


def _similarities(
    queries: npt.NDArray[np.float32], vectors: npt.NDArray[np.float32]
) -> Iterator[tuple[slice, npt.NDArray[np.float32]]]:
    block = max(1, min(len(queries), _BLOCK_BYTES // (4 * len(vectors))))
    for start in range(0, len(queries), block):
        rows = slice(start, min(start + block, len(queries)))
        yield rows, queries[rows] @ vectors.T


def _kth(similarities: npt.NDArray[np.float32], k: int) -> npt.NDArray[np.float32]:
    at = similarities.shape[1] - k
    kth: npt.NDArray[np.float32] = np.partition(similarities, at, axis=1)[:, at]
    return kth


def _table(
    ks: tuple[int, ...], budgets: npt.NDArray[np.int64], recalls: Floats, source: str, depth: int
) -> Calibration:
    coverage = np.stack([(recalls >= level - _ROUNDING).mean(axis=2) for level in LEVELS], axis=2)
    return Calibration(ks, budgets, recalls.mean(axis=2), coverage, recalls.shape[2], source, depth)
