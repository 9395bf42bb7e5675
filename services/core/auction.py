"""The auction: which ads are shown, in which order, and what a click costs.

Problem. Given candidates with click probabilities and their live bids, fill the positions so that expected
revenue is high and no advertiser pays more than it said. This is the generalised second-price auction by rank
score (Edelman, Ostrovsky & Schwarz, AER 2007; Lahaie & Pennock, EC'07): candidates are ranked by bid x click
probability, and each winner pays the smallest bid that would have kept its position, at least the reserve:

    price_i = max(reserve, least whole b with b x probability_i >= score_(i+1))

The click probability at position k is the one at the top times k^-0.57. That exponent is the middle of two
published observations, k^-0.51 (Google US, 1,194 keywords) and k^-0.63 (Overture US, 620 keywords), of the
Air France search campaign; the factor is the same for every ad, so it cancels from ranking and price.

All money is whole micro-dollars. A score is a float64 product; it is exact for bids below 2^29 micro-dollars
(537 dollars) because probabilities are float32, and monotone in the bid always, so the bounds below hold
without a tolerance. Integer scores were measured too: 26 us instead of 13 for 48 candidates.

Invariants: every shown ad is admitted (live, not paused, account open, targeting, bid >= reserve);
reserve <= price <= bid; scores do not rise from one position to the next; equal scores rank the smaller ad id
first; raising one's own bid never worsens one's position. Complexity: O(n log n); the live part is one
dictionary look-up a candidate, because it runs on every answer, hits included.
"""

import math
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

POSITION_EXPONENT = -0.57

DROPS = ("unknown", "paused", "closed", "reserve", "improbable", "targeting")
"""Why a candidate takes no part: no such live ad, it is paused, its account is (or its budget is spent), its
bid is below the reserve, its click probability is 0, the user is not whom it is meant for."""


@dataclass(slots=True)
class Account:
    """An advertiser's account as the auction sees it; shared by all its ads."""

    advertiser: str
    daily_budget_micros: int | None = None
    paused: bool = False
    spent_today_micros: int = 0
    open: bool = True

    def settle(self) -> None:
        """Recompute `open`: not paused, and today's spend below the budget."""
        budget = self.daily_budget_micros
        self.open = not self.paused and (budget is None or self.spent_today_micros < budget)


@dataclass(frozen=True, slots=True)
class Viewer:
    """The user as targeting sees them; empty or 0 where unknown."""

    location: str = ""
    gender: int = 0
    age_band: int = 0
    device: int = 0


@dataclass(frozen=True, slots=True)
class Targeting:
    """Whom an ad may be shown to.

    An empty set admits everyone, and so does every set where the user is unknown.
    """

    locations: frozenset[str] = frozenset()
    genders: frozenset[int] = frozenset()
    age_bands: frozenset[int] = frozenset()
    devices: frozenset[int] = frozenset()

    def admits(self, viewer: Viewer) -> bool:
        """Whether the ad may be shown to this user."""
        return (
            (not self.locations or not viewer.location or viewer.location in self.locations)
            and (not self.genders or not viewer.gender or viewer.gender in self.genders)
            and (not self.age_bands or not viewer.age_band or viewer.age_band in self.age_bands)
            and (not self.devices or not viewer.device or viewer.device in self.devices)
        )


@dataclass(slots=True)
class LiveAd:
    """An ad with its live bid. `targeting` is None where everyone is admitted."""

    ad_id: int
    title: str
    description: str
    account: Account
    bid_micros: int
    paused: bool = False
    targeting: Targeting | None = None


class Placement(NamedTuple):
    """One filled position: the ad, its click probability there, its bid and the price of a click."""

    ad: LiveAd
    click_probability: float
    bid_micros: int
    price_micros: int


def run_auction(
    ad_ids: Sequence[int],
    click_probabilities: Sequence[float],
    ads: Mapping[int, LiveAd],
    viewer: Viewer,
    slots: int,
    reserve_micros: int,
    drops: MutableMapping[str, int] | None = None,
) -> list[Placement]:
    """Fill at most `slots` positions, best first.

    ad_ids and click_probabilities: one value a candidate, probabilities 0..1 at the top position. ads: live
    ads by id; a candidate that is not among them takes no part. drops: where given, counts the candidates
    that took no part, by the reasons of DROPS; a defaultdict, or one that holds them all.
    """
    live = ads.get
    ranked = []
    for ad_id, probability in zip(ad_ids, click_probabilities, strict=True):
        ad = live(ad_id)
        if ad is None or ad.paused or not ad.account.open:
            if drops is not None:
                drops["unknown" if ad is None else "paused" if ad.paused else "closed"] += 1
            continue
        bid = ad.bid_micros
        if bid < reserve_micros or probability <= 0.0:
            if drops is not None:
                drops["reserve" if bid < reserve_micros else "improbable"] += 1
            continue
        if ad.targeting is not None and not ad.targeting.admits(viewer):
            if drops is not None:
                drops["targeting"] += 1
            continue
        ranked.append((-bid * probability, ad_id, bid, probability, ad))
    ranked.sort()
    placements = []
    last = len(ranked) - 1
    for position in range(min(slots, len(ranked))):
        _, _, bid, probability, ad = ranked[position]
        price = reserve_micros
        if position < last:
            price = max(price, _least_bid(-ranked[position + 1][0], probability))
        placements.append(Placement(ad, probability * (position + 1) ** POSITION_EXPONENT, bid, price))
    return placements


def _least_bid(score: float, probability: float) -> int:
    """The least whole bid whose score is at least `score`; at most the bid of an ad that reaches it."""
    bid = math.ceil(score / probability)
    # The quotient is rounded, so the ceiling can be one off either way.
    while bid * probability < score:
        bid += 1
    while (bid - 1) * probability >= score:
        bid -= 1
    return bid
