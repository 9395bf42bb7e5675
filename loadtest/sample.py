"""The sample catalogue: ads of our own making, the same for the same seed everywhere.

Problem: `make demo` needs a catalogue that looks like one and belongs to nobody. What is made to resemble
real catalogues, and how:

* Sizes. Ads per category and per advertiser follow Zipf laws (exponents 0.6 and 0.9): a few large shops, a
  long tail of small ones. Each advertiser stays within one sector; each category is offered by many.
* Texts. Titles fill templates with the words of a category, invented brands and shops, cities for local
  services. A title that was used is drawn again, so repeats are rare. A title always holds a noun of its
  category, so a query for that noun has ads that fit.
* Bids. log bid = category effect + N(0.35, 0.71^2), the law of `services/catalogue/bids.py`, with its caps.
  The 72 category effects are the quantiles of N(0, 1.43^2), given out in the order of the categories'
  `value`, so that a click on car insurance costs more than one on children's books.
* Targeting. Local services aim at the region of their city; ads for women, men, students or seniors often aim
  at them; a few ads choose devices or regions at random. Most ads admit everyone.
* Budgets. 60 % of the advertisers have a daily budget, from a Pareto law (exponent 1.1): most small, few
  huge.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.files import written_whole
from loadtest.sample_draws import Draws, Wheel, zipf
from loadtest.sample_texts import Texts, Wording
from loadtest.sample_vocabulary import Category, City, Sector, Vocabulary, load_vocabulary
from services.catalogue.bids import AD_EFFECT, CATEGORY_EFFECT, DEFAULT_RESERVE_USD, MAX_MODELLED_BID_USD
from services.runtime.errors import UserError

MAX_ADS = 1_000_000
MAX_ADVERTISERS = 260
ADS_PER_ADVERTISER = 10
FIRST_AD_ID = 100_001
BUDGET_SHARE = 0.6
MAX_BUDGET_USD = 25_000.0

# Whom an ad aims at when its title speaks to these people, and how often it does.
_AIMS: tuple[tuple[tuple[str, ...], str, tuple[str, ...], float], ...] = (
    (("women", "her", "brides", "new mothers"), "genders", ("female",), 0.3),
    (("men", "him"), "genders", ("male",), 0.3),
    (("seniors", "over 50s", "women over 50", "retirees"), "age_bands", ("50-64", "65+"), 0.5),
    (("students", "new drivers", "under 25s", "graduates"), "age_bands", ("18-24", "25-34"), 0.4),
)


@dataclass(frozen=True)
class Shop:
    """An advertiser."""

    name: str
    sector: Sector
    cities: tuple[City, ...]
    daily_budget_usd: float | None


def write_sample(path: Path, ads: int = 6000, seed: int = 1) -> None:
    """Writes a sample catalogue as JSONL, in the schema that `import_catalogue` reads.

    `ads` is 1..1,000,000 and `path` ends in .jsonl, else UserError. The file appears whole or not at all.
    """
    if not 1 <= ads <= MAX_ADS:
        raise UserError(f"--ads: {ads} is outside 1..{MAX_ADS}")
    if path.suffix != ".jsonl":
        raise UserError(f"{path}: the name must end in .jsonl")
    with written_whole(path) as file:
        for ad in sample_ads(ads, seed):
            file.write(json.dumps(ad, ensure_ascii=False, separators=(",", ":")) + "\n")


def sample_ads(ads: int, seed: int) -> Iterator[dict[str, Any]]:
    """The rows of a sample catalogue."""
    vocabulary = load_vocabulary()
    draws = Draws(seed)
    categories = Wheel(draws.shuffled(vocabulary.categories), zipf(len(vocabulary.categories), 0.6))
    shops = _shops(draws, vocabulary, min(MAX_ADVERTISERS, max(1, ads // ADS_PER_ADVERTISER)))
    weights = zipf(len(shops), 0.9)
    by_sector: dict[str, Wheel[Shop]] = {}
    for sector in {category.sector.name: None for category in vocabulary.categories}:
        members = [at for at, shop in enumerate(shops) if shop.sector.name == sector]
        if members:
            by_sector[sector] = Wheel([shops[at] for at in members], [weights[at] for at in members])
    served = [category for category in vocabulary.categories if category.sector.name in by_sector]
    effects = _category_effects(vocabulary)
    regions = sorted({city.region for city in vocabulary.cities})
    texts = Texts(draws, vocabulary)
    for at in range(ads):
        if at < len(shops):  # every advertiser has an ad
            shop = shops[at]
            category = draws.pick([category for category in served if category.sector == shop.sector])
        else:
            category = draws.weighted(categories)
            while category.sector.name not in by_sector:
                category = draws.weighted(categories)
            shop = draws.weighted(by_sector[category.sector.name])
        wording = texts.wording(category, shop.name, shop.cities)
        row = _row(draws, FIRST_AD_ID + at, category, shop, wording, effects[category.name])
        yield row | _targeting(draws, wording, regions)


def _shops(draws: Draws, vocabulary: Vocabulary, count: int) -> list[Shop]:
    """Advertisers, the largest first; a sector gets as many as it has categories, and over again."""
    sectors = draws.shuffled([category.sector for category in vocabulary.categories])
    names = vocabulary.names
    stems = draws.some([first + second for first in names.first for second in names.second], count)
    shops = []
    for at, stem in enumerate(stems):
        sector = sectors[at % len(sectors)]
        budget = min(round(draws.pareto(15.0, 1.1)), MAX_BUDGET_USD) if draws.chance(BUDGET_SHARE) else None
        cities = tuple(draws.some(vocabulary.cities, 1 + draws.below(4)))
        shops.append(Shop(f"{stem} {draws.pick(sector.shops)}", sector, cities, budget))
    return shops


def _category_effects(vocabulary: Vocabulary) -> dict[str, float]:
    ranked = sorted(vocabulary.categories, key=lambda category: (category.value, category.name))
    return {
        category.name: CATEGORY_EFFECT.inv_cdf((rank + 0.5) / len(ranked))
        for rank, category in enumerate(ranked)
    }


def _row(
    draws: Draws, ad_id: int, category: Category, shop: Shop, wording: Wording, effect: float
) -> dict[str, Any]:
    bid = math.exp(effect + draws.normal(AD_EFFECT))
    row: dict[str, Any] = {
        "ad_id": ad_id,
        "title": wording.title,
        "description": wording.description,
        "advertiser": shop.name,
        "category": category.name,
        "bid_usd": round(min(max(bid, DEFAULT_RESERVE_USD), MAX_MODELLED_BID_USD), 2),
    }
    if category.price_usd is not None:
        low, high = category.price_usd
        row["product_price_usd"] = round(math.exp(draws.uniform(math.log(low), math.log(high)))) - 0.01
    if shop.daily_budget_usd is not None:
        row["daily_budget_usd"] = shop.daily_budget_usd
    return row


def _targeting(draws: Draws, wording: Wording, regions: list[str]) -> dict[str, list[str]]:
    targeting: dict[str, list[str]] = {}
    if wording.city is not None and draws.chance(0.8):
        targeting["locations"] = [wording.city.region]
    elif wording.city is None and draws.chance(0.05):
        targeting["locations"] = sorted(draws.some(regions, 1 + draws.below(6)))
    for audiences, column, values, probability in _AIMS:
        if wording.audience in audiences and draws.chance(probability):
            targeting[column] = list(values)
    if draws.chance(0.05):
        targeting["devices"] = draws.pick((["mobile"], ["desktop"], ["mobile", "tablet"]))
    return targeting
