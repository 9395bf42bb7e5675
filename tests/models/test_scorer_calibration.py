"""The similarity baseline: fit, figures, file, and the experiment on real rated pairs."""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.scorer.bundle import Scorer
from models.scorer.calibration import DEFAULT, MODELLED_RATES, Calibration, area_under_curve, evaluate, fit
from models.scorer.ratings import Rating, calibrate, is_held_out, read_ratings
from services.catalogue.schema import ad_text
from services.commands import model
from services.runtime.errors import UserError


def test_the_fit_finds_the_curve_that_made_the_rates() -> None:
    truth = Calibration(-5.5, 3.5, "")
    similarities = np.linspace(-0.1, 0.9, 500)
    fitted = fit(similarities, truth.probabilities(similarities).astype(np.float64), "synthetic")
    assert fitted.intercept == pytest.approx(-5.5, abs=0.02)
    assert fitted.slope == pytest.approx(3.5, abs=0.05)


def test_the_fit_is_where_the_likelihood_is_flat() -> None:
    rng = np.random.default_rng(1)
    similarities, rates = rng.uniform(0, 1, 300), rng.uniform(0, 0.05, 300)
    rates += 0.02 * similarities
    fitted = fit(similarities, rates, "")
    predicted = fitted.probabilities(similarities).astype(np.float64)
    assert (rates - predicted).sum() == pytest.approx(0, abs=1e-5)
    assert ((rates - predicted) * similarities).sum() == pytest.approx(1e-3 * fitted.slope, abs=1e-5)


def test_separated_rates_give_a_finite_slope() -> None:
    assert fit(np.array([0.1, 0.2, 0.8, 0.9]), np.array([0.0, 0.0, 1.0, 1.0]), "").slope < 1000


@pytest.mark.parametrize(
    ("similarities", "rates", "message"),
    [([0.1, 0.9], [0.04, 0.01], "do not rise"), ([0.5], [0.01], "1 pairs are too few")],
)
def test_pairs_that_allow_no_fit_are_refused(
    similarities: list[float], rates: list[float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fit(np.array(similarities), np.array(rates), "")


@given(st.lists(st.floats(-1.0, 1.0, width=32), min_size=2, max_size=50))
def test_probabilities_are_probabilities_and_rise_with_similarity(values: list[float]) -> None:
    similarities = np.sort(np.array(values, np.float32))
    for calibration in (DEFAULT, Calibration(-900.0, 999.0, ""), Calibration(900.0, 1.0, "")):
        probabilities = calibration.probabilities(similarities)
        assert probabilities.dtype == np.float32
        assert ((probabilities >= 0) & (probabilities <= 1)).all()
        assert (np.diff(probabilities) >= 0).all()


def test_the_file_keeps_every_bit() -> None:
    calibration = Calibration(-5.123456789012345, 3.987654321098765, "somewhere")
    assert Calibration.from_json(calibration.to_json()) == calibration


@pytest.mark.parametrize(
    "text",
    ["[]", "{", '{"kind": "x"}']
    + [
        json.dumps({"kind": "similarity-baseline", "intercept": a, "slope": b})
        for a, b in [
            (None, 1.0),
            ("1", 1.0),
            (-5.0, 0.0),
            (-5.0, 1e9),
            (float("nan"), 1.0),
            (-5.0, float("inf")),
            (True, 1.0),
        ]
    ],
)
def test_a_file_that_is_no_calibrator_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Calibration.from_json(text)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40))
def test_area_under_curve_counts_ordered_pairs(points: list[tuple[int, bool]]) -> None:
    scores = np.array([score for score, _ in points], float)
    positive = np.array([flag for _, flag in points])
    pairs = [(p, n) for p in scores[positive] for n in scores[~positive]]
    area = area_under_curve(scores, positive)
    if pairs:
        assert area == pytest.approx(
            sum(1.0 if p > n else 0.5 if p == n else 0.0 for p, n in pairs) / len(pairs)
        )
    else:
        assert np.isnan(area)


def test_the_figures_of_a_perfect_calibration() -> None:
    ratings = np.array([0, 1, 2, 3] * 25)
    similarities = np.log(np.array(MODELLED_RATES)[ratings] / (1 - np.array(MODELLED_RATES)[ratings])) / 10
    measured = evaluate(Calibration(0.0, 10.0, ""), similarities, ratings, queries=4)
    assert measured.ece == pytest.approx(0, abs=1e-6)
    assert measured.log_loss == pytest.approx(measured.least_log_loss, abs=1e-6)
    assert measured.log_loss < measured.constant_log_loss
    assert (measured.pairs, measured.queries, measured.relevant, measured.auc) == (100, 4, 50, 1.0)


def write_csv(
    path: Path, rows: list[list[object]], header: tuple[str, ...] = ("query", "docid", "rating")
) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([list(header), *rows])
    return path


def test_ratings_are_read(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "r.csv", [["usb, hub", 12, 3], ["laptop", " 7 ", 0]])
    assert read_ratings(path) == [Rating("usb, hub", 12, 3), Rating("laptop", 7, 0)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (["laptop", 1, 4], r"line 3: rating '4' is not a whole number in 0\.\.3"),
        (["laptop", 1, ""], "line 3: rating ''"),
        (["laptop", "x1", 1], "line 3: docid 'x1'"),
        (["laptop", 2**63, 1], "line 3: docid"),
        (["laptop", "1" * 5000, 1], "line 3: docid '1111"),
        (["laptop", -1, 1], "line 3: docid '-1'"),
        (["laptop", "١", 1], "line 3: docid"),
        (["", 1, 1], "line 3: query is empty"),
        (["laptop"], "line 3: docid ''"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, row: list[object], message: str) -> None:
    path = write_csv(tmp_path / "r.csv", [["laptop", 1, 3], row])
    with pytest.raises(UserError, match=message):
        read_ratings(path)


def test_a_missing_column_or_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no column rating; it needs query, docid, rating"):
        read_ratings(write_csv(tmp_path / "r.csv", [], ("query", "docid", "grade")))
    with pytest.raises(UserError, match="unreadable"):
        read_ratings(tmp_path / "none.csv")


def test_ratings_of_unknown_ads_only_are_an_error(scorer: Scorer) -> None:
    with pytest.raises(UserError, match="none of the 1 rated ads is in the catalogue"):
        calibrate(scorer.encoder, [Rating("laptop", 1, 3)], {}, "test")


def test_one_half_alone_is_an_error(scorer: Scorer) -> None:
    with pytest.raises(UserError, match="too few"):
        calibrate(scorer.encoder, [Rating("laptop", 1, 3)] * 5, {1: "a laptop"}, "test")


@pytest.mark.data
def test_similarity_separates_relevant_products_from_others(scorer: Scorer, data_folder: Path) -> None:
    """A quarter of the real rated pairs: the shipped calibration is that of all of them, by the same code."""
    ratings = read_ratings(data_folder / "icecat" / "Broad_Query_Set_rated.csv")[::4]
    wanted = {rating.ad_id for rating in ratings}
    texts: dict[int, str] = {}
    with gzip.open(data_folder / "icecat" / "products.jsonl.gz", "rt", encoding="utf-8") as stream:
        for product in map(json.loads, stream):
            if int(product["id"]) in wanted:
                description = product["short_description"] or ""
                kind = product["attrs"].get("product_type", "")
                texts[int(product["id"])] = ad_text(
                    product["title"], product["supplier"] or "", kind, description
                )
    fitted, measured = calibrate(scorer.encoder, ratings, texts, "Icecat")
    print(fitted, measured)
    assert measured.auc > 0.85
    assert measured.log_loss < measured.constant_log_loss
    assert measured.ece < 0.01
    assert fitted.intercept == pytest.approx(DEFAULT.intercept, abs=0.5)
    assert fitted.slope == pytest.approx(DEFAULT.slope, abs=1.0)


def test_the_halves_are_of_queries() -> None:
    flags = [is_held_out(f"query {number}") for number in range(1000)]
    assert 400 < sum(flags) < 600
    assert flags == [is_held_out(f"query {number}") for number in range(1000)]


def run(*argv: object) -> int:
    parser = argparse.ArgumentParser()
    model.register(parser.add_subparsers())
    args = parser.parse_args([str(arg) for arg in argv])
    code: int = args.run(args)
    return code


def test_the_commands_build_and_calibrate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from models.scorer.bundle import load_scorer
    from services.catalogue.importing import import_catalogue

    folder = tmp_path / "scorer"
    assert run("model", "build", "--out", folder) == 0
    assert "INT8, 384 numbers, 128 tokens" in capsys.readouterr().out
    before = load_scorer(folder, threads=1)

    kinds = ("laser printer", "garden hose", "running shoes", "coffee machine", "car tyre", "desk lamp")
    ads = tmp_path / "ads.jsonl"
    ads.write_text(
        "".join(
            json.dumps({"ad_id": i, "title": f"{kind} on offer", "advertiser": "shop", "bid_usd": 0.5}) + "\n"
            for i, kind in enumerate(kinds, start=1)
        )
    )
    import_catalogue(ads, tmp_path / "catalogue")
    pairs: list[list[object]] = [
        [query, ad_id, 3 if query == kind else 0]
        for query in kinds
        for ad_id, kind in enumerate(kinds, start=1)
    ]
    ratings = write_csv(tmp_path / "r.csv", [*pairs, ["laptop", 99, 1]])

    arguments = (
        "model",
        "calibrate",
        "--catalogue",
        tmp_path / "catalogue",
        "--ratings",
        ratings,
        "--model",
        folder,
    )
    assert run(*arguments, "--out", tmp_path / "calibrator.json") == 0
    assert load_scorer(folder, threads=1).scorer_fingerprint == before.scorer_fingerprint
    assert run(*arguments) == 0
    out = capsys.readouterr().out
    assert "left out: 1 of 37 pairs" in out
    assert "AUC of the" in out
    after = load_scorer(folder, threads=1)
    assert after.calibration == Calibration.from_json((tmp_path / "calibrator.json").read_text())
    assert after.encoder_fingerprint == before.encoder_fingerprint
