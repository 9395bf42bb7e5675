"""What is known of a phrase from the days before, and the throttle level made from it.

Days -3..-1 are generated like any other day and not written: the phrase table of a log holds what they add up
to. The throttle level (WWW'18: a fast estimate of a request's revenue before any candidate is found, 0..200)
knows prior days only: the mean revenue that the scorer expected of the phrase's requests on the two days
before, shrunk towards that of rare phrases, times log-normal noise of sd 1, and then the monotone map that
gave the requests of day -1, judged by days -3 and -2, the distribution of figure 4. Figure 4 has 36 % at
zero: the least 36 %.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from loadtest.popularity import CURVE as PHRASE_CURVE
from loadtest.request_log.generator.randomness import THROTTLE, normals

CURVE = PHRASE_CURVE.parent / "bing2017_fig4_cdf_throttle_level_all.csv"
WINDOW_DAYS = 2
SHRINKAGE_REQUESTS = 3.0
NOISE_SD = 1.0
GRID = 1_000
MAX_LEVEL = 200.0

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]


class History:
    """Counts by phrase: requests, clicks and click revenue of all days, and expected revenue day by day."""

    def __init__(self, phrases: int) -> None:
        self.requests = np.zeros(phrases, np.int32)
        self.clicks = np.zeros(phrases, np.int32)
        self.revenue_usd = np.zeros(phrases)
        self._days: deque[tuple[NDArray[np.int32], Floats]] = deque(maxlen=WINDOW_DAYS)

    def start_day(self) -> None:
        """What is added from now on belongs to a new day."""
        self._days.append((np.zeros_like(self.requests), np.zeros_like(self.revenue_usd)))

    def add(self, phrase: Ids, clicks: NDArray[np.int64], revenue_usd: Floats, expected_usd: Floats) -> None:
        """Adds requests: clicks, click revenue and the revenue the scorer expected of each."""
        requests, expected = self._days[-1]
        np.add.at(self.requests, phrase, 1)
        np.add.at(self.clicks, phrase, clicks)
        np.add.at(self.revenue_usd, phrase, revenue_usd)
        np.add.at(requests, phrase, 1)
        np.add.at(expected, phrase, expected_usd)

    def estimate(self, seed: int, first_request: int, phrase: Ids) -> Floats:
        """A noisy estimate of the revenue of requests in order, from the last two days."""
        requests = np.sum([day[0] for day in self._days], axis=0)
        expected = np.sum([day[1] for day in self._days], axis=0)
        rare = (requests > 0) & (requests <= SHRINKAGE_REQUESTS)
        mean = expected[rare].sum() / max(int(requests[rare].sum()), 1)
        shrunk = (expected[phrase] + SHRINKAGE_REQUESTS * mean) / (requests[phrase] + SHRINKAGE_REQUESTS)
        noise = normals(seed, THROTTLE, 0, first_request + np.arange(len(phrase)))
        return np.asarray(shrunk * np.exp(NOISE_SD * noise))


class ThrottleScale:
    """The monotone map from estimates to throttle levels, fitted to estimates of a day before."""

    def __init__(self, estimates: Floats) -> None:
        self._shares = np.linspace(0.0, 1.0, GRID + 1)
        self._estimates = np.quantile(estimates, self._shares)
        points = np.loadtxt(CURVE, delimiter=",", skiprows=1)
        points = points[points[:, 0] > -0.0015]
        self._levels = np.clip(points[:, 0], 0.0, MAX_LEVEL)
        self._ends = np.minimum(points[:, 1], 1.0)

    def levels(self, estimates: Floats) -> NDArray[np.float32]:
        """Throttle levels 0..200."""
        share = np.interp(estimates, self._estimates, self._shares)
        return np.where(share <= self._ends[0], 0.0, np.interp(share, self._ends, self._levels)).astype(
            np.float32
        )
