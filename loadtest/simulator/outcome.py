"""What a simulation measured, and the figures that the papers give of it.

All shares are percent. They are over the requests after the warm-up; losses and profit are percent of the
revenue that the log earned on them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MISS, HIT, REFRESH = 0, 1, 2
"""What became of a request: no list was cached; it was served; it was computed anew."""

COUNTS = np.dtype(
    [
        ("requests", np.int64),
        ("hits", np.int64),  # served from the cache
        ("refreshes", np.int64),
        ("probes", np.int64),  # refreshes that only measured
        ("compared", np.int64),  # hits whose current list is not empty: those with a similarity
        ("similarity", np.float64),  # sum over the compared hits, each 0..1
        ("cost", np.float64),  # candidates of all requests
        ("cost_saved", np.float64),  # candidates of hits
        ("revenue_usd", np.float64),  # expected: shown probability x charge
        ("lost_usd", np.float64),  # that of ads absent from the served list
        ("revenue_realised_usd", np.float64),  # clicked x charge
        ("lost_realised_usd", np.float64),
        ("served_predicted_usd", np.float64),  # loss of hits, as a model predicted it and probes corrected it
        ("served_estimated_usd", np.float64),  # and as the scorer's estimates have it afterwards
        ("auction_usd", np.float64),  # expected, where what is left of the served list moves up
    ]
)
"""Sums over the measured requests."""


@dataclass(frozen=True)
class Outcome:
    """A design on a log: sums, what became of each request, and what the replay took."""

    design: str
    entries: int
    sums: np.void  # one row of COUNTS
    decisions: NDArray[np.int8]  # MISS, HIT or REFRESH of every request, the warm-up included
    seconds: float  # of the replay, from keys to sums, without compilation
    peak_bytes: int  # most memory that the process has held so far

    @property
    def requests(self) -> int:
        """Requests measured."""
        return int(self.sums["requests"])

    @property
    def refreshes(self) -> int:
        """Lists computed anew although they were cached."""
        return int(self.sums["refreshes"])

    @property
    def hit(self) -> float:
        """Requests served from the cache; a refresh counts as a miss."""
        return self._share("hits", "requests")

    @property
    def similarity(self) -> float:
        """Mean over hits of |served and current| / |current| (SoCC'17 section 5.2).

        Undefined, and left out, where the current list is empty; 0 where only the served one is, as in its
        section 3.6.
        """
        return self._share("similarity", "compared")

    @property
    def cost_saving(self) -> float:
        """Cost of hits in that of all requests."""
        return self._share("cost_saved", "cost")

    @property
    def loss_pessimistic(self) -> float:
        """Revenue of the log's ads that the served lists lack, in expectation."""
        return self._share("lost_usd", "revenue_usd")

    @property
    def loss_pessimistic_realised(self) -> float:
        """The same by the clicks that the log drew."""
        return self._share("lost_realised_usd", "revenue_realised_usd")

    @property
    def revenue_auction(self) -> float:
        """Change of revenue when the shown ads that the served list holds move up; see `auction.py`."""
        return self._share("auction_usd", "revenue_usd") - 100 if self.sums["revenue_usd"] else 0.0

    @property
    def probes(self) -> int:
        """Refreshes that only measured what serving would have lost."""
        return int(self.sums["probes"])

    @property
    def prediction(self) -> float | None:
        """Loss predicted in that measured, over the hits of a learned policy; 1 is right."""
        measured_usd = float(self.sums["served_estimated_usd"])
        return float(self.sums["served_predicted_usd"]) / measured_usd if measured_usd else None

    @property
    def requests_per_s(self) -> float:
        """Requests replayed a second, the warm-up included."""
        return len(self.decisions) / self.seconds

    def net_profit(self, cost_ratio: float) -> float:
        """Percent of revenue gained, where computing all lists costs `cost_ratio` (0..1) of the revenue.

        WWW'18 section 5: cost ratio x cost saving - loss, with the pessimistic loss in expectation.
        """
        return cost_ratio * self.cost_saving - self.loss_pessimistic

    def _share(self, part: str, whole: str) -> float:
        total = float(self.sums[whole])
        return 100 * (float(self.sums[part]) / total) if total else 0.0
