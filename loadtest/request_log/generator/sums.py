"""Sums over the lists of requests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def by_request(values: NDArray[np.float64], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """The sum of `values`, one a listed ad, of every request."""
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    return np.asarray(np.bincount(rows, values, minlength=len(offsets) - 1), np.float64)
