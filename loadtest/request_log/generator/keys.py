"""Which phrase is asked when.

Phrases. A phrase is a number: its rank by base popularity. Two streams, as in `loadtest/popularity.py`:

* A trace (`--key-stream`). Its keys, ranked by frequency, are slots; day 0 is the trace in its own order. One
  trace cannot be two days, so any other day is the trace rotated by a multiple of the golden ratio of its
  length (blocks of hours keep their order, bursts and churn), with its slots dealt out anew: the phrases seen
  at least twice a day take the slots in the order of their popularity of the day, log n + a demand factor
  that wanders from day to day (AdWords: AR(1) of .81, day-to-day sd .56); every slot seen once belongs to one
  of nine phrases in turn, at random, so that about 70 % of such phrases have no history of three days.
* Draws from the published curve, independent, over a universe of phrases; the shares of the frequent ones are
  dealt out anew every day in the same way, and rare ones come and go by themselves.

A trace fixes how many requests a day has, so the common daily factor (sd .19) is left out.

Time of day. Sorted uniform draws through the inverse of the cumulative hour shares of the Avito traffic data
(arXiv 2505.08485): given their number, the arrivals of a Poisson process with that rate.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadtest.popularity import popularity, ranks_by_frequency, trace_keys
from loadtest.request_log.generator.profiles import DAY_REQUESTS, PRIOR_DAYS, Profile
from loadtest.request_log.generator.randomness import DEMAND, ORDER, STAND_IN, normals, uniforms
from loadtest.request_log.schema import DAY_MS
from services.runtime.errors import UserError

HOUR_SHARES = (
    0.014, 0.010, 0.008, 0.008, 0.010, 0.014, 0.020, 0.029, 0.044, 0.060, 0.071, 0.073,
    0.073, 0.072, 0.069, 0.067, 0.063, 0.058, 0.054, 0.049, 0.044, 0.038, 0.031, 0.022,
)  # fmt: skip
_GOLDEN = 0.6180339887498949

Ids = NDArray[np.int64]


class KeyStream:
    """Phrases by day. `expected[u]` is how often phrase u comes in a day of the full size, the first most."""

    def __init__(self, profile: Profile, seed: int, trace: Path | None) -> None:
        self._seed, self._profile = seed, profile
        self._slots: NDArray[np.int64] | None = None
        if trace is None:
            shares = popularity(profile.universe)
            self.expected = shares * DAY_REQUESTS
            self._frequent = int((shares * profile.requests_per_day >= 2.0).sum())
            return
        keys = trace_keys(trace, None)
        if len(keys) < profile.requests_per_day:
            raise UserError(
                f"{trace}: its {len(keys)} keys are less than the {profile.requests_per_day} of a day"
            )
        keys = keys[: profile.requests_per_day]
        random = np.random.Generator(np.random.PCG64(seed))
        self._slots, slots = ranks_by_frequency(keys, random)
        counts = np.bincount(self._slots, minlength=slots)
        self._frequent = int((counts > 1).sum())
        rare = profile.single_stand_ins * (slots - self._frequent)
        per_day = np.concatenate([counts[: self._frequent], np.full(rare, 1.0)])
        self.expected = per_day * (DAY_REQUESTS / profile.requests_per_day)

    def day(self, day: int) -> Ids:
        """The phrases asked on a day, in order; days from -3 on."""
        level = np.log(self.expected[: self._frequent])
        level += demand(self._profile, self._seed, day, self._frequent)
        owner = np.argsort(-level, kind="stable")
        if self._slots is None:
            ends = np.cumsum(popularity(self._profile.universe))
            draws = uniforms(self._seed, ORDER, day + PRIOR_DAYS, np.arange(self._profile.requests_per_day))
            slots = np.minimum(np.searchsorted(ends, draws, side="right"), len(ends) - 1)
            return np.where(slots < self._frequent, owner[np.minimum(slots, self._frequent - 1)], slots)
        shift = int(len(self._slots) * (day * _GOLDEN % 1.0))
        slots = np.roll(self._slots, -shift)
        rare = np.arange(slots.max() + 1 - self._frequent)
        stand_ins = self._profile.single_stand_ins
        turn = (uniforms(self._seed, STAND_IN, day + PRIOR_DAYS, rare) * stand_ins).astype(np.int64)
        return np.concatenate([owner, self._frequent + stand_ins * rare + turn])[slots]


def demand(profile: Profile, seed: int, day: int, phrases: int) -> NDArray[np.float64]:
    """Log demand factors of the first `phrases` phrases on a day: a stationary AR(1) process over days."""
    keep = profile.demand_persistence
    ids = np.arange(phrases)
    level = normals(seed, DEMAND, 0, ids)
    for at in range(1, day + PRIOR_DAYS + 1):
        level = keep * level + np.sqrt(1.0 - keep**2) * normals(seed, DEMAND, at, ids)
    return np.asarray(level * profile.demand_sd / np.sqrt(2.0 * (1.0 - keep)))


def day_times(seed: int, day: int, requests: int) -> NDArray[np.int64]:
    """Times of a day's requests in ms since the start of day 0, in order."""
    ends = np.concatenate([[0.0], np.cumsum(HOUR_SHARES)])
    draws = np.sort(uniforms(seed, ORDER, 1000 + day + PRIOR_DAYS, np.arange(requests)))
    inside = np.interp(draws, ends / ends[-1], np.linspace(0.0, DAY_MS, 25))
    return day * DAY_MS + np.minimum(inside.astype(np.int64), DAY_MS - 1)
