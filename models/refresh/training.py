"""From a request log to a refresh model: replay, labels, XGBoost, threshold, bundle.

The dense label has a heavy tail: a few phrases lose a hundred times what computing costs, and squared errors
would be about them alone, while decisions are made where loss and price are near each other. So for a priced
rule dense labels are cut at `MOST_WORTH` times the price of computing, far above any doubt, and a row weighs
1 / that price: an error counts by what it costs in terms of the decision. Clicks are too rare to be cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xgboost
from numpy.typing import NDArray

from models.refresh.recipes import FLOOR, Recipe
from models.refresh.threshold import Separation, balanced, published
from services.core.refresh.features import OURS, WWW18
from services.core.refresh.predicted import Rule
from services.core.refresh.replay import Rows, Traffic, training_rows
from services.core.trees import Forest, parse_xgboost
from services.runtime.errors import UserError
from services.runtime.forests import write_forest

KIND = "refresh"
MIN_ROWS = 1_000
GOLDEN_ROWS = 64
TUNING_MS = 3_600_000
TREES, DEPTH = 100, 6
TRAINING_COST_RATIO = 0.2
"""At which labels are cut and weighed; the model serves at others too."""
MOST_WORTH = 30.0

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Trained:
    """A model with what it was trained on.

    threshold, balance: of a rule that is not priced, and how well the model separates, on the last hour.
    rows, positives: training rows, and those with a loss.
    golden_rows, golden: features, and XGBoost's own predictions of them.
    """

    recipe: Recipe
    model: bytes
    forest: Forest
    threshold: Separation | None
    balance: Separation | None
    rows: int
    positives: int
    golden_rows: Doubles
    golden: Floats

    def rule(self, cost_ratio: float) -> Rule:
        """The rule where computing every list costs this in terms of the revenue."""
        threshold_usd = np.nan if self.threshold is None else self.threshold.threshold_usd
        return Rule(cost_ratio, FLOOR, self.recipe.probe_share, threshold_usd, self.recipe.published)


def train_refresh(traffic: Traffic, last: int, recipe: Recipe, seed: int) -> Trained:
    """Trains on the first `last` requests of a log.

    Raises UserError where these give fewer than 1,000 rows, no row with a loss, or, for a threshold, none
    without one on the last hour.
    """
    rows = training_rows(
        traffic,
        last,
        published=recipe.published,
        by_clicks=recipe.by_clicks,
        merge_ads=recipe.merge_ads,
        seed=seed,
    )
    losses = rows.click_loss_usd if recipe.by_clicks else rows.loss_usd
    learn = np.arange(len(losses))
    if not recipe.priced:
        end_ms = int(traffic.time_ms[last - 1])
        learn = np.flatnonzero(traffic.time_ms[rows.request] < end_ms - TUNING_MS)
    if len(learn) > recipe.rows:
        learn = np.sort(np.random.default_rng(seed).choice(learn, recipe.rows, replace=False))
    positives = int(np.count_nonzero(losses[learn]))
    if len(learn) < MIN_ROWS or not positives:
        raise UserError(
            f"the log gives {len(learn)} training rows, {positives} with a loss; at least {MIN_ROWS} and 1"
        )
    labels, weights = losses[learn], None
    if recipe.priced:
        worth_usd = _worth(rows, recipe, traffic, last)[learn]
        weights = worth_usd.mean() / worth_usd
        if not recipe.by_clicks:
            labels = np.minimum(labels, MOST_WORTH * worth_usd)
    booster = _boost(rows.features[learn], labels, weights, recipe, seed)
    model = bytes(booster.save_raw("ubj"))
    forest = parse_xgboost(model)
    threshold = balance = None
    if not recipe.priced:
        tune = np.flatnonzero(traffic.time_ms[rows.request] >= end_ms - TUNING_MS)
        if not (losses[tune] == 0.0).any():
            raise UserError("the last hour of the log has no request without a loss to tune a threshold on")
        predicted_usd = forest.predict(rows.features[tune].astype(np.float64))
        threshold, balance = (find(predicted_usd, losses[tune]) for find in (published, balanced))
    golden_rows = rows.features[learn[np.linspace(0, len(learn) - 1, GOLDEN_ROWS).astype(int)]]
    golden = booster.inplace_predict(golden_rows)
    return Trained(
        recipe=recipe,
        model=model,
        forest=forest,
        threshold=threshold,
        balance=balance,
        rows=len(learn),
        positives=positives,
        golden_rows=golden_rows.astype(np.float64),
        golden=golden,
    )


def _worth(rows: Rows, recipe: Recipe, traffic: Traffic, last: int) -> Doubles:
    """The price of computing the list of each row, US dollars."""
    names = WWW18 if recipe.published else OURS
    cost = rows.features[:, names.index("list_relative_cost" if recipe.published else "relative_cost")]
    revenue_usd = float(traffic.value_usd[: traffic.offsets[last]].sum(dtype=np.float64)) / last
    return TRAINING_COST_RATIO * revenue_usd * np.maximum(cost.astype(np.float64), FLOOR)


def _boost(features: Floats, labels: Doubles, weights: Doubles | None, recipe: Recipe, seed: int) -> Any:
    parameters: dict[str, Any] = {
        "objective": "reg:squarederror",
        "max_depth": DEPTH,
        "eta": 0.1,
        "min_child_weight": 100,
        "max_bin": 128,
        "tree_method": "hist",
        "nthread": 1,
        "seed": seed,
    }
    names = list(WWW18 if recipe.published else OURS)
    data = xgboost.QuantileDMatrix(
        features, labels, weight=weights, feature_names=names, max_bin=128, nthread=1
    )
    return xgboost.train(parameters, data, TREES)


def write_refresh(folder: Path, trained: Trained, meta: Mapping[str, object]) -> None:
    """Writes the bundle: XGBoost's model with golden rows, and in its metadata what the rule needs.

    Raises BundleError when our evaluator reads the model differently from XGBoost, UserError when `folder`
    holds something else.
    """
    recipe = trained.recipe
    said: dict[str, Any] = {
        **meta,
        "floor": FLOOR,
        "probe_share": recipe.probe_share,
        "merge_ads": recipe.merge_ads,
        "rows": trained.rows,
        "positives": trained.positives,
    }
    if trained.threshold is not None:
        said["threshold_usd"] = trained.threshold.threshold_usd
    write_forest(
        folder,
        KIND,
        trained.model,
        feature_names=WWW18 if recipe.published else OURS,
        golden_rows=trained.golden_rows,
        trainer_predictions=trained.golden,
        meta=said,
    )
