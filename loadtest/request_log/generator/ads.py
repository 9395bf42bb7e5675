"""The ads behind a log: an imported catalogue, or one made up.

Ads are kept sorted by category, so that the candidates of a phrase are a run of rows. `value` is an ad's bid
relative to its category, standardised: log bid = category effect + ad effect (services/catalogue/bids.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadtest.sample import sample_ads
from services.catalogue.bundle import read_catalogue
from services.catalogue.schema import Ad
from services.runtime.errors import UserError

SAMPLE_ADS, SAMPLE_SEED = 20_000, 1
MIN_ADS = 1_000
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class Words:
    """Sets of words as sorted numbers: item i has `numbers[starts[i]:starts[i + 1]]`."""

    starts: NDArray[np.int64]
    numbers: NDArray[np.int32]


@dataclass(frozen=True)
class Ads:
    """`a` ads sorted by category; `category_starts` has one more entry than there are categories."""

    source: list[Ad]
    ids: NDArray[np.int64]
    bid_usd: NDArray[np.float64]
    value: NDArray[np.float64]
    campaign: NDArray[np.int64]  # one an advertiser and category: what a budget is for
    category_starts: NDArray[np.int64]
    vocabulary: dict[str, int]
    word_weights: NDArray[np.float64]  # inverse document frequency
    titles: Words


def load_ads(catalogue: Path | None) -> Ads:
    """The ads of a catalogue bundle, or of the made-up catalogue `write_sample(20,000 ads, seed 1)`.

    Raises UserError where a catalogue has fewer than 1,000 ads.
    """
    if catalogue is None:
        return _sample()
    source = read_catalogue(catalogue)
    if len(source) < MIN_ADS:
        raise UserError(f"{catalogue}: {len(source)} ads, a log takes at least {MIN_ADS}")
    return _arranged(source)


@cache
def _sample() -> Ads:
    names = ("ad_id", "title", "advertiser", "bid_usd", "description", "category", "daily_budget_usd")
    rows = sample_ads(SAMPLE_ADS, SAMPLE_SEED)
    return _arranged([Ad(**{name: row[name] for name in names if name in row}) for row in rows])


def _arranged(source: list[Ad]) -> Ads:
    source.sort(key=lambda ad: (ad.category, ad.ad_id))
    categories, members = np.unique([ad.category for ad in source], return_inverse=True)
    advertisers = np.unique([ad.advertiser for ad in source], return_inverse=True)[1]
    bids = np.array([ad.bid_usd for ad in source])
    log_bid = np.log(bids)
    sizes = np.bincount(members)
    means = np.bincount(members, log_bid) / sizes
    away = log_bid - means[members]
    vocabulary: dict[str, int] = {}
    titles = words_of((ad.title for ad in source), vocabulary, grow=True)
    in_ads = np.bincount(titles.numbers, minlength=len(vocabulary))
    return Ads(
        source=source,
        ids=np.array([ad.ad_id for ad in source], np.int64),
        bid_usd=bids,
        value=away / max(float(away.std()), 1e-9),
        campaign=advertisers.astype(np.int64) * len(categories) + members,
        category_starts=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        vocabulary=vocabulary,
        word_weights=np.log(1.0 + len(source) / np.maximum(in_ads, 1)),
        titles=titles,
    )


def words_of(texts: Iterable[str], vocabulary: dict[str, int], *, grow: bool = False) -> Words:
    """The distinct known words of each text; with `grow`, unknown ones become known."""
    starts, numbers = [0], []
    for text in texts:
        words: set[str] | Sequence[str] = set(_WORD.findall(text.casefold()))
        if grow:
            found = sorted(vocabulary.setdefault(word, len(vocabulary)) for word in sorted(words))
        else:
            found = sorted(vocabulary[word] for word in words if word in vocabulary)
        numbers.extend(found)
        starts.append(len(numbers))
    return Words(np.array(starts, np.int64), np.array(numbers, np.int32))
