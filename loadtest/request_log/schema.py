"""What a request log holds, and the limits of its values. README.md of this folder says it for users."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.catalogue.faults import Fault
from services.catalogue.schema import AGE_BANDS, DEVICES, GENDERS, MAX_AMOUNT_USD

DAY_MS = 86_400_000
MAX_TIME_MS = 100_000 * DAY_MS
MAX_LOCATION = 127
MAX_COST = 1e9
MAX_LIST_ADS = 1000

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Requests:
    """n requests in time order with the m ads that the scorer listed for them.

    Request i lists ads `offsets[i]:offsets[i + 1]` of the per-ad arrays, in the scorer's order. Gender, age
    and device are 0 where unknown, else 1 + the place in `services.catalogue.schema` (as in scoring.proto).
    """

    time_ms: NDArray[np.int64]  # since the start of day 0, non-decreasing
    phrase: NDArray[np.int32]  # row of the phrase table
    location: NDArray[np.int8]
    gender: NDArray[np.int8]
    age: NDArray[np.int8]
    device: NDArray[np.int8]
    cost: NDArray[np.float32]  # cost indicator: candidates that entered scoring, 0 = no candidate
    throttle_level: NDArray[np.float32]  # NaN where unknown
    offsets: NDArray[np.int64]  # n + 1
    ads: NDArray[np.int32]  # row of the ad table
    click_probability: NDArray[np.float32]  # the scorer's estimate at the top position
    bid_usd: NDArray[np.float32]
    charge_usd: NDArray[np.float32]  # what a click costs where the log showed the ad, 0 when not shown
    shown_probability: NDArray[np.float32]  # best known probability of a click where shown, 0 when not
    clicked: NDArray[np.bool_]


@dataclass(frozen=True)
class RequestLog(Requests):
    """A log: requests, and the tables of ads and phrases that they point into.

    `prior_*` are the requests, clicks and revenue of each phrase in the three days before day 0.
    """

    ad_ids: NDArray[np.int64]
    phrases: list[str]
    prior_requests: NDArray[np.int32]
    prior_clicks: NDArray[np.int32]
    prior_revenue_usd: NDArray[np.float64]


@dataclass(frozen=True)
class Column:
    """A column of requests.parquet: its dtype in memory, and the least and greatest value it may hold."""

    name: str
    dtype: type[np.generic]
    least: float
    greatest: float
    may_be_nan: bool = False


REQUEST_COLUMNS = (
    Column("time_ms", np.int64, 0, MAX_TIME_MS),
    Column("phrase", np.int32, 0, np.inf),
    Column("location", np.int8, 0, MAX_LOCATION),
    Column("gender", np.int8, 0, len(GENDERS)),
    Column("age", np.int8, 0, len(AGE_BANDS)),
    Column("device", np.int8, 0, len(DEVICES)),
    Column("cost", np.float32, 0, MAX_COST),
    Column("throttle_level", np.float32, 0, MAX_AMOUNT_USD, may_be_nan=True),
)
LISTED_COLUMNS = (
    Column("ads", np.int32, 0, np.inf),
    Column("click_probability", np.float32, 0, 1),
    Column("bid_usd", np.float32, 0, MAX_AMOUNT_USD),
    Column("charge_usd", np.float32, 0, MAX_AMOUNT_USD),
    Column("shown_probability", np.float32, 0, 1),
    Column("clicked", np.bool_, 0, 1),
)


def faults(
    part: Requests, rows: NDArray[np.int64], ad_ids: Sequence[int] | Ids, phrases: int, last_ms: int = 0
) -> Iterator[Fault]:
    """What is wrong with some requests of a log, column by column.

    `rows` are their row numbers, `ad_ids` and `phrases` the ad table and the length of the phrase table that
    they point into, `last_ms` is the time of the request before them.
    """
    lengths = np.diff(part.offsets)
    if len(lengths) != len(rows) or part.offsets[0] != 0 or (lengths < 0).any():
        yield Fault(int(rows[0]), "offsets", "they do not rise from 0, one more than there are requests")
        return
    greatest = {"phrase": phrases - 1, "ads": len(ad_ids) - 1}
    for column in REQUEST_COLUMNS:
        values = getattr(part, column.name)
        for at, problem in _out_of_bounds(values, column, greatest.get(column.name, column.greatest)):
            yield Fault(int(rows[at]), column.name, problem)
    before_ms = np.concatenate(([last_ms], part.time_ms[:-1]))
    for at in np.flatnonzero(part.time_ms < before_ms).tolist():
        problem = f"{part.time_ms[at]} is before {before_ms[at]}, the time of the request before it"
        yield Fault(int(rows[at]), "time_ms", problem)
    for at in np.flatnonzero(lengths > MAX_LIST_ADS).tolist():
        yield Fault(int(rows[at]), "ads", f"{lengths[at]} ads, the limit is {MAX_LIST_ADS}")
    for column in LISTED_COLUMNS:
        values = getattr(part, column.name)
        if len(values) != part.offsets[-1]:
            yield Fault(int(rows[0]), column.name, f"{len(values)} values for {part.offsets[-1]} listed ads")
            return
        for at, problem in _out_of_bounds(values, column, greatest.get(column.name, column.greatest)):
            row = int(np.searchsorted(part.offsets, at, side="right")) - 1
            place = at - int(part.offsets[row]) + 1
            yield Fault(int(rows[row]), column.name, f"ad {place} of the list: {problem}")
    if part.ads.min(initial=0) < 0 or part.ads.max(initial=-1) >= len(ad_ids):
        return
    for at, ad in _repeats(part, lengths):
        yield Fault(int(rows[at]), "ads", f"{ad_ids[ad]} comes twice in the list")


def _out_of_bounds(values: NDArray[Any], column: Column, greatest: float) -> Iterator[tuple[int, str]]:
    bad = ~((values >= column.least) & (values <= greatest))
    if column.may_be_nan:
        bad &= ~np.isnan(values)
    for at in np.flatnonzero(bad).tolist():
        yield at, f"{values[at]} is outside {column.least:.15g}..{greatest:.15g}"


def _repeats(part: Requests, lengths: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Requests and ads that their lists hold twice."""
    pairs = np.repeat(np.arange(len(lengths)) << 32, lengths) + part.ads
    pairs.sort()
    for pair in np.unique(pairs[1:][pairs[1:] == pairs[:-1]]).tolist():
        yield pair >> 32, pair & 0xFFFFFFFF
