"""The parts of the generator: draws, days of keys, users, noise, changes of ads, pools."""

from __future__ import annotations

import itertools
import lzma
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from loadtest.request_log.generator.ads import Ads, load_ads
from loadtest.request_log.generator.changes import ad_day
from loadtest.request_log.generator.context import contexts
from loadtest.request_log.generator.history import History, ThrottleScale
from loadtest.request_log.generator.keys import HOUR_SHARES, KeyStream, day_times, demand
from loadtest.request_log.generator.noise import NoiseMaker
from loadtest.request_log.generator.phrases import PhraseBook, Traits
from loadtest.request_log.generator.pools import PoolMaker
from loadtest.request_log.generator.profiles import PROFILES, Profile
from loadtest.request_log.generator.randomness import (
    click_uniform,
    normals,
    stratified,
    to_normal,
    uniforms,
)
from loadtest.request_log.schema import DAY_MS
from services.runtime.errors import UserError

SMALL = replace(PROFILES["ci"], requests_per_day=20_000)


@pytest.fixture(scope="module")
def ads() -> Ads:
    return load_ads(None)


@pytest.fixture(scope="module")
def book(ads: Ads) -> PhraseBook:
    return PhraseBook(SMALL, 1, KeyStream(SMALL, 1, None).expected, ads)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """10,000 requests: 400 keys seen twice or more, and 2,000 seen once."""
    random = np.random.default_rng(5)
    keys = np.concatenate([np.repeat(np.arange(400), 20), np.arange(1000, 3000)])
    random.shuffle(keys)
    file = tmp_path / "trace.xz"
    file.write_bytes(lzma.compress(keys.astype(">i8").tobytes()))
    return file


def test_draws_are_uniform_and_normal() -> None:
    counters = np.arange(200_000)
    assert stats.kstest(uniforms(1, 50, 0, counters), "uniform").pvalue > 0.001
    assert stats.kstest(normals(1, 51, 0, counters), "norm").pvalue > 0.001
    u = np.array([1e-9, 1e-3, 0.02, 0.3, 0.5, 0.9, 0.99, 1 - 1e-9])
    assert [to_normal(value) for value in u] == pytest.approx(stats.norm.ppf(u), abs=1e-7)


def test_draws_differ_by_seed_purpose_and_counters() -> None:
    counters = np.arange(20_000)
    first = uniforms(1, 50, 0, counters)
    others = (uniforms(2, 50, 0, counters), uniforms(1, 51, 0, counters), uniforms(1, 50, 1, counters))
    for other in others:
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.03
    assert (first == uniforms(1, 50, 0, counters)).all()


def test_a_user_clicks_the_same_ads_whatever_is_shown() -> None:
    wanted = {(request, ad): click_uniform(7, request, ad) for request in (0, 5) for ad in (100_001, 100_002)}
    again = {key: click_uniform(7, *key) for key in reversed(wanted)}
    assert again == wanted
    assert len(set(wanted.values())) == 4


def test_stratified_draws_spread_evenly_over_any_few_ranks() -> None:
    for number in range(10):
        head = stratified(3, number, np.arange(50))
        assert stats.kstest(head, "uniform").statistic < 0.11  # half of all independent draws have more
    pairs = np.corrcoef([stratified(3, number, np.arange(20_000)) for number in range(10)])
    assert np.abs(pairs - np.eye(10)).max() < 0.1


def test_day_0_of_a_trace_is_the_trace(trace: Path) -> None:
    profile = replace(SMALL, requests_per_day=10_000)
    stream = KeyStream(profile, 1, trace)
    raw = np.frombuffer(lzma.decompress(trace.read_bytes()), ">i8")
    pairs = np.unique(np.stack([raw.astype(np.int64), stream.day(0)]), axis=1)
    assert pairs.shape[1] == len(np.unique(raw)) == len(np.unique(pairs[1]))


def test_further_days_of_a_trace_keep_counts_and_frequent_phrases(trace: Path) -> None:
    profile = replace(SMALL, requests_per_day=10_000)
    stream = KeyStream(profile, 1, trace)
    today, tomorrow = stream.day(0), stream.day(1)
    counts = [np.sort(np.unique(day, return_counts=True)[1]) for day in (today, tomorrow)]
    assert (counts[0] == counts[1]).all()
    assert not (today == tomorrow).all()
    frequent = np.arange(400)
    assert np.isin(frequent, today).all()
    assert np.isin(frequent, tomorrow).all()
    once = np.unique(today[today >= 400])
    before = np.concatenate([stream.day(day) for day in (-3, -2, -1)])
    assert np.isin(once, before).mean() == pytest.approx(1 - (8 / 9) ** 3, abs=0.04)


def test_demand_wanders_as_published() -> None:
    days = [demand(SMALL, 1, day, 5000) for day in (0, 1, 2)]
    assert (days[1] - days[0]).std() == pytest.approx(0.56, abs=0.02)
    assert np.corrcoef(days[1], days[2])[0, 1] == pytest.approx(0.81, abs=0.02)


def test_a_trace_shorter_than_a_day_is_refused(trace: Path) -> None:
    with pytest.raises(UserError, match="10000 keys are less than the 20000 of a day"):
        KeyStream(SMALL, 1, trace)


def test_times_follow_the_hours_of_the_day() -> None:
    times = day_times(1, 2, 100_000)
    assert (np.diff(times) >= 0).all()
    assert 2 * DAY_MS <= times[0] <= times[-1] < 3 * DAY_MS
    hours = np.bincount((times - 2 * DAY_MS) // 3_600_000, minlength=24) / len(times)
    assert hours == pytest.approx(np.array(HOUR_SHARES) / sum(HOUR_SHARES), abs=0.004)


def test_users_of_a_phrase_concentrate_and_all_users_follow_the_base_mix() -> None:
    same = np.zeros(5000, np.int64)
    few, many = (
        len(np.unique(contexts(1, 0, same, np.full(5000, concentration))[4]))
        for concentration in (1.0, 100.0)
    )
    assert few < 30 < 200 < many
    _, gender, age, device, _ = contexts(1, 0, np.arange(50_000), np.full(50_000, 3.0))
    assert (gender == 2).mean() == pytest.approx(0.52, abs=0.01)
    assert (age == 4).mean() == pytest.approx(0.28, abs=0.01)
    assert (device == 2).mean() == pytest.approx(0.33, abs=0.01)


@pytest.mark.parametrize("share", [0.0, 0.15, 0.5, 1.0])
def test_the_share_of_age_is_what_was_asked_for(book: PhraseBook, share: float) -> None:
    traits = book.traits(np.arange(3000))
    noise = NoiseMaker(replace(SMALL, age_share=share), 256).noise(traits)
    squares = noise.fit**2 + noise.user**2 + noise.age**2 + noise.algorithm**2 + noise.request**2
    assert squares == pytest.approx(1.0)
    changing = traits.retained < 1.0
    achieved = (noise.age[changing] ** 2).sum() / (1.0 - noise.fit[changing] ** 2).sum()
    assert achieved == pytest.approx(share, abs=0.04)


def test_stable_phrases_have_no_noise(book: PhraseBook) -> None:
    traits = book.traits(np.arange(3000))
    noise = NoiseMaker(SMALL, 256).noise(traits)
    stable = traits.retained == 1.0
    assert stable.mean() == pytest.approx(0.26, abs=0.02)
    assert (noise.fit[stable] == 1.0).all()


def test_an_ad_is_a_product_at_one_of_one_to_five_merchants(ads: Ads) -> None:
    offers = np.diff(ads.offer_starts)
    expected = 1.0 / np.arange(1, 6)
    assert np.bincount(offers)[1:] / len(offers) == pytest.approx(expected / expected.sum(), abs=0.015)
    assert (np.repeat(np.arange(len(offers)), offers) == ads.product).all()
    assert len(np.unique(ads.ids)) == len(ads.ids)
    assert len(np.unique(ads.product * len(ads.ids) + ads.campaign)) == len(ads.ids)  # no merchant twice
    first = ads.offer_starts[:-1]
    assert ads.ids[first].tolist() == [product.ad_id for product in ads.products]
    assert ads.bid_usd[first] == pytest.approx([product.bid_usd for product in ads.products])
    suppliers = {product.advertiser for product in ads.products}
    for advertiser in list(suppliers)[:20]:
        own = [row for row, ad in enumerate(ads.products) if ad.advertiser == advertiser]
        by_category = {ads.products[row].category for row in own}
        assert len(np.unique(ads.campaign[first[own]])) == len(by_category)


def test_large_merchants_offer_more_of_what_others_supply(ads: Ads) -> None:
    supplied = np.bincount(ads.campaign[ads.offer_starts[:-1]], minlength=int(ads.campaign.max()) + 1)
    offered = np.bincount(ads.campaign, minlength=len(supplied)) - supplied
    known = supplied > 0
    assert stats.spearmanr(supplied[known], offered[known]).statistic > 0.5


def test_relevance_of_listed_ads_has_its_published_law() -> None:
    """Beta(2.71, 25.43) over its mean, whatever share of a score is appeal."""
    random = np.random.default_rng(2)
    table = NoiseMaker(SMALL, 256).relevance
    law = stats.beta(SMALL.relevance_a, SMALL.relevance_b)
    grid = np.linspace(-6.0, 6.0, table.shape[1])
    for length, share in ((3, 1.0), (11, 1.0), (11, 0.5), (24, 0.2)):
        appeal = random.normal(0.0, np.sqrt(share), (1000, 205))  # four fifths of a pool are on offer
        score = appeal + random.normal(0.0, np.sqrt(1.0 - share), appeal.shape)
        listed = np.take_along_axis(appeal, np.argsort(-score, axis=1)[:, :length], axis=1)
        relevance = np.interp(listed.reshape(-1), grid, table[(length - 1) * 21 + round(share * 20)])
        for part in (0.1, 0.5, 0.9):
            assert np.quantile(relevance, part) == pytest.approx(law.ppf(part) / law.mean(), rel=0.1)


def test_budgets_end_as_published(ads: Ads) -> None:
    day = ad_day(ads, 1, 0)
    campaign = np.unique(ads.campaign, return_index=True)[1]
    by_16 = day.out_ms[campaign] <= 16 * 3_600_000
    assert by_16.mean() == pytest.approx(0.25, abs=0.03)
    assert (by_16 & (day.passes[campaign] == 0)).mean() == pytest.approx(0.114, abs=0.025)


def test_ads_come_and_go(ads: Ads) -> None:
    days = [ad_day(ads, 1, day) for day in range(8)]
    offered = [(day.start_ms <= at * DAY_MS) & (day.stop_ms > at * DAY_MS) for at, day in enumerate(days)]
    gone = np.mean([(now & ~later).mean() / now.mean() for now, later in itertools.pairwise(offered)])
    assert gone == pytest.approx(0.035, abs=0.015)


def test_active_bids_move_as_published(ads: Ads) -> None:
    first, second = ad_day(ads, 1, 0), ad_day(ads, 1, 1)
    change = np.log(second.bid_usd / first.bid_usd)
    assert first.active.mean() == pytest.approx(0.2, abs=0.01)
    assert change[first.active].std() == pytest.approx(0.245, abs=0.02)
    assert (change[~first.active] == 0).mean() > 0.9
    market = np.log(np.concatenate([ad_day(ads, 1, day).market for day in range(-3, 27)]))
    assert market.std() == pytest.approx(0.146, abs=0.02)
    assert np.corrcoef(market[1:], market[:-1])[0, 1] == pytest.approx(0.70, abs=0.08)


def test_fit_is_standard_normal_and_follows_text_and_value(ads: Ads, book: PhraseBook) -> None:
    some = np.arange(0, 450_000, 250)
    traits = book.traits(some[book.traits(some).base >= 0])
    pools = PoolMaker(SMALL, 1, ads, book).pools(traits, np.ones(len(traits.id), np.bool_))
    fit = pools.fit.reshape(-1).astype(np.float64)
    assert fit.mean() == pytest.approx(0.0, abs=0.05)
    assert fit.std() == pytest.approx(1.0, abs=0.05)
    value = ads.value[pools.ads.reshape(-1)]
    assert stats.spearmanr(fit, value).statistic == pytest.approx(0.4, abs=0.05)
    shares = _text_shares(ads, book, traits, pools.ads)
    matching = shares > 0
    assert fit[matching].mean() > fit[~matching].mean() + 0.5
    assert all(len(np.unique(row)) == len(row) for row in pools.ads)


def _text_shares(
    ads: Ads, book: PhraseBook, traits: Traits, rows: np.ndarray[tuple[int, int], np.dtype[np.int32]]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The share of the phrase's words in each title, computed plainly."""
    words = {number: word for word, number in ads.vocabulary.items()}
    shares = []
    for base, listed in zip(traits.base.tolist(), rows.tolist(), strict=True):
        span = slice(book.base_words.starts[base], book.base_words.starts[base + 1])
        wanted = {words[number] for number in book.base_words.numbers[span].tolist()}
        for ad in listed:
            title = ads.products[ads.product[ad]].title.casefold()
            shares.append(sum(word in title for word in wanted) / max(len(wanted), 1))
    return np.array(shares)


def test_texts_are_all_different_and_40_percent_web(book: PhraseBook) -> None:
    ids = np.arange(5000)
    texts = book.write_texts(ids)
    assert len(set(texts)) == 5000
    assert (book.traits(ids).base < 0).mean() == pytest.approx(0.4, abs=0.01)


def test_throttle_levels_know_only_the_days_before() -> None:
    history = History(3)
    history.start_day()
    history.add(np.array([0, 0, 1]), np.zeros(3, np.int64), np.zeros(3), np.array([1.0, 1.0, 0.0]))
    phrase = np.tile(np.arange(3), 20_000)
    estimates = history.estimate(1, 0, phrase)
    means = [np.median(estimates[phrase == at]) for at in range(3)]
    assert means[0] > means[2]  # a phrase that earned, and an unknown one
    levels = ThrottleScale(estimates).levels(estimates)
    assert (levels == 0).mean() == pytest.approx(0.355, abs=0.01)
    assert levels.max() <= 200
    assert (np.diff(levels[np.argsort(estimates)]) >= 0).all()


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_out_of_bounds_is_refused(share: float) -> None:
    with pytest.raises(UserError, match=r"age_share: .* is outside 0\.\.1"):
        Profile(age_share=share)
