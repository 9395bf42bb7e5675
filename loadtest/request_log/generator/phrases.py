"""Phrases: their texts, and what about them does not change from request to request or day to day.

Texts. Two keys of five are web queries, the others look for something in the catalogue, as in
`loadtest/queries.py`, from where the texts come. A catalogue phrase belongs to a category; its text is one of
those made from the ads of the category, the most popular first, then the same with words of intent.

Traits, each from an evenly spread sequence over popularity (`randomness.stratified`):

* barren: it never finds an ad. Web queries only, and the rarer, the likelier: of the frequent ones many do
  find some ad (a brand, a place).
* retained: the share of its list that is to survive from one request to the next, from a Beta law, or all of
  it (stable lists, of brands say); held to figure 6 of SoCC'17.
* personal: its list changes at once with the user only. Fewer of the frequent phrases.
* empty_slot: the share of slots of the day in which it has no candidates (`candidates.py`).
* list_ads: the length of its list, P(B) ~ B^-0.23 on 1..24 (fitted to figure 6), 2 % of the phrases up to
  128.
* cost: log-normal (figure 5), independent of popularity. bid_factor: log-normal, what a click on this phrase
  is worth within its category.
* clicks: requests with a click, Gamma(1.18) (the beta-binomial of AdWords keywords) times a factor that falls
  for rare phrases, and less for the most frequent ones. The papers leave no choice about its fall: few
  phrases earn, and they carry most requests.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from loadtest.queries import catalogue_phrases, normalise
from loadtest.request_log.generator.ads import Ads, Words, words_of
from loadtest.request_log.generator.profiles import Profile
from loadtest.request_log.generator.randomness import STATIC, normals, stratified
from loadtest.sample_web import web_queries

PREFIXES = ("", "buy ", "cheap ", "best ")
SUFFIXES = ("", " price", " reviews", " online", " near me", " sale")

_WEB, _CATEGORY, _RETAINED, _LENGTH, _COST, _CLICKS, _STABLE, _BARREN, _VALUE, _PERSONAL = range(10)

COST_PHRASE_SHARE = 0.75
LONG_SHARE, LONGEST, USUAL_LONGEST = 0.02, 128, 24

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Traits:
    """Arrays over some phrases, see the essay; `id` is the phrase, `base` the row of its text."""

    id: NDArray[np.int64]
    barren: NDArray[np.bool_]
    category: NDArray[np.int64]
    base: NDArray[np.int64]  # row of PhraseBook.base_words, -1 for web queries
    empty_slot: Floats
    retained: Floats
    personal: NDArray[np.bool_]
    list_ads: NDArray[np.int64]
    cost: Floats
    clicks: Floats
    bid_factor: Floats  # of every bid on the phrase
    age_rate: Floats  # redraws of an ad's score a day


class PhraseBook:
    """All phrases of a universe: `expected[u]` is how often phrase u comes in a day."""

    def __init__(self, profile: Profile, seed: int, expected: Floats, ads: Ads) -> None:
        self._profile, self._seed, self._expected = profile, seed, expected
        self.size = len(expected)
        ids = np.arange(self.size)
        categories = len(ads.category_starts) - 1
        web = stratified(seed, _WEB, ids) < profile.web_share
        self._category = np.minimum(
            (stratified(seed, _CATEGORY, ids) * categories).astype(np.int64), categories - 1
        )
        texts, starts = _base_texts(ads, seed)
        self._texts = texts
        self.base_words: Words = words_of(texts, ads.vocabulary)
        self._base = np.full(len(ids), -1, np.int64)
        self._variant = np.zeros(len(ids), np.int64)
        own = np.flatnonzero(~web)
        order = own[np.argsort(self._category[own], kind="stable")]
        grouped = self._category[order]
        place = np.arange(len(order)) - np.searchsorted(grouped, np.arange(categories))[grouped]
        sizes = np.diff(starts)
        self._base[order] = starts[grouped] + place % sizes[grouped]
        self._variant[order] = place // sizes[grouped]

    def traits(self, ids: NDArray[np.int64]) -> Traits:
        """The traits of some phrases."""
        profile, seed = self._profile, self._seed
        expected = self._expected[ids]
        web = self._base[ids] < 0
        find = profile.web_finds / (1.0 + (profile.web_finds_from / expected))
        retained = stats.beta.ppf(stratified(seed, _RETAINED, ids), profile.retained_a, profile.retained_b)
        retained[stratified(seed, _STABLE, ids) < profile.stable_share] = 1.0
        personal = profile.personal_phrases / (1.0 + expected / profile.personal_below)
        fall = 1.0 / (1.0 + (profile.rare_below / expected) ** profile.rare_slope)
        fall *= (1.0 + expected / profile.frequent_above) ** -profile.frequent_slope
        clicks = fall * stats.gamma.ppf(stratified(seed, _CLICKS, ids), profile.ctr_shape) / profile.ctr_shape
        cost_normal = stats.norm.ppf(_inside(stratified(seed, _COST, ids)))
        return Traits(
            id=ids,
            barren=web & (stratified(seed, _BARREN, ids) >= find),
            category=self._category[ids],
            base=self._base[ids],
            empty_slot=profile.empty_slot / (1.0 + profile.empty_slot_from / expected),
            retained=retained,
            personal=stratified(seed, _PERSONAL, ids) < personal,
            list_ads=_lengths(stratified(seed, _LENGTH, ids)),
            cost=profile.cost_log_mean + profile.cost_log_sd * np.sqrt(COST_PHRASE_SHARE) * cost_normal,
            clicks=clicks,
            bid_factor=np.exp(
                profile.phrase_value_sd * stats.norm.ppf(_inside(stratified(seed, _VALUE, ids)))
            ),
            age_rate=np.exp(np.log(profile.age_per_day) + normals(seed, STATIC, 100, ids)),
        )

    def write_texts(self, ids: NDArray[np.int64]) -> list[str]:
        """The texts of phrases, all different."""
        taken: set[str] = set()
        web = web_queries(self._seed)
        texts = []
        for base, variant in zip(self._base[ids].tolist(), self._variant[ids].tolist(), strict=True):
            if base < 0:
                text = next(text for text in web if normalise(text) not in taken)
            else:
                suffix, prefix = divmod(variant, len(PREFIXES))
                extra, suffix = divmod(suffix, len(SUFFIXES))
                text = (
                    PREFIXES[prefix] + self._texts[base] + SUFFIXES[suffix] + (f" {extra}" if extra else "")
                )
            text = normalise(text)
            if text in taken:
                text = next(new for count in itertools.count(2) if (new := f"{text} {count}") not in taken)
            taken.add(text)
            texts.append(text)
        return texts


def _base_texts(ads: Ads, seed: int) -> tuple[list[str], NDArray[np.int64]]:
    """Texts made from the ads of every category, and where each category's begin."""
    random = np.random.Generator(np.random.PCG64(seed))
    texts: dict[str, None] = {}
    starts = [0]
    for first, end in itertools.pairwise(ads.category_starts.tolist()):
        made = catalogue_phrases(ads.products[first:end], random)
        plain: list[str] = []
        for text in made:
            if plain and text == PREFIXES[1] + plain[0]:  # from here on the same with a word of intent
                break
            plain.append(text)
        new = [text for text in plain if text not in texts] or [f"{plain[0]} {len(starts)}"]
        texts.update(dict.fromkeys(new))
        starts.append(len(texts))
    return list(texts), np.array(starts, np.int64)


def _lengths(u: Floats) -> NDArray[np.int64]:
    """Lengths of lists: the quantile function at `u`."""
    sizes = np.arange(1, USUAL_LONGEST + 1)
    weights = sizes**-0.23
    usual = 1 + np.searchsorted(np.cumsum(weights) / weights.sum(), u / (1.0 - LONG_SHARE))
    long = USUAL_LONGEST * (LONGEST / USUAL_LONGEST) ** ((u - 1.0 + LONG_SHARE) / LONG_SHARE)
    return np.where(u < 1.0 - LONG_SHARE, np.minimum(usual, USUAL_LONGEST), long.astype(np.int64))


def _inside(u: Floats) -> Floats:
    return np.clip(u, 1e-6, 1.0 - 1e-6)
