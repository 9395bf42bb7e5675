"""Training of refresh models on small logs, their thresholds, and the bundle."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from simulator_logs import random_log

from loadtest.request_log.schema import RequestLog
from loadtest.simulator.traffic import traffic
from models.refresh.recipes import OURS, RECIPES, Recipe
from models.refresh.threshold import balanced, published, separation
from models.refresh.training import KIND, Trained, train_refresh, write_refresh
from services.core.refresh import features
from services.core.refresh.replay import training_rows
from services.runtime.bundles import open_bundle
from services.runtime.errors import BundleError, UserError
from services.runtime.forests import open_forest

REQUESTS = 4_000


def log(seed: int) -> RequestLog:
    """Of phrases of which some are worth a hundred times as much as others."""
    made = random_log(seed, requests=REQUESTS, phrases=60, ads=40)
    worth = np.geomspace(0.1, 10, 60, dtype=np.float32)[made.phrase]
    return replace(made, charge_usd=made.charge_usd * np.repeat(worth, np.diff(made.offsets)))


@cache
def trained(recipe: Recipe) -> Trained:
    return train_refresh(traffic(log(4)), REQUESTS, recipe, 1)


def test_predictions_follow_what_serving_loses() -> None:
    rows = training_rows(
        traffic(log(8)), REQUESTS, published=False, by_clicks=False, merge_ads=OURS.merge_ads, seed=2
    )
    predicted = trained(OURS).forest.predict(rows.features.astype(np.float64))
    is_high = predicted > np.median(predicted)
    assert rows.loss_usd[is_high].mean() > 2 * rows.loss_usd[~is_high].mean()


def test_the_published_recipe_serves_at_a_threshold_and_ours_at_a_price() -> None:
    rules = {name: trained(recipe).rule(0.2) for name, recipe in RECIPES.items()}
    assert np.isnan(rules["ours"].threshold_usd)
    assert rules["ours"].probe_share > 0
    assert np.isfinite(rules["www18"].threshold_usd)
    assert (rules["www18"].published, rules["ours"].published) == (True, False)


def test_the_same_log_gives_the_same_model() -> None:
    assert train_refresh(traffic(log(4)), REQUESTS, OURS, 1).model == trained(OURS).model


def test_more_rows_than_the_recipe_takes_are_thinned() -> None:
    assert trained(replace(OURS, rows=1_500)).rows == 1_500
    assert trained(OURS).rows > 1_500


def test_a_log_that_is_too_short_is_refused() -> None:
    with pytest.raises(UserError, match="training rows"):
        train_refresh(traffic(log(4)), 500, OURS, 1)


def test_the_bundle_opens_for_whoever_computes_its_features(tmp_path: Path) -> None:
    folder = tmp_path / "refresh"
    write_refresh(folder, trained(OURS), {"recipe": "ours"})
    loaded = open_forest(folder, KIND, feature_names=features.OURS)
    rows = trained(OURS).golden_rows
    np.testing.assert_array_equal(loaded.forest.predict(rows), trained(OURS).forest.predict(rows))
    meta = open_bundle(folder, KIND, max_bytes=1 << 24).meta
    assert {name: meta[name] for name in ("recipe", "floor", "probe_share", "merge_ads")} == {
        "recipe": "ours",
        "floor": trained(OURS).rule(0.2).floor,
        "probe_share": OURS.probe_share,
        "merge_ads": OURS.merge_ads,
    }
    with pytest.raises(BundleError, match="feature 0"):
        open_forest(folder, KIND, feature_names=features.WWW18)


def test_the_balanced_threshold_separates_what_can_be_separated() -> None:
    random = np.random.default_rng(1)
    loss = np.where(random.random(20_000) < 0.03, random.random(20_000), 0.0)
    predicted = np.where(loss > 0, 1.0, 0.0) + random.normal(0, 0.5, len(loss))
    found = balanced(predicted, loss)
    assert found.none_below == pytest.approx(found.some_above, abs=0.02)
    assert found.none_below == pytest.approx(0.841, abs=0.02)  # one standard deviation from each mean
    assert separation(predicted, loss, -10.0).none_below == 0.0
    assert published(predicted, loss).none_below == pytest.approx(0.8, abs=0.001)
    assert published(predicted, loss).some_above > found.some_above
