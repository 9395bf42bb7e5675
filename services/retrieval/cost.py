"""What a search costs on this machine, as measured while it runs, and how far a remaining time goes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_DECAY = 0.98  # of what was measured before: about the last 50 calls count
_SHARE = 0.5  # of the remaining time that may go into comparing; the rest is for merging and the way back


class ScanCost:
    """Nanoseconds a compared vector over the last calls, overhead included.

    Safe under threads: a lost update loses one measurement.
    """

    def __init__(self, sizes: npt.NDArray[np.int64]) -> None:
        squares = float((sizes.astype(np.float64) ** 2).sum())
        # Of the list that holds a vector, not of any list: a search visits the crowded ones more often.
        self._list_codes = max(1.0, squares / max(1, int(sizes.sum())))
        self._measured = (0.0, 0.0)

    def add(self, elapsed_ns: int, codes: int) -> None:
        """A call compared `codes` vectors in `elapsed_ns`."""
        ns, seen = self._measured
        self._measured = (_DECAY * ns + elapsed_ns, _DECAY * seen + codes)

    def lists_within(self, seconds: float, rows: int) -> float:
        """Lists that each of `rows` queries can visit in `seconds`, at least 1; infinite when unmeasured."""
        ns, codes = self._measured
        if not ns or not codes or seconds == float("inf"):
            return float("inf")
        each = _SHARE * seconds * 1e9 / rows / (ns / codes)
        return max(1.0, each // self._list_codes)
