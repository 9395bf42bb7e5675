"""What a request asks for, and the plan that serves it: a stop policy, a depth, and a limit of lists.

Exact searches, and filters that admit few ads, compare every admitted ad. A budget is taken as given. A
recall target is served by the policy that the stop model of the index has for it: the rule that needed the
least work in calibration. Where there is none, the calibrated fixed budget serves, and the answer says so:
without a model that fits the index, for a target or depth that it was not calibrated for, and under a filter.

A filter changes what is found where, which no model has seen. When it admits a share s of the ads, the k
nearest admitted are about the k/s nearest of all, so the budget is that of k/s (right when the filter is
independent of the query; measured figures are without filters). The model still serves where nearly all are
admitted, as when a few were deleted.

Quantized lists have a ceiling of recall; targets above it are refused rather than missed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from services.core.stopping.policy import Policy, fixed
from services.core.stopping.table import MEAN
from services.retrieval.attributes import Condition
from services.retrieval.calibration import SLACK, Choice
from services.retrieval.index import LoadedIndex
from services.runtime.errors import FailedPrecondition

Floats = npt.NDArray[np.float32]


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
    """How to search: policy, whose cap is the most lists of a row; k nearest to look for; recall to expect.

    exact: compare the vectors themselves in every list. fixed_budget: a calibrated budget stands in for a
    stop rule.
    """

    policy: Policy
    k: int
    recall: float
    exact: bool = False
    fixed_budget: bool = False

    @property
    def lists(self) -> int:
        """Most lists that a row visits."""
        return self.policy.cap


def plan(index: LoadedIndex, target: Target, k: int, admitted: int) -> Plan:
    """How to find the k nearest of `admitted` > 0 ads.

    Raises FailedPrecondition for a recall above the ceiling of the index.
    """
    if isinstance(target, Exact):
        return exact_plan(index, k)
    deep = min(k, admitted) * index.size / admitted
    calibration = index.calibration
    if isinstance(target, Budget):
        if target.lists == index.lists and index.exhaustive:
            return exact_plan(index, k)
        return _fixed_plan(index, k, target.lists, calibration.predicted(deep, target.lists))
    if not calibration.measures(deep):
        return exact_plan(index, k)
    choice = _choice(index, target, deep)
    if index.stop_model is not None and deep <= SLACK * k:
        share = MEAN if isinstance(target, MeanRecall) else target.share
        chosen = index.stop_model.choose(k, target.recall, share)
        if chosen is not None:
            return Plan(chosen.policy, max(chosen.point.k, k), chosen.point.reached)
    if choice.lists == index.lists and index.exhaustive:
        return exact_plan(index, k)
    return _fixed_plan(index, k, choice.lists, choice.recall, fixed_budget=True)


def exact_plan(index: LoadedIndex, k: int) -> Plan:
    """Compares every admitted ad."""
    return Plan(fixed(index.lists), k, 1.0, exact=True)


def _fixed_plan(index: LoadedIndex, k: int, lists: int, recall: float, *, fixed_budget: bool = False) -> Plan:
    return Plan(fixed(lists, index.calibration.depth_of(k)), k, recall, fixed_budget=fixed_budget)


def _choice(index: LoadedIndex, target: MeanRecall | Coverage, k: float) -> Choice:
    calibration = index.calibration
    if isinstance(target, MeanRecall):
        choice, asked = calibration.for_mean_recall(k, target.recall), target.recall
        what, ceiling = "mean_recall", calibration.ceiling(k)
    else:
        choice, asked = calibration.for_coverage(k, target.recall, target.share), target.share
        what, ceiling = "coverage.share", calibration.coverage_ceiling(k, target.recall)
    if choice is None:
        raise FailedPrecondition(
            "TARGET_ABOVE_CEILING",
            f"target.{what}: {asked:g} is above {ceiling:.4f}, the ceiling of this {index.kind} index",
            subject=index.fingerprint,
            remedy="ask for less, or for an exact search",
            ceiling=f"{ceiling:.6f}",
        )
    return choice
