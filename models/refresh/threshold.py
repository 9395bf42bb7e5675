"""The threshold of WWW'18: above which predicted loss a hit is refreshed, whatever computing costs.

The paper (section 4.3) tunes it on the hour of the log that follows the training rows, to a value that about
80 % of the requests without a loss are below, and about 80 % of those with one above; slightly higher values
hardly matter, and lower ones hurt. Where a model does not reach both, we hold to the first: on seed 1 of both
key streams it earns more than the balance of the two, and more steadily than the threshold of the greatest
profit on the hour, which a few clicks decide (DECISIONS.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
NONE_BELOW = 0.8
_STEPS = 50


@dataclass(frozen=True)
class Separation:
    """A threshold, and the shares 0..1 of requests without a loss below it and of those with one above it."""

    threshold_usd: float
    none_below: float
    some_above: float


def separation(predicted_usd: Doubles, loss_usd: Doubles, threshold_usd: float) -> Separation:
    """How a threshold separates requests without a loss from the others; a prediction at it is below."""
    below, none = predicted_usd <= threshold_usd, loss_usd == 0.0
    return Separation(threshold_usd, _share(below[none]), _share(~below[~none]))


def balanced(predicted_usd: Doubles, loss_usd: Doubles) -> Separation:
    """The threshold at which both shares are as near to each other as they get, by binary search."""
    low, high = float(predicted_usd.min()), float(predicted_usd.max())
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        found = separation(predicted_usd, loss_usd, middle)
        low, high = (middle, high) if found.none_below < found.some_above else (low, middle)
    return separation(predicted_usd, loss_usd, high)


def published(predicted_usd: Doubles, loss_usd: Doubles) -> Separation:
    """The threshold that `NONE_BELOW` of the requests without a loss are below."""
    none = predicted_usd[loss_usd == 0.0]
    return separation(predicted_usd, loss_usd, float(np.quantile(none, NONE_BELOW)))


def _share(flags: NDArray[np.bool_]) -> float:
    return float(flags.mean()) if flags.size else 1.0
