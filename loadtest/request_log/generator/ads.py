"""The ads behind a log: the products of a catalogue, each at one to five merchants.

An ad is a product at a merchant. A row of the catalogue is a product and its first offer, that of its
supplier: the advertiser, id and bid of the row. Further merchants of the category offer it too: 1 to 5 offers
a product, P(k) ~ 1/k, by merchants of whom the one with the n-th most products in the category is the first
drawn with probability ~ 1/n. (Both laws are modelled.) Their ids are the least that the catalogue does not
use, and their bids follow the law of services/catalogue/bids.py: category effect + ad effect. Everything is a
hash of the product's id, so a catalogue has the same offers in every log.

Products are kept sorted by category and ads by product, so that the candidates of a phrase are a run of rows.
`value` is an ad's bid relative to its category, standardised.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadtest.request_log.generator.randomness import MERCHANT, normals, uniforms
from loadtest.sample import sample_ads
from services.catalogue.bids import AD_EFFECT
from services.catalogue.bundle import read_catalogue
from services.catalogue.schema import MAX_BID_USD, Ad
from services.runtime.errors import UserError

SAMPLE_ADS, SAMPLE_SEED = 20_000, 1
MIN_ADS = 1_000
MOST_OFFERS = 5
OFFERS = np.cumsum(1.0 / np.arange(1, MOST_OFFERS + 1)) / (1.0 / np.arange(1, MOST_OFFERS + 1)).sum()
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class Words:
    """Sets of words as sorted numbers: item i has `numbers[starts[i]:starts[i + 1]]`."""

    starts: NDArray[np.int64]
    numbers: NDArray[np.int32]


@dataclass(frozen=True)
class Ads:
    """Products sorted by category, and their ads sorted by product; starts have one more entry at the end."""

    products: list[Ad]  # as the catalogue has them
    category_starts: NDArray[np.int64]  # rows of products
    offer_starts: NDArray[np.int64]  # rows of ads, the supplier's first
    ids: NDArray[np.int64]  # this and the next four by ad
    product: NDArray[np.int64]
    bid_usd: NDArray[np.float64]
    value: NDArray[np.float64]
    campaign: NDArray[np.int64]  # one a merchant and category: what a budget is for
    vocabulary: dict[str, int]
    word_weights: NDArray[np.float64]  # inverse document frequency
    titles: Words  # by product


def load_ads(catalogue: Path | None) -> Ads:
    """The ads of a catalogue bundle, or of the made-up catalogue `write_sample(20,000 ads, seed 1)`.

    Raises UserError where a catalogue has fewer than 1,000 ads.
    """
    if catalogue is None:
        return _sample()
    products = read_catalogue(catalogue)
    if len(products) < MIN_ADS:
        raise UserError(f"{catalogue}: {len(products)} ads, a log takes at least {MIN_ADS}")
    return _arranged(products)


@cache
def _sample() -> Ads:
    names = ("ad_id", "title", "advertiser", "bid_usd", "description", "category", "daily_budget_usd")
    rows = sample_ads(SAMPLE_ADS, SAMPLE_SEED)
    return _arranged([Ad(**{name: row[name] for name in names if name in row}) for row in rows])


def _arranged(products: list[Ad]) -> Ads:
    products.sort(key=lambda ad: (ad.category, ad.ad_id))
    ids = np.array([ad.ad_id for ad in products], np.int64)
    categories, category = np.unique([ad.category for ad in products], return_inverse=True)
    supplier = np.unique([ad.advertiser for ad in products], return_inverse=True)[1].astype(np.int64)
    product, merchant = _offers(ids, category, supplier)
    is_first = np.concatenate([[True], product[1:] != product[:-1]])
    sizes = np.bincount(category)
    log_bid = np.log([ad.bid_usd for ad in products])
    effects = np.bincount(category, log_bid) / sizes
    of_ad = category[product]
    log_bid = np.where(is_first, log_bid[product], effects[of_ad])
    all_ids = np.empty(len(product), np.int64)
    all_ids[is_first] = ids
    all_ids[~is_first] = np.setdiff1d(np.arange(1, len(product) + 1), ids)[: len(product) - len(ids)]
    log_bid[~is_first] += AD_EFFECT.stdev * normals(0, MERCHANT, 2, all_ids[~is_first])
    away = log_bid - effects[of_ad]
    vocabulary: dict[str, int] = {}
    titles = words_of((ad.title for ad in products), vocabulary, grow=True)
    in_titles = np.bincount(titles.numbers, minlength=len(vocabulary))
    return Ads(
        products=products,
        category_starts=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        offer_starts=np.append(np.flatnonzero(is_first), len(product)),
        ids=all_ids,
        product=product,
        bid_usd=np.minimum(np.exp(log_bid), MAX_BID_USD),
        value=away / max(float(away.std()), 1e-9),
        campaign=merchant * len(categories) + of_ad,
        vocabulary=vocabulary,
        word_weights=np.log(1.0 + len(products) / np.maximum(in_titles, 1)),
        titles=titles,
    )


def _offers(
    ids: NDArray[np.int64], category: NDArray[np.int64], supplier: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Product and merchant of every ad, the supplier's first; the other arrays are by product."""
    merchants = int(supplier.max()) + 1
    pairs, pair, sizes = np.unique(category * merchants + supplier, return_inverse=True, return_counts=True)
    group = pairs // merchants
    order = np.lexsort((-sizes, group))  # the merchants of a category, the largest first
    starts = np.searchsorted(group, np.arange(int(category.max()) + 2))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - starts[group]
    others = (starts[1:] - starts[:-1])[category] - 1
    wanted = 1 + np.searchsorted(OFFERS, uniforms(0, MERCHANT, 0, ids), side="right")
    count = np.minimum(wanted, others + 1)
    product = np.repeat(np.arange(len(ids)), count)
    turn = np.arange(len(product)) - np.repeat(np.cumsum(count) - count, count)
    first = np.maximum(others, 1) ** uniforms(0, MERCHANT, 1, ids)  # P(n) ~ log(1 + 1/n)
    other = (first.astype(np.int64)[product] + turn - 2) % np.maximum(others, 1)[product]
    other += other >= place[pair][product]
    merchant = pairs[order[starts[category[product]] + other * (turn > 0)]] % merchants
    return product, np.where(turn == 0, supplier[product], merchant)


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
