"""One cell of the bench: an index, a k and a target; every rule tuned on one split and measured on another.

Two readings. *Calibrated*: the knob that reaches the target on the calibration split, and what it does on the
test split; this is what a service gets. *Equal recall*: the knob at which the rule reaches the target on the
test split itself, on its own curve, corrected to exactly the target by the slope of that curve; this is what
rules are compared by, for a rule that misses its target by .3 points at .99 looks a tenth cheaper. Intervals
are 95 % bootstrap over test queries, the same resamples for all rules.

"fixed" is the least number of lists, or the narrowest beam of a graph, that reaches the target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.termination.calibration import Family, Outcome, Target, Trace, cap_of, fixed_lists, served
from services.core.stopping.policy import Policy
from services.core.stopping.rules import FIXED

DRAWS = 300
OWN = ("fixed", "density", "ratio", "marginal")
"""The rules that serve; one of them is the default of its target."""
_CHOOSING = 2000  # queries of the calibration split on which the variants of a rule are compared

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Reading:
    """A rule at a target. calibrated: its outcome on the test split, or None where calibration fell short.

    codes: mean vectors compared at equal recall, draws: the same for each resample [DRAWS]. policy: at equal
    recall. tuned: vectors compared by each query in calibration.
    """

    name: str
    calibrated: Outcome
    equal: Outcome
    codes: float
    draws: Doubles
    policy: Policy
    tuned: Doubles


def default_of(readings: Sequence[Reading]) -> Reading:
    """What a service would serve with, by calibration."""
    own = [reading for reading in readings if reading.name in OWN]
    return own[served([(reading.name, reading.tuned) for reading in own])]


def covered(tune: Trace, test: Trace, k: int, recall: float, own: Sequence[Family]) -> float | None:
    """Share of the test queries that reach `recall` under the rule which in calibration lets just a share of
    `recall` reach it at the least work; None where none does."""
    target, width = Target(recall, recall), tune.width
    budget = fixed_lists(tune, k, target)
    if budget is None:
        return None
    caps = [cap_of(budget, width, family.cap) for family in own]
    knobs = [family.least_knob(tune, k, target, cap) for family, cap in zip(own, caps, strict=True)]
    outcomes = [
        (family.outcome(tune, k, knob, cap).codes.mean(), family.outcome(test, k, knob, cap).recalls)
        for family, cap, knob in zip(own, caps, knobs, strict=True)
        if knob is not None
    ]
    return float((min(outcomes, key=lambda pair: pair[0])[1] >= recall - 1e-9).mean()) if outcomes else None


def resamples(queries: int, seed: int) -> npt.NDArray[np.int64]:
    """Rows of each resample, [DRAWS, queries]."""
    return np.random.default_rng(seed).integers(0, queries, (DRAWS, queries))


def read_cell(
    tune: Trace,
    test: Trace,
    k: int,
    recall: float,
    families: Mapping[str, Sequence[Family]],
    depth: int,
    draws: npt.NDArray[np.int64],
) -> list[Reading]:
    """Every rule at one target, "fixed" first. A rule that cannot reach it is left out."""
    target, width = Target(recall), tune.width
    budget = fixed_lists(tune, k, target)
    if budget is None:
        return []
    fixed = Family("fixed", FIXED, lambda knob: np.array([knob]), 1.0, float(width))
    readings = [_read_fixed(fixed, budget, tune, test, k, target, depth, draws)]
    for name, members in families.items():
        variants = [(family, cap_of(budget, width, family.cap)) for family in members]
        if name not in OWN:
            variants += [(family, width) for family in members]
        chosen = _cheapest(variants, tune, k, target)
        reading = None if chosen is None else _read(*chosen, tune, test, k, target, depth, draws)
        readings += [reading] if reading else []
    return readings


def _cheapest(
    variants: Sequence[tuple[Family, int]], tune: Trace, k: int, target: Target
) -> tuple[Family, int] | None:
    """The family and cap that reach the target at the least work on some queries."""
    if len(variants) == 1:
        return variants[0]
    some = tune.part(slice(_CHOOSING))
    best: tuple[float, Family, int] | None = None
    for family, cap in variants:
        knob = family.least_knob(some, k, target, cap)
        if knob is None:
            continue
        work = float(family.outcome(some, k, knob, cap).codes.mean())
        if best is None or work < best[0]:
            best = work, family, cap
    return None if best is None else best[1:]


def _read_fixed(
    fixed: Family,
    budget: int,
    tune: Trace,
    test: Trace,
    k: int,
    target: Target,
    depth: int,
    draws: npt.NDArray[np.int64],
) -> Reading:
    width = test.width
    least = fixed_lists(test, k, target) or width
    equal = fixed.outcome(test, k, float(least), width)
    below = fixed.outcome(test, k, float(max(1, least - max(1, least // 10))), width)
    codes, sampled = _corrected(equal, below, target.recall, draws)
    return Reading(
        "fixed",
        fixed.outcome(test, k, float(budget), width),
        equal,
        codes,
        sampled,
        Policy(FIXED, np.array([float(least)]), least, depth=depth),
        fixed.outcome(tune, k, float(budget), width).codes,
    )


def _read(
    family: Family,
    cap: int,
    tune: Trace,
    test: Trace,
    k: int,
    target: Target,
    depth: int,
    draws: npt.NDArray[np.int64],
) -> Reading | None:
    knob, at = family.least_knob(tune, k, target, cap), family.least_knob(test, k, target, cap)
    if knob is None or at is None:
        return None
    equal = family.outcome(test, k, at, cap)
    nearby = Target(target.recall - 0.3 * (1 - target.recall))
    lower = family.least_knob(test, k, nearby, cap)
    below = equal if lower is None else family.outcome(test, k, lower, cap)
    codes, sampled = _corrected(equal, below, target.recall, draws)
    policy = Policy(family.rule, family.parameters(at), cap, family.forest, depth)
    tuned = family.outcome(tune, k, knob, cap).codes
    return Reading(family.name, family.outcome(test, k, knob, cap), equal, codes, sampled, policy, tuned)


def _corrected(
    at: Outcome, below: Outcome, recall: float, draws: npt.NDArray[np.int64]
) -> tuple[float, Doubles]:
    """Mean codes at exactly `recall`, by the chord from `below`; the same of each resample."""
    rise = at.recalls.mean() - below.recalls.mean()
    slope = (at.codes.mean() - below.codes.mean()) / rise if rise > 1e-6 else 0.0

    def work(codes: Doubles, recalls: Doubles) -> Doubles:
        corrected: Doubles = codes - slope * (recalls - recall)
        return corrected

    mean = work(np.atleast_1d(at.codes.mean()), np.atleast_1d(at.recalls.mean()))
    return float(mean[0]), work(at.codes[draws].mean(axis=1), at.recalls[draws].mean(axis=1))
