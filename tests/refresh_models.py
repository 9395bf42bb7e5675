"""Refresh models that predict what a test says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xgboost

from services.core.refresh.features import OURS
from services.runtime.forests import write_forest


def write_model(
    folder: Path,
    loss_usd: float,
    *,
    kind: str = "refresh",
    names: tuple[str, ...] = OURS,
    floor: float = 0.05,
    probe_share: float = 0.0,
) -> None:
    """A bundle whose model predicts the same loss, US dollars, for every hit."""
    rows = np.random.default_rng(0).random((50, len(names))).astype(np.float32)
    labels = np.full(len(rows), loss_usd, np.float32)
    booster = xgboost.train(
        {"base_score": loss_usd, "max_depth": 1, "nthread": 1}, xgboost.DMatrix(rows, label=labels), 1
    )
    write_forest(
        folder,
        kind,
        bytes(booster.save_raw("json")),
        feature_names=names,
        golden_rows=rows[:5].astype(np.float64),
        meta={"floor": floor, "probe_share": probe_share},
        trainer_predictions=booster.predict(xgboost.DMatrix(rows[:5])),
    )
