"""How noisy the scores of a phrase are, so that its lists change as figure 6 of SoCC'17 says.

Of a phrase's list a share `retained` (`Traits`) is to survive from one request to the next. The list is the
top q of the pool by score, and an ad is in the top q twice with probability P(Z2 > z | Z1 > z), P(Z > z) = q,
where the two scores have correlation rho: so rho follows from the share. What two requests in a row have in
common is the fit, age (they are close in time), and now and then the user or the algorithm; the rest of the
variance is drawn anew, and the noise share v of the score is what makes rho come out.

Two dependences on `retained`, both modelled: age has the share min(1, c x retained) of a phrase's noise
(lists that change at once have no room for ageing, those that mostly stay have), with c such that `age_share`
of all noise is age; and where less than 10 % survives the lists change for every request, whoever asks.

Relevance. Lahaie & Pennock's Beta law is that of the bidders of an auction, so it is held by the listed ads,
not by the pool from which the best are listed: the appeal of a listed ad is ranked among the appeals of
listed ads (given its score Z, appeal is normal around s Z with variance s (1 - s), where s is the share of
appeal in the variance of a score) and takes the quantile of its rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from loadtest.request_log.generator.phrases import LONGEST, Traits
from loadtest.request_log.generator.profiles import Profile

USUAL_LIST = 11
RANKS = 10_000  # grid of the relevance law
GREATEST_SHARE = 0.9  # of the pool that a list takes
ON_OFFER = 0.8  # of the pool, at a usual hour (`changes.py`)
CHURNING = 0.1
SAME_USER, SAME_ALGORITHM = 0.2, 0.44  # how often two requests of a phrase in a row share theirs
Z_LIMIT, Z_STEPS, APPEAL_STEPS = 6.0, 241, 21  # of the table of relevance
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(100)
RHO_GRID = np.linspace(0.0, 1.0, 101)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Noise:
    """Arrays over phrases: weights of the standard normal terms of a score; their squares sum to 1."""

    fit: Floats
    user: Floats
    age: Floats
    algorithm: Floats
    request: Floats
    relevance: NDArray[np.int64]  # row of `NoiseMaker.relevance`


class NoiseMaker:
    """Makes `Noise`.

    `relevance`: of listed ads, over its mean, at appeals -6, -5.95, ..., 6; a row for every length of list
    and share of appeal in the variance of a score (0, .05, ..., 1).
    """

    def __init__(self, profile: Profile, pool_ads: int) -> None:
        self._profile = profile
        law = stats.beta(profile.relevance_a, profile.relevance_b)
        top = [min(length / pool_ads, GREATEST_SHARE) for length in range(1, LONGEST + 1)]
        self._kept = [_kept(q) for q in top]
        ranks = np.linspace(0.0, 1.0, RANKS + 2)[1:-1]
        quantiles = law.ppf(ranks) / law.mean()
        on_offer = round(pool_ads * ON_OFFER)
        self.relevance = np.concatenate(
            [
                np.interp(_ranks(min(length, on_offer - 1), on_offer), ranks, quantiles)
                for length in range(1, LONGEST + 1)
            ]
        )
        self._age_factor = self._fitted_age_factor()

    def noise(self, traits: Traits) -> Noise:
        """How noisy the scores of phrases are."""
        profile = self._profile
        user = np.where(traits.personal, 1.0, profile.context_share)
        user = user * np.minimum(traits.retained / CHURNING, 1.0)
        algorithm = (1.0 - user) * profile.algorithm_share
        of_age = np.minimum(self._age_factor * traits.retained, 1.0)
        share = np.empty(len(traits.id))
        for length in np.unique(traits.list_ads).tolist():
            of = traits.list_ads == length
            rho = np.interp(traits.retained[of], self._kept[length - 1], RHO_GRID)
            share[of] = _share(rho, of_age[of], user[of], algorithm[of])
        immediate = share * (1.0 - of_age)
        appeal = 1.0 - immediate * (1.0 - user)
        return Noise(
            fit=np.sqrt(1.0 - share),
            user=np.sqrt(immediate * user),
            age=np.sqrt(share * of_age),
            algorithm=np.sqrt(immediate * algorithm),
            request=np.sqrt(immediate * np.maximum(1.0 - user - algorithm, 0.0)),
            relevance=(traits.list_ads - 1) * APPEAL_STEPS
            + np.rint(appeal * (APPEAL_STEPS - 1)).astype(np.int64),
        )

    def _fitted_age_factor(self) -> float:
        """c of the essay, for lists of the usual length."""
        profile = self._profile
        retained = stats.beta.ppf((np.arange(500) + 0.5) / 500, profile.retained_a, profile.retained_b)
        rho = np.interp(retained, self._kept[USUAL_LIST - 1], RHO_GRID)
        user = profile.context_share * np.minimum(retained / CHURNING, 1.0)
        low, high = 0.0, 1e6
        for _ in range(60):
            middle = (low + high) / 2.0
            of_age = np.minimum(middle * retained, 1.0)
            share = _share(rho, of_age, user, (1.0 - user) * profile.algorithm_share)
            below = (share * of_age).sum() < profile.age_share * share.sum()
            low, high = (middle, high) if below else (low, middle)
        return low


def _share(rho: Floats, of_age: Floats, user: Floats, algorithm: Floats) -> Floats:
    """The noise share of a score at which two requests in a row have scores with correlation rho."""
    anew = (1.0 - of_age) * (1.0 - user * SAME_USER - algorithm * SAME_ALGORITHM)
    return np.minimum((1.0 - rho) / np.maximum(anew, 1e-9), 1.0)


def _kept(q: float) -> Floats:
    """P(Z2 > z | Z1 > z) with P(Z > z) = q, at correlations 0, .01, ..., 1."""
    rho = RHO_GRID[:-1, None]
    cut = stats.norm.isf(q)
    half = (8.0 - cut) / 2.0
    z = cut + (_NODES + 1.0) * half
    again = stats.norm.sf((cut - rho * z) / np.sqrt(1.0 - rho**2))
    kept = (_WEIGHTS * stats.norm.pdf(z) * again).sum(axis=1) * half / q
    return np.maximum.accumulate(np.concatenate([kept, [1.0]]))


def _ranks(length: int, ads: int) -> Floats:
    """Ranks 0..1 of appeals -6, ..., 6 among those of the listed ads; a row for every share of appeal.

    Of `ads` independent scores the `length` highest are listed, so one is listed above z in the mean
    E[min(length, N)] times, with N of the scores above z. At share 0 appeal is a constant: rank a half.
    """
    appeal = np.linspace(-Z_LIMIT, Z_LIMIT, Z_STEPS)
    most = np.arange(1, length + 1)[:, None]
    above = special.betainc(most, ads - most + 1.0, special.ndtr(-appeal)).mean(axis=0)  # P(N >= 1, 2, ...)
    middles = (np.arange(100) + 0.5) / 100
    z = np.interp(middles, 1.0 - above, appeal)[:, None]
    some = (
        special.ndtr((appeal - s * z) / np.sqrt(s * (1.0 - s))).mean(axis=0)
        for s in np.linspace(0.0, 1.0, APPEAL_STEPS)[1:-1]
    )
    return np.array([np.full(Z_STEPS, 0.5), *some, 1.0 - above])
