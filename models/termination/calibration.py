"""Thresholds that reach recall targets at the least work, chosen on recorded searches of a calibration split.

A rule with a knob is monotone: the more it searches, the more it finds. So for each target the least knob
that reaches it is found by bisection, each probe a replay of the split (a few milliseconds a thousand
queries): of some queries first, then of all in a bracket about what those say. The target is the mean recall,
or the share of queries that reach a recall.

The cap bounds the tail. An adaptive rule spends on hard queries what it saves on easy ones; held to 1.3 times
the fixed budget of the target, its 99th percentile of work is about that of the fixed budget times 1.3, and
the mean pays nothing for it, for what is found beyond is rare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from models.termination.gain import GainModel
from services.core.hnsw.replay import Trace as Walks
from services.core.stopping import marginal
from services.core.stopping.replay import Trace as Scans
from services.core.stopping.rules import DENSITY, MARGINAL, NO_FOREST, RATIO
from services.core.stopping.state import WATCHED
from services.core.stopping.table import MEAN, Point

CAP = 1.3
CAP_OF_WALK = 1.35
"""Of walks of a graph: an expanded node costs the less the more were before it, so 1.35 times the nodes are
about 1.2 times the work in the 99th percentile."""
_LEARNED = "marginal"  # the one rule of those that serve which asks a model
_WALK_OVERHEAD = 0.05  # of its time that a walk with the model spends on a wider queue and decisions
EXPONENTS = (4.0, 8.0, 12.0)
MIXES = (0.3, 0.5, 0.7)
_PROBES = 13  # the knob is found to 2^-13 of its range
_FEW = 1000  # queries of the first bisection
_BRACKET = 12.0  # about what they say, in units of the precision
_ROUNDING = 1e-9

Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Trace = Scans | Walks
"""Recorded searches, of an inverted file or of a graph. What the one calls lists are nodes to the other."""


@dataclass(frozen=True, slots=True)
class Target:
    """A recall of the k nearest, in the mean or (share above 0) of that share of the queries."""

    recall: float
    share: float = MEAN

    def reached(self, recalls: Doubles) -> float:
        """How far above the target (below: negative) these recalls of queries are."""
        if self.share == MEAN:
            return float(recalls.mean() - self.recall)
        return float((recalls >= self.recall - _ROUNDING).mean() - self.share)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy does on a split, each [q]: lists, vectors compared, recall 0..1, model evaluations."""

    lists: Ints
    codes: Doubles
    recalls: Doubles
    asked: Ints

    @classmethod
    def at(cls, trace: Trace, k: int, lists: Ints, asked: Ints) -> Outcome:
        """Of searches that visited these numbers of lists."""
        found = trace.found[np.arange(len(lists)), lists - 1].astype(np.float64)
        return cls(lists, trace.compared(lists), found / k, asked)


@dataclass(frozen=True, slots=True)
class Family:
    """A rule as a function of one knob: the larger, the more is searched.

    parameters: those of the rule at a knob in low..high. cap: most lists of one query over the fixed budget.
    """

    name: str
    rule: int
    parameters: Callable[[float], Doubles]
    low: float
    high: float
    forest: Any = NO_FOREST
    cap: float = CAP

    def outcome(self, trace: Trace, k: int, knob: float, cap: int) -> Outcome:
        """What it does on the recorded searches, none longer than `cap` lists."""
        return Outcome.at(trace, k, *trace.replay(k, self.rule, self.parameters(knob), self.forest, cap))

    def least_knob(self, trace: Trace, k: int, target: Target, cap: int) -> float | None:
        """The least knob that reaches the target under this cap; None: no knob does."""

        def reached(part: Trace, knob: float) -> bool:
            return target.reached(self.outcome(part, k, knob, cap).recalls) >= -_ROUNDING

        precision = (self.high - self.low) / 2**_PROBES
        few = trace.part(slice(_FEW))
        high = _bisect(lambda knob: reached(few, knob), self.low, self.high, precision)
        step = _BRACKET * precision
        low = max(self.low, high - step)
        while not reached(trace, high):
            if high == self.high:
                return None
            low, high, step = high, min(self.high, high + step), 2 * step
        while low > self.low and reached(trace, low):
            step *= 2
            low, high = max(self.low, low - step), low
        return _bisect(lambda knob: reached(trace, knob), low, high, precision)


def _bisect(reached: Callable[[float], bool], low: float, high: float, precision: float) -> float:
    """The least knob in low..high that reaches its target, to `precision`; `high` is taken to."""
    while high - low > precision:
        middle = (low + high) / 2
        if reached(middle):
            high = middle
        else:
            low = middle
    return high


def fixed_lists(trace: Trace, k: int, target: Target) -> int | None:
    """The least fixed budget that reaches the target; None: the width of the trace does not."""
    return trace.least_budget(k, lambda recalls: target.reached(recalls) >= -_ROUNDING)


def density_families(k: int) -> list[Family]:
    """The closed form with every exponent and mix that is tried; its knob is minus log of the threshold."""
    mixes = MIXES if k < WATCHED else (1.0,)

    def family(exponent: float, mix: float) -> Family:
        def parameters(knob: float) -> Doubles:
            return np.array([-knob, exponent, mix])

        return Family("density", DENSITY, parameters, -40.0, 40.0)

    return [family(exponent, mix) for exponent in EXPONENTS for mix in mixes]


def marginal_family(model: GainModel, k: int) -> Family:
    """The marginal rule; its knob is minus log lambda."""

    def parameters(knob: float) -> Doubles:
        return marginal.parameters(-knob, model.band, k, model.starts[k])

    return Family("marginal", MARGINAL, parameters, -10.0, 40.0, model.forest.arrays)


def ratio_families(k: int) -> list[Family]:
    """The closed form for walks of a graph with every mix that is tried; its knob is the log of the ratio."""
    mixes = MIXES if k < WATCHED else (0.0,)

    def family(mix: float) -> Family:
        def parameters(knob: float) -> Doubles:
            return np.array([knob, mix])

        return Family("ratio", RATIO, parameters, -2.0, 4.0, cap=CAP_OF_WALK)

    return [family(mix) for mix in mixes]


def cap_of(lists: int, width: int, cap: float = CAP) -> int:
    """Most lists of one query where the fixed budget is `lists`."""
    return min(width, int(np.ceil(cap * lists)))


def served(reached: Sequence[tuple[str, Doubles]]) -> int:
    """Which of these rules a service answers with; of each its name, and the vectors it compares for each
    query of the calibration split: the cheapest.

    In a walk of a graph the closed form, unless the learned rule's gain over it is beyond the 95 % interval
    and beyond what the rule costs besides.
    """
    means = [codes.mean() for _, codes in reached]
    best = min(range(len(reached)), key=means.__getitem__)
    closed = min((i for i, (name, _) in enumerate(reached) if name != _LEARNED), key=means.__getitem__)
    if reached[closed][0] != "ratio" or best == closed:
        return best
    gain = reached[closed][1] - reached[best][1]
    least = _WALK_OVERHEAD * means[closed] + 1.96 * gain.std() / np.sqrt(len(gain))
    return best if gain.mean() > least else closed


def points(trace: Trace, k: int, targets: Sequence[Target], model: GainModel) -> list[Point]:
    """The cheapest policy of each target that the searches of the calibration split reach.

    Work is the mean number of vectors compared. A target that the width of the trace does not reach has no
    point.
    """
    width = trace.width
    chosen = []
    for target in targets:
        lists = fixed_lists(trace, k, target)
        if lists is None:
            continue
        cap = cap_of(lists, width)
        everyone = np.full(len(trace.found), lists, dtype=np.int64)
        outcome = Outcome.at(trace, k, everyone, np.zeros_like(everyone))
        reached = [(_point(k, target, lists, "fixed", lists, outcome, 0.0, (0.0, 0.0)), outcome.codes)]
        for family in [*density_families(k), marginal_family(model, k)]:
            knob = family.least_knob(trace, k, target, cap)
            if knob is None:
                continue
            outcome = family.outcome(trace, k, knob, cap)
            shape = (0.0, 0.0) if family.rule == MARGINAL else family.parameters(knob)[1:]
            point = _point(k, target, lists, family.name, cap, outcome, -knob, shape)
            reached.append((point, outcome.codes))
        chosen.append(reached[served([(point.rule, codes) for point, codes in reached])][0])
    return chosen


def _point(
    k: int,
    target: Target,
    lists: int,
    rule: str,
    cap: int,
    outcome: Outcome,
    log_threshold: float,
    shape: Sequence[float] | Doubles,
) -> Point:
    return Point(
        k=k,
        recall=target.recall,
        share=target.share,
        lists=lists,
        rule=rule,
        log_threshold=log_threshold,
        exponent=float(shape[0]),
        mix=float(shape[1]),
        cap=cap,
        reached=float(outcome.recalls.mean()),
        codes=float(outcome.codes.mean()),
    )
