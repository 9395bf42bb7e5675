"""What a day of a log looks like, in the terms of the published figures.

Definitions where the papers leave room:

* Similarity (SoCC'17, figure 6): the share of the current list that was in the previous list of the same key;
  undefined for the first request of a key and where the current list is empty; 0 where the previous one was.
* Earning phrases: clicked on the day (`clicked_phrases`), and those that Algorithm 2 of SoCC'17 would know at
  its end, with clicks on the day or on the three days before (`earning_phrases`).
* The spread of click revenue: standard deviation of the log revenue of requests with a click.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadtest.popularity import CURVE as PHRASE_CURVE
from loadtest.request_log.generator.sums import by_request
from loadtest.request_log.schema import RequestLog
from services.core.compiled import compiled

BING = PHRASE_CURVE.parent

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Similarity:
    """Similarity of lists to the previous one of the same key, 0..1; `gap` to the digitised distribution."""

    mean: float
    none: float
    whole: float
    after_empty: float
    gap: float


@dataclass(frozen=True)
class Measures:
    """Statistics of a day; shares 0..1, gaps are greatest distances of distribution functions."""

    requests_per_phrase: float
    top_1_percent: float
    personal_keys: float  # keys with the user's context, over phrases
    personal_top_1_percent: float
    zero_cost: float
    cost_gap: float
    list_ads: float  # mean of the lists that are not empty
    longest_list: int
    click_requests: float
    clicked_phrases: float
    clicked_phrases_requests: float  # the share of requests they carry
    earning_phrases: float
    earning_phrases_requests: float
    click_revenue_sigma: float
    at_reserve: float  # shown ads that pay the least price
    throttle_zero: float
    throttle_gap: float
    phrase: Similarity
    personal: Similarity


def measure(log: RequestLog) -> Measures:
    """Statistics of a log of one day."""
    count = len(log.time_ms)
    keys, row, asked = np.unique(log.phrase, return_inverse=True, return_counts=True)
    personal = personal_keys(log)
    personal_asked = np.unique(personal, return_counts=True)[1]
    lengths = np.diff(log.offsets)
    clicks = by_request(log.clicked.astype(np.float64), log.offsets)
    revenue = by_request(np.where(log.clicked, log.charge_usd, 0.0).astype(np.float64), log.offsets)
    clicked = np.bincount(row, clicks) > 0
    earning = clicked | (log.prior_clicks[keys] > 0)
    shown = log.charge_usd > 0
    return Measures(
        requests_per_phrase=count / len(keys),
        top_1_percent=_top(asked),
        personal_keys=len(personal_asked) / len(keys),
        personal_top_1_percent=_top(personal_asked),
        zero_cost=float((log.cost == 0).mean()),
        cost_gap=_gap(log.cost, "bing2016_fig5_cdf_cost_indicator_all", 5.0, 1e9),
        list_ads=float(lengths[lengths > 0].mean()),
        longest_list=int(lengths.max()),
        click_requests=float((clicks > 0).mean()),
        clicked_phrases=float(clicked.mean()),
        clicked_phrases_requests=float(asked[clicked].sum() / count),
        earning_phrases=float(earning.mean()),
        earning_phrases_requests=float(asked[earning].sum() / count),
        click_revenue_sigma=float(np.log(revenue[revenue > 0]).std()),
        at_reserve=float((log.charge_usd[shown] <= log.charge_usd[shown].min()).mean()),
        throttle_zero=float((log.throttle_level == 0).mean()),
        throttle_gap=_gap(log.throttle_level, "bing2017_fig4_cdf_throttle_level_all", 0.0, 199.0),
        phrase=similarity(log, log.phrase.astype(np.int64), "nopers"),
        personal=similarity(log, personal, "pers"),
    )


def personal_keys(log: RequestLog) -> Ints:
    """A number a request: phrase, location, gender and age."""
    contexts = (log.location.astype(np.int64) * 8 + log.gender) * 16 + log.age
    return np.asarray(log.phrase.astype(np.int64) * (1 << 14) + contexts)


def similarity(log: RequestLog, key: Ints, figure: str) -> Similarity:
    """Of lists to the previous one of the same key, against figure 6 (`nopers` or `pers`)."""
    order = np.argsort(key, kind="stable")
    values = _similarities(order, key, log.offsets, log.ads)
    values = values[~np.isnan(values)]
    after_empty = float((values < 0).mean())
    values = np.maximum(values, 0.0)
    return Similarity(
        mean=float(values.mean()),
        none=float((values == 0.0).mean()),
        whole=float((values == 1.0).mean()),
        after_empty=after_empty,
        gap=_gap(100.0 * values, f"bing2016_fig6_cdf_adlist_similarity_{figure}", 0.0, 99.95),
    )


def lru_hits(keys: Ints, entries: int, refresh_at: int | None = None) -> float:
    """Hit ratio of an LRU cache; each `refresh_at`-th hit of an entry is a refresh and counts as a miss."""
    cache: OrderedDict[int, int] = OrderedDict()
    hits = 0
    for key in keys.tolist():
        uses = cache.pop(key, None)
        if uses is None:
            if len(cache) == entries:
                cache.popitem(last=False)
            uses = 0
        elif refresh_at is not None and uses + 1 == refresh_at:
            uses = 0
        else:
            hits += 1
            uses += 1
        cache[key] = uses
    return hits / len(keys)


def _top(counts: Ints) -> float:
    """The share of requests that the top 1 % of keys carry."""
    ordered = np.sort(counts)[::-1]
    return float(ordered[: max(1, len(ordered) // 100)].sum() / ordered.sum())


def _gap(values: NDArray[np.floating], figure: str, least: float, most: float) -> float:
    """Greatest distance of the distribution of values from the digitised one, at its points in a range."""
    points = np.loadtxt(BING / f"{figure}.csv", delimiter=",", skiprows=1)
    points = points[(points[:, 0] >= least) & (points[:, 0] <= most)]
    below = np.searchsorted(np.sort(values), points[:, 0] + 1e-9, side="right") / len(values)
    return float(np.abs(below - points[:, 1]).max())


@compiled
def _similarities(order: Ints, key: Ints, offsets: Ints, ads: NDArray[np.int32]) -> Floats:
    """By request; NaN where undefined, -1 where the previous list was empty."""
    out = np.full(len(key), np.nan)
    for place in range(1, len(order)):
        now, before = order[place], order[place - 1]
        if key[now] != key[before] or offsets[now + 1] == offsets[now]:
            continue
        if offsets[before + 1] == offsets[before]:
            out[now] = -1.0
            continue
        known = 0
        for ad in ads[offsets[now] : offsets[now + 1]]:
            for other in ads[offsets[before] : offsets[before + 1]]:
                if other == ad:
                    known += 1
                    break
        out[now] = known / (offsets[now + 1] - offsets[now])
    return out
