"""`frugalads log generate`: what a log holds, that a seed decides it, and how faulty arguments are met."""

from __future__ import annotations

import itertools
import lzma
import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loadtest.request_log.generator.auction import SHOWN
from loadtest.request_log.generator.changes import RESERVE_USD
from loadtest.request_log.generator.generate import generate_log
from loadtest.request_log.generator.profiles import PROFILES
from loadtest.request_log.generator.randomness import TAKES_PART, click_uniform, uniform
from loadtest.request_log.schema import DAY_MS, RequestLog
from loadtest.request_log.storage import open_log, read_log
from loadtest.sample import write_sample
from services.catalogue.importing import import_catalogue
from services.cli import main
from services.runtime.errors import UserError

SMALL = replace(PROFILES["ci"], requests_per_day=6_000, universe=40_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two days, seed 3."""
    folder = tmp_path_factory.mktemp("log") / "log"
    generate_log(folder, SMALL, days=2, seed=3)
    return folder


@pytest.fixture(scope="module")
def log(folder: Path) -> RequestLog:
    return read_log(folder)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("trace") / "shop.trace.xz"
    keys = np.random.default_rng(1).zipf(1.3, 8_000) % 5_000
    file.write_bytes(lzma.compress(keys.astype(">i8").tobytes()))
    return file


def test_a_log_holds_its_days_and_says_how_it_was_made(folder: Path, log: RequestLog) -> None:
    assert len(log.time_ms) == 2 * 6_000
    assert np.bincount(log.time_ms // DAY_MS).tolist() == [6_000, 6_000]
    meta = open_log(folder).meta
    assert (meta["seed"], meta["days"], meta["stream"]) == (3, 2, "drawn")
    assert meta["constants"]["age_share"] == SMALL.age_share
    assert set(log.phrase.tolist()) == set(range(len(log.phrases)))


def test_the_same_seed_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    generate_log(tmp_path / "again", SMALL, days=2, seed=3)
    for file in folder.iterdir():
        if file.suffix == ".parquet":
            assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()
    assert open_log(tmp_path / "again").fingerprint == open_log(folder).fingerprint


def test_another_seed_gives_another_log(log: RequestLog, tmp_path: Path) -> None:
    generate_log(tmp_path / "other", SMALL, days=2, seed=4)
    other = read_log(tmp_path / "other")
    assert (other.time_ms != log.time_ms).any()
    assert (other.cost != log.cost).any()


def test_further_days_leave_the_first_as_it_was(log: RequestLog, tmp_path: Path) -> None:
    generate_log(tmp_path / "one", SMALL, days=1, seed=3)
    one = read_log(tmp_path / "one")
    listed = one.offsets[-1]
    for name in ("time_ms", "location", "gender", "age", "device", "cost", "throttle_level"):
        assert (getattr(one, name) == getattr(log, name)[:6_000]).all(), name
    for name in ("ads", "click_probability", "bid_usd", "charge_usd", "shown_probability", "clicked"):
        assert (getattr(one, name) == getattr(log, name)[:listed]).all(), name
    same = np.unique(np.stack([one.phrase, log.phrase[:6_000]]), axis=1)
    assert same.shape[1] == len(one.phrases)
    assert (one.prior_requests[same[0]] == log.prior_requests[same[1]]).all()


def test_phrases_and_their_lists_go_on_from_day_to_day(log: RequestLog) -> None:
    """The last list of a phrase today and its first tomorrow, beside that of another phrase."""
    listing = np.flatnonzero(np.diff(log.offsets) > 0)
    today = {int(log.phrase[at]): at for at in listing if log.time_ms[at] < DAY_MS}
    tomorrow = {int(log.phrase[at]): at for at in listing[::-1] if log.time_ms[at] >= DAY_MS}
    both = sorted(today.keys() & tomorrow.keys())
    assert len(both) > 100
    lists = [set(log.ads[log.offsets[at] : log.offsets[at + 1]].tolist()) for at in range(len(log.phrase))]
    alike = [len(lists[today[p]] & lists[tomorrow[p]]) / len(lists[tomorrow[p]]) for p in both]
    pairs = itertools.pairwise(both)
    apart = [len(lists[today[p]] & lists[tomorrow[q]]) / len(lists[tomorrow[q]]) for p, q in pairs]
    assert np.mean(alike) > 0.25 > 10 * np.mean(apart)


def test_clicks_are_those_of_the_documented_draws(log: RequestLog) -> None:
    row = np.repeat(np.arange(len(log.time_ms)), np.diff(log.offsets))
    shown = np.flatnonzero(log.shown_probability > 0)
    draws = [click_uniform(3, int(row[at]), int(log.ad_ids[log.ads[at]])) for at in shown.tolist()]
    assert (log.clicked[shown] == (np.array(draws) < log.shown_probability[shown])).all()
    assert log.clicked[shown].any()
    assert not log.clicked[log.shown_probability == 0].any()


def test_lists_auctions_and_costs_are_in_order(log: RequestLog) -> None:
    lengths = np.diff(log.offsets)
    assert ((log.cost > 0) == (lengths > 0)).all()
    row = np.repeat(np.arange(len(lengths)), lengths)
    inside = row[1:] == row[:-1]
    assert (np.diff(log.click_probability)[inside] <= 0).all()
    shown = log.charge_usd > 0
    ids = log.ad_ids[log.ads].tolist()
    drawn = [uniform(3, TAKES_PART, *pair) for pair in zip(row.tolist(), ids, strict=True)]
    takes_part = np.array(drawn) < SMALL.takes_part
    assert takes_part.mean() == pytest.approx(SMALL.takes_part, abs=0.02)
    assert not shown[~takes_part].any()
    assert (np.bincount(row, shown) == np.minimum(np.bincount(row, takes_part), SHOWN)).all()
    assert (log.bid_usd >= np.float32(RESERVE_USD)).all()
    assert (log.charge_usd[shown] >= np.float32(RESERVE_USD)).all()
    assert (log.charge_usd <= log.bid_usd).all()
    scores = log.bid_usd * log.click_probability
    for at in np.flatnonzero(np.bincount(row, takes_part) > SHOWN)[:200].tolist():
        listed = slice(log.offsets[at], log.offsets[at + 1])
        left_out = takes_part[listed] & ~shown[listed]
        assert scores[listed][shown[listed]].min() >= scores[listed][left_out].max()


def test_phrases_have_a_history_of_three_days(log: RequestLog) -> None:
    assert 0 < (log.prior_requests == 0).mean() < 1
    assert log.prior_requests.sum() < 3 * 6_000
    assert (log.prior_clicks[log.prior_requests == 0] == 0).all()
    earned = log.prior_revenue_usd > 0
    assert (earned == (log.prior_clicks > 0)).all()
    assert earned.any()


def test_a_log_of_a_trace_and_a_catalogue(trace: Path, tmp_path: Path) -> None:
    write_sample(tmp_path / "s.jsonl", ads=1_500, seed=9)
    import_catalogue(tmp_path / "s.jsonl", tmp_path / "catalogue")
    summary = generate_log(tmp_path / "log", SMALL, key_stream=trace, catalogue=tmp_path / "catalogue")
    log = read_log(tmp_path / "log")
    own = np.arange(100_001, 101_501)
    assert 2 * len(own) < len(log.ad_ids) < 2.4 * len(own)  # up to five merchants a product
    assert np.isin(own, log.ad_ids).all()
    assert open_log(tmp_path / "log").meta["stream"] == "shop"
    raw = np.frombuffer(lzma.decompress(trace.read_bytes()), ">i8")[:6_000].astype(np.int64)
    pairs = np.unique(np.stack([raw, log.phrase]), axis=1)
    assert pairs.shape[1] == summary.phrases == len(np.unique(raw))


@pytest.mark.parametrize("days", [0, 31])
def test_a_number_of_days_out_of_bounds_is_refused(days: int, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"days: {days} is outside 1\.\.30"):
        generate_log(tmp_path / "log", SMALL, days=days)


def test_a_folder_that_holds_something_else_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(UserError, match=r"precious|replace"):
        generate_log(tmp_path, "bing")
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_a_catalogue_of_few_ads_is_refused(tmp_path: Path) -> None:
    write_sample(tmp_path / "s.jsonl", ads=500, seed=9)
    import_catalogue(tmp_path / "s.jsonl", tmp_path / "catalogue")
    with pytest.raises(UserError, match="500 ads, a log takes at least 1000"):
        generate_log(tmp_path / "log", SMALL, catalogue=tmp_path / "catalogue")


def test_a_profile_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"profile: .*bong.* is none of bing, ci"):
        generate_log(tmp_path / "log", "bong")


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, old[1]))
    try:
        with pytest.raises(UserError, match=r"log: cannot be written: "):
            generate_log(tmp_path / "log", SMALL)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert not list(tmp_path.iterdir())


def test_the_command_writes_a_log_and_says_what_it_holds(
    tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PROFILES, "ci", SMALL)
    words = ["log", "generate", "--profile", "ci", "--days", "1", "--seed", "2", "--key-stream", str(trace)]
    assert main([*words, "--out", str(tmp_path / "log")]) == 0
    out, progress = capsys.readouterr()
    assert out.startswith("6,000 requests of ")
    assert str(tmp_path / "log") in out
    assert "24000 of 24000" in progress
    assert len(read_log(tmp_path / "log").time_ms) == 6_000


def test_the_command_names_a_damaged_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.xz").write_bytes(b"not xz")
    words = ["log", "generate", "--key-stream", str(tmp_path / "t.xz"), "--out", str(tmp_path / "log")]
    assert main(words) != 0
    assert "t.xz: not a whole xz file" in capsys.readouterr().err
    assert not (tmp_path / "log").exists()
