"""Words of the sample catalogue, from `data/sample/vocabulary.toml`.

A sector says what kind of offer its categories hold (`product`, `service`, or `local`: a service in one
city), how its shops are called and how their descriptions end. A category lists what is sold (`nouns`) and
the words that vary it, each with the nouns it fits ("21 gears @bike"); `value` orders categories by what a
click is worth (only its rank counts), `price_usd` is the range of product prices, `prices` the way a service
states its price, and `places = "cities"` marks offers at a place, which people elsewhere search for too.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "data" / "sample" / "vocabulary.toml"

Words = tuple[str, ...]
_VARYING = ("adjectives", "features", "audiences", "variants", "prices")


@dataclass(frozen=True)
class Sector:
    """A branch of trade."""

    name: str
    kind: str
    shops: Words
    closers: Words


@dataclass(frozen=True)
class Offer:
    """One thing that is sold, and the words that fit it."""

    noun: str
    adjectives: Words
    features: Words
    audiences: Words
    variants: Words
    prices: Words


@dataclass(frozen=True)
class Category:
    """A kind of offer."""

    name: str
    sector: Sector
    value: float
    offers: tuple[Offer, ...]
    price_usd: tuple[float, float] | None
    at_place: bool


@dataclass(frozen=True)
class City:
    """A city and the code of its region."""

    name: str
    region: str


@dataclass(frozen=True)
class Names:
    """Parts of invented names."""

    first: Words
    second: Words
    brand_first: Words
    brand_middle: Words
    brand_last: Words
    line: Words


@dataclass(frozen=True)
class Vocabulary:
    """Everything the sample generator says."""

    names: Names
    cities: tuple[City, ...]
    categories: tuple[Category, ...]


def load_vocabulary() -> Vocabulary:
    """Reads the vocabulary that ships with the package."""
    document = tomllib.loads(FILE.read_text(encoding="utf-8"))
    sectors = {
        name: Sector(name, table["kind"], _split(table["shops"]), _split(table["closers"]))
        for name, table in document["sector"].items()
    }
    cities = (entry.rsplit(":", 1) for entry in _split(document["cities"]["names"]))
    return Vocabulary(
        names=Names(**{key: _split(text) for key, text in document["names"].items()}),
        cities=tuple(City(name, region) for name, region in cities),
        categories=tuple(_category(table, sectors) for table in document["category"]),
    )


def _category(table: dict[str, Any], sectors: dict[str, Sector]) -> Category:
    return Category(
        name=table["name"],
        sector=sectors[table["sector"]],
        value=float(table["value"]),
        offers=tuple(
            Offer(noun, *(_fitting(_split(table.get(key, "")), noun) for key in _VARYING))
            for noun in _split(table["nouns"])
        ),
        price_usd=(table["price_usd"][0], table["price_usd"][1]) if "price_usd" in table else None,
        at_place="places" in table,
    )


def _fitting(entries: Words, noun: str) -> Words:
    """The words of a list that go with a noun."""
    words = []
    for entry in entries:
        word, _, rule = entry.partition(" @")
        parts = rule.removeprefix("!").split(",")
        if not rule or any(part in noun for part in parts) != rule.startswith("!"):
            words.append(word)
    return tuple(words)


def _split(text: str) -> Words:
    return tuple(part for part in text.split("; ") if part)
