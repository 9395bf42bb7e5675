"""Intervals of means over few seeds."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student


def reach(values: NDArray[np.float64]) -> float:
    """Half the width of the 95 % interval of the mean of two or more values: Student's t."""
    return float(student.ppf(0.975, len(values) - 1) * values.std(ddof=1)) / math.sqrt(len(values))
