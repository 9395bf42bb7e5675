"""What an auction over a served list would have earned.

The pessimistic loss takes every ad that the served list lacks for lost and nothing for gained. An auction
would fill the position with another ad. So does this one: the generalised second-price auction of
`services/core/auction.py`, by bid x the click probability that the list carries, over the bids of the moment
(an ad that the current list lacks keeps the bid it was cached with). Revenue is what the winners pay,
times how likely they truly are to be clicked at their position.

That truth is modelled. An ad that the log showed on this request has the log's probability, brought to the
top position. Any other ad, be it listed but not shown, or absent from the current list, has the scorer's
latest estimate of it times one factor for the whole log: how far estimates of shown ads were from their
truth. Budgets are not modelled: an ad whose budget ended stays in a stale list, and is taken as shown. A
merged list offers more ads than the log's lists have, so its auctions earn far more than the log did; compare
merged designs with each other only.

Positions and reserve are what the log suggests: the most ads that one request showed, and the least charge.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadtest.request_log.schema import RequestLog
from services.core.auction import POSITION_EXPONENT
from services.core.compiled import compiled


class Market(NamedTuple):
    """What holds for every auction of a log."""

    factors: NDArray[np.float64]  # of each position, the first is 1
    reserve_usd: float
    truth: float  # true probability of an ad that was not shown, per estimate


def market(log: RequestLog) -> Market:
    """The market that a log suggests; one position and no reserve where it shows no ad."""
    shown = log.charge_usd > 0
    most = np.bincount(np.repeat(np.arange(len(log.phrase)), np.diff(log.offsets))[shown]).max(initial=1)
    factors = np.arange(1, int(most) + 1, dtype=np.float64) ** POSITION_EXPONENT
    true, estimated = _compare(
        log.offsets, log.click_probability, log.bid_usd, log.charge_usd, log.shown_probability, factors
    )
    reserve_usd = float(log.charge_usd[shown].min()) if shown.any() else 0.0
    return Market(factors, reserve_usd, true / estimated if estimated else 1.0)


@compiled
def position_of(
    ad: int,
    first: int,
    last: int,
    click_probability: NDArray[np.float32],
    bid_usd: NDArray[np.float32],
    charge_usd: NDArray[np.float32],
) -> int:
    """The position, from 0, of a shown ad among those of its request: its rank by bid x estimate."""
    score = np.float64(bid_usd[ad]) * np.float64(click_probability[ad])
    position = 0
    for j in range(first, last):
        if charge_usd[j] > 0:
            other = np.float64(bid_usd[j]) * np.float64(click_probability[j])
            if other > score or (other == score and j < ad):
                position += 1
    return position


@compiled
def _compare(
    offsets: NDArray[np.int64],
    click_probability: NDArray[np.float32],
    bid_usd: NDArray[np.float32],
    charge_usd: NDArray[np.float32],
    shown_probability: NDArray[np.float32],
    factors: NDArray[np.float64],
) -> tuple[float, float]:
    true, estimated = 0.0, 0.0
    for i in range(len(offsets) - 1):
        first, last = offsets[i], offsets[i + 1]
        for j in range(first, last):
            if charge_usd[j] > 0:
                position = position_of(j, first, last, click_probability, bid_usd, charge_usd)
                true += shown_probability[j]
                estimated += factors[position] * click_probability[j]
    return true, estimated


@compiled
def revenue_usd(
    estimates: NDArray[np.float64],
    bids_usd: NDArray[np.float64],
    truths: NDArray[np.float64],
    scores: NDArray[np.float64],
    ads: int,
    factors: NDArray[np.float64],
    reserve_usd: float,
) -> float:
    """Expected revenue of the auction over the first `ads` candidates.

    estimates: click probabilities at the top that rank and price. truths: those that earn. scores: scratch of
    the same length.
    """
    for j in range(ads):
        scores[j] = bids_usd[j] * estimates[j] if bids_usd[j] >= reserve_usd else 0.0
    best = _highest(scores, ads)
    earned = 0.0
    for position in range(len(factors)):
        if best < 0:
            break
        winner, scores[best] = best, 0.0
        best = _highest(scores, ads)
        price = reserve_usd
        if best >= 0:
            price = max(price, scores[best] / estimates[winner])
        earned += truths[winner] * factors[position] * price
    return earned


@compiled
def _highest(scores: NDArray[np.float64], ads: int) -> int:
    best, at = 0.0, -1
    for j in range(ads):
        if scores[j] > best:
            best, at = scores[j], j
    return at
