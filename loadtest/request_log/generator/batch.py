"""Some requests in a row, as the steps of the generator pass them on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Batch:
    """Requests of one day. `first` is the row of the first in the whole log, below 0 for prior days."""

    first: int
    time_ms: NDArray[np.int64]
    phrase: NDArray[np.int64]  # row of the batch's phrases (`Traits`)
    context: NDArray[np.int64]  # of the user: location, gender and age in one number
