"""The sample catalogue: sizes, law of bids, texts, and the same bytes for the same seed."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from loadtest.sample import sample_ads, write_sample
from loadtest.sample_draws import Draws, Wheel, zipf
from loadtest.sample_vocabulary import load_vocabulary
from services.catalogue.bundle import read_catalogue
from services.catalogue.importing import import_catalogue
from services.runtime.errors import UserError


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return list(sample_ads(6000, 1))


def test_the_sample_has_the_promised_sizes(rows: list[dict[str, Any]]) -> None:
    categories = Counter(row["category"] for row in rows)
    advertisers = Counter(row["advertiser"] for row in rows)
    assert len(rows) == 6000
    assert len(categories) == 72
    assert min(categories.values()) >= 20
    assert len(advertisers) == 260
    counts = sorted(advertisers.values(), reverse=True)
    assert sum(counts[:26]) > 0.4 * len(rows)
    assert statistics.median(counts) < 15
    titles = Counter(row["title"] for row in rows)
    assert sum(count - 1 for count in titles.values()) <= 0.05 * len(rows)


def test_the_sample_imports_without_a_modelled_bid(tmp_path: Path) -> None:
    write_sample(tmp_path / "s.jsonl", ads=500, seed=2)
    summary = import_catalogue(tmp_path / "s.jsonl", tmp_path / "out")
    assert (summary.ads, summary.modelled_bids, summary.ignored_columns) == (500, 0, ())
    assert 0 < summary.advertisers_with_budget < summary.advertisers
    ads = read_catalogue(tmp_path / "out")
    assert any(ad.locations for ad in ads)
    assert sum(not (ad.locations or ad.genders or ad.age_bands or ad.devices) for ad in ads) > 250


@pytest.mark.parametrize(
    "query",
    ["running shoes", "car insurance", "laser printer toner", "plumber", "laptop", "online course", "hotel"],
)
def test_plain_queries_have_ads_that_fit(rows: list[dict[str, Any]], query: str) -> None:
    fitting = [row for row in rows if query in row["title"].lower()]
    assert len(fitting) >= 5
    assert len({row["advertiser"] for row in fitting}) >= 2


def test_bids_follow_the_law(rows: list[dict[str, Any]]) -> None:
    logs = [math.log(row["bid_usd"]) for row in rows]
    assert statistics.stdev(logs) == pytest.approx(1.6, abs=0.15)
    by_category: dict[str, list[float]] = {}
    for row in rows:
        by_category.setdefault(row["category"], []).append(math.log(row["bid_usd"]))
    means = {name: statistics.mean(values) for name, values in by_category.items()}
    assert statistics.stdev(means.values()) == pytest.approx(1.4, abs=0.15)
    assert means["Car Insurance"] > means["Laptops"] > means["Books and Music"]


def test_budgets_are_heavy_tailed_and_one_per_advertiser(rows: list[dict[str, Any]]) -> None:
    budgets: dict[str, set[float | None]] = {}
    for row in rows:
        budgets.setdefault(row["advertiser"], set()).add(row.get("daily_budget_usd"))
    assert all(len(values) == 1 for values in budgets.values())
    amounts = sorted(value for values in budgets.values() for value in values if value is not None)
    assert 0.5 < len(amounts) / len(budgets) < 0.7
    assert amounts[-1] > 10 * statistics.median(amounts)


def test_local_ads_aim_at_the_region_of_their_city(rows: list[dict[str, Any]]) -> None:
    vocabulary = load_vocabulary()
    plumbers = [row for row in rows if row["category"] == "Plumbers"]
    aimed = [row for row in plumbers if "locations" in row]
    assert len(aimed) > len(plumbers) / 2
    for row in aimed:
        named = {city.region for city in vocabulary.cities if city.name in row["title"]}
        assert set(row["locations"]) <= named


def test_every_offer_has_words_to_vary() -> None:
    for category in load_vocabulary().categories:
        for offer in category.offers:
            words = f"{category.name}, {offer.noun}"
            assert len(offer.adjectives) >= 2, words
            assert len(offer.features) >= 2, words
            assert offer.audiences, words
            assert offer.variants if category.sector.kind == "product" else offer.prices, words


def test_a_seed_decides_every_byte_in_every_process(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from loadtest.sample import write_sample; "
        "write_sample(Path(sys.argv[1]), 300, 5)"
    )
    for name in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": name}
        subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / f"{name}.jsonl")], check=True, env=environment
        )
    first = (tmp_path / "1.jsonl").read_bytes()
    assert first == (tmp_path / "2.jsonl").read_bytes()
    assert json.loads(first.splitlines()[0])["ad_id"] == 100_001
    write_sample(tmp_path / "other.jsonl", 300, 6)
    assert first != (tmp_path / "other.jsonl").read_bytes()


def test_draws_are_pinned_for_all_python_versions() -> None:
    draws = Draws(1)
    assert [draws.below(1000) for _ in range(5)] == [134, 847, 763, 255, 495]
    assert draws.shuffled("abcdef") == ["e", "d", "a", "b", "c", "f"]
    assert draws.normal() == pytest.approx(-0.16933374340381158)
    wheel = Wheel("xyz", zipf(3, 1.0))
    assert Counter(draws.weighted(wheel) for _ in range(1100))["x"] == pytest.approx(600, abs=50)


def test_limits_of_the_sample(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--ads: 0 is outside 1\.\.1000000"):
        write_sample(tmp_path / "s.jsonl", ads=0)
    with pytest.raises(UserError, match=r"must end in \.jsonl"):
        write_sample(tmp_path / "s.csv")
    write_sample(tmp_path / "s.jsonl", ads=1)
    assert len((tmp_path / "s.jsonl").read_text().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["s.jsonl"]
