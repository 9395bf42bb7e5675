"""What the served list would have earned where its ads take the places of those it lacks.

The pessimistic loss takes every ad that the served list lacks for lost and leaves the others where they were.
In an auction the others move up: they are clicked more, and they pay less, since who stood behind them may be
gone. So here the ads that the log showed on a request and the served list holds are auctioned again, by the
rules of `services/core/auction.py`: their order stays, the click probability follows the position, and the
price is the least bid that keeps the place, never more than in the log. Behind the last ad shown stands
whoever set its price in the log, or nobody where that was the reserve.

What is compared is paired: a list that holds all the shown ads earns what the log did, to the cent. Nothing
is assumed about ads that the log did not show: one that only the served list has earns nothing here, though
in a real auction it might, so the figure is a lower bound under fixed bids. A merged list gains nothing by
being long.

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


def market(log: RequestLog) -> Market:
    """The market that a log suggests; one position and no reserve where it shows no ad."""
    shown = log.charge_usd > 0
    most = np.bincount(np.repeat(np.arange(len(log.phrase)), np.diff(log.offsets))[shown]).max(initial=1)
    factors = np.arange(1, int(most) + 1, dtype=np.float64) ** POSITION_EXPONENT
    return Market(factors, float(log.charge_usd[shown].min()) if shown.any() else 0.0)


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
def revenue_usd(
    estimates: NDArray[np.float64],
    bids_usd: NDArray[np.float64],
    charges_usd: NDArray[np.float64],
    shown: NDArray[np.float64],
    served: NDArray[np.bool_],
    ads: int,
    trade: Market,
) -> float:
    """Expected revenue of the served ones among the first `ads` shown ads of a request, best first.

    estimates: click probabilities at the top that rank and price. bids_usd, charges_usd, shown: those of the
    log, `shown` the probability of a click where it was shown.
    """
    earned, position = 0.0, 0
    for j in range(ads):
        if not served[j]:
            continue
        behind = j + 1
        while behind < ads and not served[behind]:
            behind += 1
        price = charges_usd[j]
        if behind > j + 1 and estimates[j] > 0.0:
            if behind < ads:
                score = bids_usd[behind] * estimates[behind]
            elif charges_usd[ads - 1] > trade.reserve_usd:
                score = charges_usd[ads - 1] * estimates[ads - 1]
            else:
                score = 0.0
            price = min(max(score / estimates[j], trade.reserve_usd), price)
        probability = min(shown[j] * trade.factors[position] / trade.factors[j], 1.0)
        earned += probability * price
        position += 1
    return earned
