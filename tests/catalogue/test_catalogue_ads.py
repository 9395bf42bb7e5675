"""The text of an ad, modelled bids, and what the commands print."""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path

import pytest

from services.catalogue.bids import DEFAULT_RESERVE_USD, modelled_bid_usd
from services.catalogue.importing import ImportSummary
from services.catalogue.schema import Ad, ad_text
from services.commands import catalogue, log
from services.scoring.config import ScoringConfig


def test_the_text_adds_what_the_title_lacks() -> None:
    assert (
        ad_text("Bike Lock", "Velvetside", "Bicycles", "Two keys.")
        == "Bike Lock. Velvetside. Bicycles. Two keys."
    )
    assert ad_text("HP toner CE410A", "HP", "Toner", "ce410a") == "HP toner CE410A"
    assert Ad(ad_id=1, title="Lock", advertiser="A & B", bid_usd=1.0).text == "Lock. A & B"


def test_the_text_is_bounded_in_words_and_characters() -> None:
    assert ad_text("t", "", "", "w " * 500).split() == ["t."] + ["w"] * 59
    assert len(ad_text("字" * 300, "", "", "語" * 2000)) == 480


def test_a_modelled_bid_depends_on_the_ad_and_its_category_alone() -> None:
    assert modelled_bid_usd(7, "Toner", "A") == modelled_bid_usd(7, "toner", "B") == 2.97
    assert modelled_bid_usd(7, "", "A") != modelled_bid_usd(7, "", "B")
    assert modelled_bid_usd(8, "Toner", "A") != modelled_bid_usd(7, "Toner", "A")


def test_modelled_bids_follow_the_published_law() -> None:
    bids = [modelled_bid_usd(at, f"category {at % 500}", "A") for at in range(1, 20_001)]
    assert min(bids) == DEFAULT_RESERVE_USD == ScoringConfig(click_secret="x" * 16).reserve_usd
    assert max(bids) == 50.0
    logs = [math.log(bid) for bid in bids]
    assert statistics.median(logs) == pytest.approx(0.35, abs=0.15)
    # Capping at 50 dollars takes a little off the published spread, sqrt(1.43^2 + 0.71^2) = 1.60.
    assert statistics.stdev(logs) == pytest.approx(1.57, abs=0.08)
    within = [statistics.stdev(logs[at::500]) for at in range(500)]
    assert statistics.mean(within) == pytest.approx(0.69, abs=0.04)


def test_the_summary_says_what_was_modelled_cut_and_ignored() -> None:
    names = tuple(f"column{at}" for at in range(15))
    text = catalogue.describe(ImportSummary(200, 3, 1, 2, 50, 6, 4, 5, names))
    assert "200 ads of 3 advertisers (1 with a daily budget) in 2 categories" in text
    assert "WARNING: 50 bids (25%) are MODELLED" in text
    assert "6 bids are below $0.05, the default reserve of scoring, and will not be shown" in text
    assert "4 titles were cut" in text
    assert "5 descriptions were cut" in text
    assert "column11 and 3 more" in text
    quiet = catalogue.describe(ImportSummary(1, 1, 0, 0, 0, 0, 0, 0, ()))
    assert quiet == "1 ad of 1 advertiser (0 with a daily budget) in 0 categories"
    single = catalogue.describe(ImportSummary(1, 1, 0, 1, 1, 1, 1, 1, ()))
    for words in (
        "in 1 category",
        "1 bid (100%) is MODELLED",
        "1 bid is below",
        "1 title was",
        "1 description was",
    ):
        assert words in single


def test_the_commands_lead_from_a_sample_to_queries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    subparsers = parser.add_subparsers()
    catalogue.register(subparsers)
    log.register(subparsers)

    def run(*argv: str) -> str:
        args = parser.parse_args(argv)
        assert args.run(args) == 0
        return capsys.readouterr().out

    sample, folder, queries = tmp_path / "s.jsonl", tmp_path / "catalogue", tmp_path / "q.txt"
    assert "300 ads (seed 3)" in run(
        "catalogue", "sample", "--ads", "300", "--seed", "3", "--out", str(sample)
    )
    imported = run("catalogue", "import", str(sample), "--out", str(folder))
    assert "300 ads of 30 advertisers" in imported
    assert imported.endswith(f"next: frugalads index build --catalogue {folder}\n")
    printed = run("log", "queries", "--catalogue", str(folder), "--out", str(queries), "--requests", "50")
    assert printed.startswith("50 requests of ")
    assert len(queries.read_text().splitlines()) == 50
