"""Causes of change of the ads themselves: supply, budgets, bids.

* Supply. An ad lives for a while, is gone for a while, and comes back as another offer of the same merchant.
  Lives are log-normal with the quartiles of TabMo's campaigns (17, 28.5, 54 days): about 3.5 % turnover a
  day.
* Budgets. A campaign (advertiser x category) is out of budget from some time of the day on: 25 % of them
  before 16:00 (TabMo: 25 % have delivered 95 % of their day by then). Of those, 46 % stop dead; the rest are
  let through now and then (probabilistic pacing; Agarwal et al., KDD 2014), so that 11.4 % are dark after
  20:00.
* Bids. A fifth of the ads is managed actively (the split is modelled; Duong & Lahaie, WINE 2011, have the
  observation): log bid mean-reverting by day (sd .245 of the daily change, AR(1) .54) plus an hourly market
  factor (CV .146, AR(1) .70; iPinYou). The others step rarely: a change of sd .23 within 30 days.

Modelled: who is active, when a budget ends within its law, that budgets do not depend on the clicks of the
log. The common cause "scores age" and the noise of scoring are in `lists.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadtest.request_log.generator.ads import Ads
from loadtest.request_log.generator.profiles import PRIOR_DAYS
from loadtest.request_log.generator.randomness import BID, BUDGET, LIFE, MARKET, normals, uniforms
from loadtest.request_log.schema import DAY_MS

LIFE_MEDIAN_DAYS, LIFE_LOG_SD = 28.5, 0.857  # half the log ratio of the outer quartiles, over .6745
GONE_SHARE = 0.1
ENDS_BY_16, DEAD_SHARE, PASS_THROUGH = 0.25, 0.456, 0.05
FIRST_END_HOUR, LAST_END_HOUR = 8.0, 16.0
ACTIVE_SHARE, DAILY_SD, DAILY_KEEP = 0.2, 0.245, 0.54
MARKET_SD, MARKET_KEEP = 0.146, 0.70
STEP_SD, STEP_DAYS = 0.23, 30
HOURS = 24
RESERVE_USD = 0.2

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class AdDay:
    """What holds on one day, by row of the ad table. Times in ms since the start of day 0."""

    start_ms: NDArray[np.int64]  # listed from here
    stop_ms: NDArray[np.int64]  # to here
    out_ms: NDArray[np.int64]  # the budget is out from here on
    passes: Floats  # probability of being let through after that
    bid_usd: Floats  # without the market's factor
    active: NDArray[np.bool_]  # follows the market's factor
    market: Floats  # a factor an hour


def ad_day(ads: Ads, seed: int, day: int) -> AdDay:
    """The state of the ads on a day, from -3 on."""
    rows = np.arange(len(ads.ids))
    active = uniforms(seed, BID, 0, rows) < ACTIVE_SHARE
    start_ms, stop_ms = _life(seed, day, rows)
    out_ms, passes = _budgets(seed, day, ads.campaign)
    level = np.where(active, _daily_level(seed, day, rows), _steps(seed, day, rows))
    return AdDay(start_ms, stop_ms, out_ms, passes, ads.bid_usd * np.exp(level), active, _market(seed, day))


def _life(seed: int, day: int, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The part of the day in which each ad is offered; where it would be two parts, the later one."""
    life = LIFE_MEDIAN_DAYS * np.exp(LIFE_LOG_SD * normals(seed, LIFE, 0, rows))
    cycle = life / (1.0 - GONE_SHARE)
    phase = np.mod(uniforms(seed, LIFE, 1, rows) * cycle + day + PRIOR_DAYS, cycle)  # at midnight
    begins = day * DAY_MS + np.where(phase < life, 0.0, cycle - phase) * DAY_MS
    left = np.where(phase < life, life - phase, cycle)
    return begins.astype(np.int64), (day * DAY_MS + left * DAY_MS).astype(np.int64)


def _budgets(seed: int, day: int, campaign: NDArray[np.int64]) -> tuple[NDArray[np.int64], Floats]:
    ends = uniforms(seed, BUDGET, 2 * (day + PRIOR_DAYS), campaign)
    hour = FIRST_END_HOUR + (LAST_END_HOUR - FIRST_END_HOUR) * ends / ENDS_BY_16
    hour[ends >= ENDS_BY_16] = 2 * HOURS
    dead = uniforms(seed, BUDGET, 2 * (day + PRIOR_DAYS) + 1, campaign) < DEAD_SHARE
    return (day * DAY_MS + hour / HOURS * DAY_MS).astype(np.int64), np.where(dead, 0.0, PASS_THROUGH)


def _daily_level(seed: int, day: int, rows: NDArray[np.int64]) -> Floats:
    level = normals(seed, BID, 1, rows)
    for at in range(1, day + PRIOR_DAYS + 1):
        level = DAILY_KEEP * level + np.sqrt(1.0 - DAILY_KEEP**2) * normals(seed, BID, 1 + at, rows)
    return np.asarray(level * DAILY_SD / np.sqrt(2.0 * (1.0 - DAILY_KEEP)))


def _steps(seed: int, day: int, rows: NDArray[np.int64]) -> Floats:
    """Levels that each ad keeps for 30 days."""
    first = (uniforms(seed, BID, 1_000_000, rows) * STEP_DAYS).astype(np.int64)
    period = (day + PRIOR_DAYS + first) // STEP_DAYS
    return np.asarray(STEP_SD / np.sqrt(2.0) * normals(seed, BID, 1_000_001, rows * 1024 + period))


def _market(seed: int, day: int) -> Floats:
    """The market's factor in every hour of the day; it goes on from day to day."""
    noise = normals(seed, MARKET, 0, np.arange((day + PRIOR_DAYS + 1) * HOURS))
    level = np.empty(len(noise))
    level[0] = noise[0]
    for at in range(1, len(noise)):
        level[at] = MARKET_KEEP * level[at - 1] + np.sqrt(1.0 - MARKET_KEEP**2) * noise[at]
    return np.exp(MARKET_SD * level[-HOURS:])
