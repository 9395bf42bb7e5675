"""Titles and descriptions of the sample catalogue."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass

from loadtest.sample_draws import Draws
from loadtest.sample_vocabulary import Category, City, Vocabulary

BRANDS_PER_CATEGORY = 14
TRIES = 5

# In templates a capital first letter means title case.
_PRODUCT = (
    "{Brand} {Line} {number} {Adjective} {Noun}, {variant}",
    "{Brand} {Adjective} {Noun}, {feature}",
    "{Brand} {Line} {Noun} for {Audience}",
    "{Brand} {Line} {Noun}, {feature}, {variant}",
    "{Adjective} {Noun} for {Audience} by {Brand}",
    "{Adjective} {Noun}: {feature} | {Shop}",
    "{Brand} {Noun} {code}, {variant}",
)
_SERVICE = (
    "{Adjective} {Noun} from {price} | {Shop}",
    "{Noun} for {Audience}: {feature}",
    "{Shop} {Noun}: {feature}",
    "{Adjective} {Noun} for {Audience} | {Shop}",
    "{Noun}: {feature}, from {price}",
    "Compare {Adjective} {Noun}, {feature}",
)
_LOCAL = (
    "{Adjective} {Noun} in {City} | {Shop}",
    "{Noun} in {City}: {feature}",
    "{Noun} {City}, from {price}, {feature}",
    "{Adjective} {Noun} for {Audience} in {City}",
    "{Adjective} {Noun}, {City}: {feature} | {Shop}",
)
_DESCRIPTIONS = (
    "{adjective} {noun} for {audience}: {feature}, {feature2}. {closer}.",
    "{feature} and {feature2}. {adjective} {noun} from {Shop}. {closer}.",
    "{adjective} {noun} at {Shop}: {feature}, {feature2}. {closer}.",
    "{noun} for {audience}. {feature} and {feature2}. {closer}.",
)


@dataclass(frozen=True)
class Wording:
    """The texts of one ad, whom its title speaks to ("" for all), and the city it serves."""

    title: str
    description: str
    audience: str
    city: City | None


class Texts:
    """Writes ads; a title comes twice only where 5 draws in a row gave used ones."""

    def __init__(self, draws: Draws, vocabulary: Vocabulary) -> None:
        self._draws = draws
        self._lines = vocabulary.names.line
        self._cities = vocabulary.cities
        self._brands = _brands(draws, vocabulary)
        self._used: set[str] = set()

    def wording(self, category: Category, shop: str, shop_cities: tuple[City, ...]) -> Wording:
        """The texts of a new ad."""
        for _ in range(TRIES):
            wording = self._draw(category, shop, shop_cities)
            if wording.title not in self._used:
                break
        self._used.add(wording.title)
        return wording

    def _draw(self, category: Category, shop: str, shop_cities: tuple[City, ...]) -> Wording:
        draws = self._draws
        local = category.sector.kind == "local"
        city = draws.pick(shop_cities if local else self._cities)
        offer = draws.pick(category.offers)
        features = draws.some(offer.features, 2)
        words = {
            "brand": draws.pick(self._brands[category.name]),
            "line": draws.pick(self._lines),
            "number": str(2 + draws.below(8)),
            "code": draws.pick(string.ascii_uppercase) + str(100 + 10 * draws.below(90)),
            "adjective": draws.pick(offer.adjectives),
            "noun": offer.noun,
            "feature": features[0],
            "feature2": features[1],
            "audience": draws.pick(offer.audiences),
            "variant": draws.pick(offer.variants) if offer.variants else "",
            "price": draws.pick(offer.prices) if offer.prices else "",
            "city": city.name,
            "shop": shop,
            "closer": draws.pick(category.sector.closers),
        }
        at_city = local or (category.at_place and draws.chance(0.7))
        templates = _LOCAL if at_city else _PRODUCT if category.sector.kind == "product" else _SERVICE
        template = draws.pick(templates)
        title = _fill(template, words)
        description = _fill(draws.pick(_DESCRIPTIONS), words)
        audience = words["audience"] if "{Audience}" in template else ""
        return Wording(title, _sentence_case(description), audience, city if local else None)


def _brands(draws: Draws, vocabulary: Vocabulary) -> dict[str, list[str]]:
    """Invented makers for every category of products, none of them in two categories."""
    names = vocabulary.names
    parts = ((a, b, c) for a in names.brand_first for b in names.brand_middle for c in names.brand_last)
    pool = draws.shuffled(["".join(part) for part in parts])
    count = BRANDS_PER_CATEGORY
    return {
        category.name: pool[at * count : (at + 1) * count]
        for at, category in enumerate(vocabulary.categories)
    }


def _fill(template: str, words: Mapping[str, str]) -> str:
    capitals = {key.capitalize(): _title_case(text) for key, text in words.items()}
    return template.format(**words, **capitals)


def _title_case(text: str) -> str:
    """Capital first letters, except of small words; what has capitals already stays."""
    small = {"and", "or", "of", "to", "in", "a", "the", "for", "by"}
    return " ".join(word if word in small else word[:1].upper() + word[1:] for word in text.split(" "))


def _sentence_case(text: str) -> str:
    parts = text.replace("? ", "?\n").replace(". ", ".\n").split("\n")
    return " ".join(part[:1].upper() + part[1:] for part in parts)
