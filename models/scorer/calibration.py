"""The similarity baseline: click probability at the top position from the similarity of query and ad alone.

    p = logistic(intercept + slope * similarity)

It is a baseline and named so ("similarity-baseline"): it knows nothing of the ad's history, the user or
the words. No click log comes with this repository, so it is fitted on rated (query, product) pairs whose
ratings are mapped to MODELLED click rates (`MODELLED_RATES`). The map is ours. Its order of magnitude is
that of the published mean click rates of search ads, 1.9 to 2.2 % an ad; its shape is an assumption, to
be replaced by clicks once there are any.

Fit: Newton's method on the binomial log-likelihood with fractional targets (the quasi-likelihood of R. W. M.
Wedderburn, Biometrika 61, 1974), with a ridge on the slope that keeps it finite when the ratings
separate. Concave, so it converges from 0.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

KIND = "similarity-baseline"
MODELLED_RATES = (
    0.002,
    0.01,
    0.02,
    0.04,
)  # click rate at the top position that stands for ratings 0, 1, 2, 3
RELEVANT_RATING = 2

Floats = NDArray[np.float64]

_RIDGE = 1e-3
_STEPS = 50


@dataclass(frozen=True)
class Calibration:
    """The two numbers of the baseline, and where they come from."""

    intercept: float
    slope: float
    fitted_on: str

    def probabilities(self, similarities: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """Click probabilities, float32 [n], of similarities [n]; beyond -1..1 counts as the nearer end."""
        logits = self.intercept + self.slope * np.clip(similarities, -1.0, 1.0)
        return _logistic(np.asarray(logits, np.float64)).astype(np.float32)

    def to_json(self) -> str:
        """As the text of calibrator.json."""
        return json.dumps({"kind": KIND, **asdict(self)}, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: bytes | str) -> Calibration:
        """Reads calibrator.json. Raises ValueError naming what is wrong."""
        document = json.loads(text)
        if not isinstance(document, dict) or document.get("kind") != KIND:
            raise ValueError(f"not a calibrator of kind {KIND}")
        intercept = _bounded(document, "intercept", -1000.0)
        slope = _bounded(document, "slope", 0.0)
        return cls(intercept, slope, str(document.get("fitted_on", "")))


# The fit for all-MiniLM-L6-v2 in INT8; README.md of this folder has the command and how well it does.
DEFAULT = Calibration(
    intercept=-5.6309,
    slope=3.9210,
    fitted_on="2033 pairs of Icecat products, Chorus ratings, encoder 613d4d7e4bfe19e91c491c6ed5390450",
)


@dataclass(frozen=True)
class Evaluation:
    """How a calibration does on pairs it was not fitted on.

    auc: chance that a relevant pair (rating 2 or 3) is more similar than one that is not. log_loss: nats
    a pair against the modelled rates, constant_log_loss the same for their mean. ece: mean absolute
    difference of predicted and modelled rate over ten bins of equal count; mean_rate puts it in
    proportion.
    """

    pairs: int
    queries: int
    relevant: int
    auc: float
    log_loss: float
    constant_log_loss: float
    least_log_loss: float
    ece: float
    mean_rate: float


def fit(similarities: Floats, rates: Floats, fitted_on: str) -> Calibration:
    """Fits the baseline to similarities [n] and click rates [n] in 0..1.

    Raises ValueError when there are fewer than two pairs, or the rates do not rise with similarity.
    """
    if len(similarities) < 2:
        raise ValueError(f"{len(similarities)} pairs are too few to fit two numbers")
    design = np.stack([np.ones_like(similarities), similarities], axis=1)
    penalty = np.array([0.0, _RIDGE])
    mean = float(np.clip(rates.mean(), 1e-6, 1 - 1e-6))
    weights = np.array([np.log(mean / (1 - mean)), 0.0])
    for _ in range(_STEPS):
        predicted = _logistic(design @ weights)
        gradient = design.T @ (rates - predicted) - penalty * weights
        curvature = (design * (predicted * (1 - predicted))[:, None]).T @ design + np.diag(penalty)
        step = np.linalg.solve(curvature, gradient)
        weights += step
        if np.abs(step).max() < 1e-10:
            break
    else:
        raise ValueError("the fit did not converge")
    if weights[1] <= 0:
        raise ValueError(f"the rates do not rise with similarity (slope {weights[1]:.3g})")
    return Calibration(float(weights[0]), float(weights[1]), fitted_on)


def evaluate(
    calibration: Calibration, similarities: Floats, ratings: NDArray[np.int64], queries: int
) -> Evaluation:
    """Measures a calibration on pairs [n] of `queries` distinct queries; see Evaluation."""
    rates = np.array(MODELLED_RATES)[ratings]
    predicted = calibration.probabilities(similarities).astype(np.float64)
    relevant = ratings >= RELEVANT_RATING
    return Evaluation(
        pairs=len(ratings),
        queries=queries,
        relevant=int(relevant.sum()),
        auc=area_under_curve(similarities, relevant),
        log_loss=_cross_entropy(rates, predicted),
        constant_log_loss=_cross_entropy(rates, np.full_like(rates, rates.mean())),
        least_log_loss=_cross_entropy(rates, rates),
        ece=_expected_calibration_error(predicted, rates),
        mean_rate=float(rates.mean()),
    )


def area_under_curve(scores: Floats, positive: NDArray[np.bool_]) -> float:
    """Chance that a positive scores above a negative, ties count half; NaN when one of them is missing.

    >>> area_under_curve(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True]))
    0.75
    """
    positives, negatives = np.sort(scores[positive]), np.sort(scores[~positive])
    if not len(positives) or not len(negatives):
        return float("nan")
    below = np.searchsorted(negatives, positives, "left") + np.searchsorted(negatives, positives, "right")
    return float(below.sum() / 2 / (len(positives) * len(negatives)))


def _bounded(document: dict[str, Any], name: str, low: float) -> float:
    value = document.get(name)
    if not isinstance(value, float) or not low < value < 1000.0:
        raise ValueError(f"{name} {value!r} is not a number above {low:g} and below 1000")
    return value


def _logistic(logits: Floats) -> Floats:
    # exp overflows for large positive numbers and is 0 for large negative ones: take the negative side.
    small = np.exp(-np.abs(logits))
    result: Floats = np.where(logits >= 0, 1.0, small) / (1.0 + small)
    return result


def _cross_entropy(targets: Floats, predicted: Floats) -> float:
    return float(-(targets * np.log(predicted) + (1 - targets) * np.log1p(-predicted)).mean())


def _expected_calibration_error(predicted: Floats, rates: Floats) -> float:
    bins = np.array_split(np.argsort(predicted, kind="stable"), min(10, len(predicted)))
    return float(sum(len(b) * abs(predicted[b].mean() - rates[b].mean()) for b in bins) / len(predicted))
