"""Makes the requests of a day, a chunk at a time.

For every chunk: phrase and time (`keys`), user (`context`), candidates and cost (`candidates`), pools of the
chunk's phrases (`pools`), lists (`noise`, `lists`), auction and clicks (`auction`). Everything is a function
of the seed and of what it is about, so chunks and the number of days change nothing, and memory is bounded by
a chunk and the tables of ads and phrases.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadtest.request_log.generator.ads import load_ads
from loadtest.request_log.generator.auction import POSITION_FACTORS, SHOWN, run_auctions
from loadtest.request_log.generator.batch import Batch
from loadtest.request_log.generator.candidates import costs
from loadtest.request_log.generator.changes import AdDay, ad_day
from loadtest.request_log.generator.context import contexts
from loadtest.request_log.generator.keys import KeyStream, day_times
from loadtest.request_log.generator.lists import make_lists
from loadtest.request_log.generator.noise import NoiseMaker
from loadtest.request_log.generator.phrases import PhraseBook
from loadtest.request_log.generator.pools import PoolMaker
from loadtest.request_log.generator.profiles import PRIOR_DAYS, Profile
from loadtest.request_log.generator.sums import by_request
from loadtest.request_log.schema import Requests

CHUNK = 65_536
PILOT = 60_000


class Generator:
    """Makes requests of any day. `phrase` of its requests is the number of the phrase in the universe."""

    def __init__(
        self, profile: Profile, seed: int, *, key_stream: Path | None = None, catalogue: Path | None = None
    ) -> None:
        self._profile, self._seed = profile, seed
        self.ads = load_ads(catalogue)
        self.keys = KeyStream(profile, seed, key_stream)
        self.book = PhraseBook(profile, seed, self.keys.expected, self.ads)
        self._pools = PoolMaker(profile, seed, self.ads, self.book)
        self._noise = NoiseMaker(profile, self._pools.size)
        self._click_scale = 0.02  # near it, so that no probability meets its cap
        self._click_scale *= self._calibrated()

    def chunks(self, day: int, phrase: NDArray[np.int64]) -> Iterator[tuple[Requests, NDArray[np.float64]]]:
        """Requests of a day, and the revenue the scorer expects of each; throttle levels are still NaN."""
        state = ad_day(self.ads, self._seed, day)
        times = day_times(self._seed, day, len(phrase))
        first = day * len(phrase)  # day 0 starts at request 0
        for start in range(0, len(phrase), CHUNK):
            part = slice(start, start + CHUNK)
            yield self._chunk(state, first + start, phrase[part], times[part])

    def _chunk(
        self, day: AdDay, first: int, phrase: NDArray[np.int64], time_ms: NDArray[np.int64]
    ) -> tuple[Requests, NDArray[np.float64]]:
        profile, seed = self._profile, self._seed
        ids, row = np.unique(phrase, return_inverse=True)
        traits = self.book.traits(ids)
        concentration = profile.context_concentration * self.keys.expected[phrase] ** profile.context_growth
        location, gender, age, device, joint = contexts(seed, first, phrase, concentration)
        batch = Batch(first, time_ms, row, joint)
        cost = costs(profile, seed, batch, traits)
        listing = np.zeros(len(ids), np.bool_)
        listing[row[cost > 0]] = True
        pools = self._pools.pools(traits, listing)
        noise = self._noise.noise(traits)
        shown_ads = np.clip(traits.list_ads * profile.takes_part, 1.0, SHOWN)
        positions = np.interp(shown_ads, np.arange(1.0, SHOWN + 1), POSITION_FACTORS.cumsum())
        scale = self._click_scale * traits.clicks / positions
        relevance = self._noise.relevance
        lists = make_lists(profile, seed, batch, traits, pools, noise, relevance, scale, day, cost)
        factors = traits.bid_factor[row]
        bid, charge, shown, clicked = run_auctions(
            seed, profile.takes_part, batch, lists, self.ads.ids, day, factors
        )
        offsets = np.concatenate([[0], np.cumsum(lists.counts)])
        expected = np.where(shown > 0, shown / np.maximum(lists.truth, 1e-12) * lists.estimate * charge, 0.0)
        return Requests(
            time_ms=time_ms,
            phrase=phrase.astype(np.int32),
            location=location,
            gender=gender,
            age=age,
            device=device,
            cost=cost,
            throttle_level=np.full(len(phrase), np.nan, np.float32),
            offsets=offsets,
            ads=lists.ads,
            click_probability=lists.estimate,
            bid_usd=bid,
            charge_usd=charge,
            shown_probability=shown,
            clicked=clicked,
        ), by_request(expected, offsets)

    def _calibrated(self) -> float:
        """The factor at which `click_share` of the requests end in a click; from an even sample of day -3."""
        phrase = self.keys.day(-PRIOR_DAYS)
        times = day_times(self._seed, -PRIOR_DAYS, len(phrase))
        step = max(1, len(phrase) // PILOT)
        part, _ = self._chunk(
            ad_day(self.ads, self._seed, -PRIOR_DAYS), 0, phrase[::step].copy(), times[::step].copy()
        )
        shown = part.shown_probability.astype(np.float64)
        low, high = 0.0, 20.0
        for _ in range(40):
            middle = (low + high) / 2.0
            none = by_request(np.log1p(-np.minimum(shown * middle, 0.9)), part.offsets)
            above = (1.0 - np.exp(none)).mean() > self._profile.click_share
            low, high = (low, middle) if above else (middle, high)
        return low
