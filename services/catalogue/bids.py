"""Modelled bids for catalogues that state none.

Problem: product feeds carry prices but no bids, and the auction needs some. Law (Lahaie & Pennock, "Revenue
analysis of a family of ranking rules for keyword auctions", EC 2007, doi 10.1145/1250910.1250918, fitted to
Yahoo data; the spread between categories makes the sum match the revenue per click of the Bing log, Li et
al., SoCC 2017, figure 4):

    log bid = N(0, 1.43^2) of the category + N(0.35, 0.71^2) of the ad

Both effects are drawn from a hash of the category and of the ad id, so the bid of an ad depends on neither
the order nor the other rows of the file. What is modelled, not known: everything about a particular bid. An
ad without a category takes its advertiser's effect instead; one effect for all of them would move most of
such a catalogue up or down together. Both ends of the law are capped: at the default reserve of scoring,
below which an ad is never shown, and at 50 dollars.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from statistics import NormalDist

DEFAULT_RESERVE_USD = 0.05  # of scoring, `reserve_usd`
MAX_MODELLED_BID_USD = 50.0
CATEGORY_EFFECT = NormalDist(0.0, 1.43)
AD_EFFECT = NormalDist(0.35, 0.71)


def modelled_bid_usd(ad_id: int, category: str, advertiser: str) -> float:
    """The bid of an ad in US dollars, rounded to cents, 0.05..50."""
    group = f"category:{category.casefold()}" if category else f"advertiser:{advertiser.casefold()}"
    log_bid = _category_effect(group) + AD_EFFECT.inv_cdf(_uniform(f"ad:{ad_id}"))
    return round(min(max(math.exp(log_bid), DEFAULT_RESERVE_USD), MAX_MODELLED_BID_USD), 2)


@lru_cache(maxsize=65_536)
def _category_effect(group: str) -> float:
    return CATEGORY_EFFECT.inv_cdf(_uniform(group))


def _uniform(key: str) -> float:
    """A number in (0, 1) that depends on the key alone, the same on every platform."""
    digest = hashlib.blake2b(key.encode(), digest_size=8, person=b"frugalads-bid").digest()
    return ((int.from_bytes(digest, "big") >> 11) + 0.5) / 2**53
