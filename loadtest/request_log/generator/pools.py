"""The candidates of a phrase that compete for its list, and how well each fits.

The pool: ads of the phrase's category, those of products whose title shares a word with the phrase first,
filled up from the category and, where that is small, from its neighbours. (A scorer looks at thousands of
candidates, the cost indicator; those that never come near a list play no part.)

Fit of an ad to a phrase, standard normal, in three independent parts:

    fit = .416 value(ad) + .7 text(phrase, product) + .580 match(phrase, ad)

value: the ad's bid relative to its category, so that value and relevance have Spearman correlation .4 (Lahaie
& Pennock, EC 2007). text: the normal score of the share of the phrase's words, weighted by inverse document
frequency, that the product's title has; equal shares are ordered at random. match: what no text tells, by
hash. So a scorer that reads texts finds something true, and cannot find everything.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadtest.request_log.generator.ads import Ads
from loadtest.request_log.generator.phrases import PhraseBook, Traits
from loadtest.request_log.generator.profiles import Profile
from loadtest.request_log.generator.randomness import FIRST_AD, MATCH, at, normal, stream, to_normal, uniform
from services.core.compiled import compiled

GRADES = 64
SAMPLE_PHRASES = 3_000

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Pools:
    """Candidates of phrases: phrase i has `ads[row[i]]` (rows of the ad table) and `fit[row[i]]`."""

    row: NDArray[np.int64]
    ads: NDArray[np.int32]
    fit: NDArray[np.float32]


class PoolMaker:
    """Makes pools of one universe of phrases; `fit` is standard normal over those of catalogue phrases."""

    def __init__(self, profile: Profile, seed: int, ads: Ads, book: PhraseBook) -> None:
        self._profile, self._seed, self._ads, self._texts = profile, seed, ads, book.base_words
        self.size = min(profile.pool_ads, len(ads.ids))
        some = book.traits(np.linspace(0, book.size - 1, SAMPLE_PHRASES).astype(np.int64))
        own = some.base >= 0
        grades = self._filled(some.id[own], some.category[own], some.base[own])[1]
        shares = np.bincount(grades.reshape(-1), minlength=GRADES) / grades.size
        self._grade_ends = np.concatenate([[0.0], np.cumsum(shares)])

    def pools(self, traits: Traits, needed: NDArray[np.bool_]) -> Pools:
        """The pools of those of some phrases that need one."""
        ids = traits.id[needed]
        ads, grades = self._filled(ids, traits.category[needed], traits.base[needed])
        profile = self._profile
        rest = np.sqrt(1.0 - profile.value_copula**2 - profile.text_copula**2)
        weights = np.array([profile.value_copula, profile.text_copula, rest])
        fit = _fit(
            self._seed, ids, ads, grades, self._ads.product, self._ads.value, self._grade_ends, weights
        )
        return Pools(np.cumsum(needed) - 1, ads, fit)

    def _filled(self, ids: Ints, category: Ints, base: Ints) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
        ads, texts = self._ads, self._texts
        return _filled(
            self._seed, self.size, ids, category, base, ads.category_starts, ads.offer_starts,
            ads.titles.starts, ads.titles.numbers, texts.starts, texts.numbers, ads.word_weights,
        )  # fmt: skip


@compiled
def _filled(
    seed: int, size: int, ids: Ints, category: Ints, base: Ints, category_starts: Ints, offer_starts: Ints,
    title_starts: Ints, title_words: NDArray[np.int32], text_starts: Ints, text_words: NDArray[np.int32],
    word_weights: NDArray[np.float64],
) -> tuple[NDArray[np.int32], NDArray[np.int8]]:  # fmt: skip
    """Ads of every pool, and the grade 0..63 of each one's text: the weighted share of words it has."""
    ads = np.empty((len(ids), size), np.int32)
    grades = np.empty((len(ids), size), np.int8)
    count = len(title_starts) - 1
    found = np.empty(count, np.bool_)
    for i in range(len(ids)):
        first, end = category_starts[category[i]], category_starts[category[i] + 1]
        run = end - first
        turn = int(uniform(seed, FIRST_AD, ids[i], 0) * run)
        words, words_end, total = 0, 0, 0.0
        if base[i] >= 0:
            words, words_end = text_starts[base[i]], text_starts[base[i] + 1]
            for w in range(words, words_end):
                total += word_weights[text_words[w]]
        filled = 0
        for j in range(run):
            product = first + (turn + j) % run
            shared = 0.0
            t, t_end = title_starts[product], title_starts[product + 1]
            w = words
            while w < words_end and t < t_end:
                if text_words[w] == title_words[t]:
                    shared += word_weights[text_words[w]]
                    w += 1
                    t += 1
                elif text_words[w] < title_words[t]:
                    w += 1
                else:
                    t += 1
            found[j] = shared > 0.0
            if found[j]:
                grade = min(int(shared / total * GRADES), GRADES - 1)
                filled = _taken(ads[i], grades[i], filled, offer_starts, product, grade)
        for j in range(run):
            if not found[j]:
                filled = _taken(ads[i], grades[i], filled, offer_starts, first + (turn + j) % run, 0)
        other = end
        while filled < size:
            filled = _taken(ads[i], grades[i], filled, offer_starts, other % count, 0)
            other += 1
    return ads, grades


@compiled
def _taken(
    ads: NDArray[np.int32],
    grades: NDArray[np.int8],
    filled: int,
    offer_starts: Ints,
    product: int,
    grade: int,
) -> int:
    """Takes the ads of a product into a pool as long as there is room; how many it has then."""
    for ad in range(
        offer_starts[product], min(offer_starts[product + 1], offer_starts[product] + len(ads) - filled)
    ):
        ads[filled] = ad
        grades[filled] = grade
        filled += 1
    return filled


@compiled
def _fit(
    seed: int, ids: Ints, ads: NDArray[np.int32], grades: NDArray[np.int8], product: Ints,
    value: NDArray[np.float64], grade_ends: NDArray[np.float64], weights: NDArray[np.float64],
) -> NDArray[np.float32]:  # fmt: skip
    fit = np.empty(ads.shape, np.float32)
    for i in range(len(ids)):
        state = stream(seed, MATCH, ids[i])
        for j in range(ads.shape[1]):
            ad = ads[i, j]
            low, high = grade_ends[grades[i, j]], grade_ends[grades[i, j] + 1]
            text = to_normal(low + (high - low) * at(state, 2 * product[ad]))
            fit[i, j] = weights[0] * value[ad] + weights[1] * text + weights[2] * normal(state, 2 * ad + 1)
    return fit
