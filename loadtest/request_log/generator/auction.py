"""What is shown, what a click costs and what is clicked in the log itself.

The generalised second-price auction of `services/core/auction.py` by rank score (bid x estimate), over
arrays: up to eight ads are shown, the user clicks ad k with its true probability at the top times k^-0.57,
and a click on it costs the least bid that keeps its place, at least the reserve. (The price is not rounded to
whole micro-dollars here, and targeting is part of whether a user has candidates.) Clicks come from
`randomness.click_uniform`.

Not every listed ad takes part. Advertisers paced by probabilistic throttling (Agarwal et al., KDD 2014) sit
out many auctions, so competition is thinner than lists are long. The share that takes part, one draw a
request and ad, is modelled, between two published figures that disagree: 21 % of payments are the floor's
(iPinYou), which a half reaches; a click costs a median of .37 and a mean of .45 of the bid (Air France),
below what even a quarter does, at which too few phrases would earn.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadtest.request_log.generator.batch import Batch
from loadtest.request_log.generator.changes import RESERVE_USD, AdDay
from loadtest.request_log.generator.lists import Lists
from loadtest.request_log.generator.randomness import TAKES_PART, click_uniform, uniform
from loadtest.request_log.schema import DAY_MS
from services.catalogue.schema import MAX_BID_USD
from services.core.auction import POSITION_EXPONENT
from services.core.compiled import compiled

SHOWN = 8
POSITION_FACTORS = np.arange(1.0, SHOWN + 1) ** POSITION_EXPONENT
HOUR_MS = DAY_MS // 24

F32 = NDArray[np.float32]


def run_auctions(
    seed: int,
    takes_part: float,
    batch: Batch,
    lists: Lists,
    ad_ids: NDArray[np.int64],
    day: AdDay,
    bid_factor: NDArray[np.float64],
) -> tuple[F32, F32, F32, NDArray[np.bool_]]:
    """Bid, charge, probability of a click where shown, and whether clicked, of every listed ad.

    `takes_part`: the share of listed ads that compete. `bid_factor` is that of the phrase of every request.
    """
    return _auctions(
        seed, takes_part, batch.first, lists.counts, lists.ads, lists.estimate, lists.truth, ad_ids,
        batch.time_ms, day.bid_usd, day.active, day.market, bid_factor,
    )  # fmt: skip


@compiled
def _auctions(
    seed: int, takes_part: float, first_request: int, counts: NDArray[np.int64], ads: NDArray[np.int32],
    estimate: F32, truth: F32, ad_ids: NDArray[np.int64], time_ms: NDArray[np.int64],
    level_usd: NDArray[np.float64], active: NDArray[np.bool_], market: NDArray[np.float64],
    bid_factor: NDArray[np.float64],
) -> tuple[F32, F32, F32, NDArray[np.bool_]]:  # fmt: skip
    bid = np.empty(len(ads), np.float32)
    charge = np.zeros(len(ads), np.float32)
    shown = np.zeros(len(ads), np.float32)
    clicked = np.zeros(len(ads), np.bool_)
    best = np.empty(SHOWN + 1)
    who = np.empty(SHOWN + 1, np.int64)
    first = 0
    for i in range(len(counts)):
        hour = int(time_ms[i] % DAY_MS // HOUR_MS)
        held = 0
        for j in range(first, first + counts[i]):
            ad = ads[j]
            usd = level_usd[ad] * bid_factor[i] * (market[hour] if active[ad] else 1.0)
            bid[j] = min(max(usd, RESERVE_USD), MAX_BID_USD)
            value = float(bid[j]) * estimate[j]
            if value <= 0.0 or uniform(seed, TAKES_PART, first_request + i, ad_ids[ad]) >= takes_part:
                continue
            if held == SHOWN + 1 and value <= best[held - 1]:
                continue
            place = held if held < SHOWN + 1 else held - 1  # the first one not shown sets the last price
            while place > 0 and best[place - 1] < value:
                best[place], who[place] = best[place - 1], who[place - 1]
                place -= 1
            best[place], who[place] = value, j
            held = min(held + 1, SHOWN + 1)
        for place in range(min(held, SHOWN)):
            j = who[place]
            price = best[place + 1] / estimate[j] if place + 1 < held else 0.0
            charge[j] = min(max(price, RESERVE_USD), float(bid[j]))
            shown[j] = truth[j] * POSITION_FACTORS[place]
            clicked[j] = click_uniform(seed, first_request + i, ad_ids[ads[j]]) < shown[j]
        first += counts[i]
    return bid, charge, shown, clicked
