"""`frugalads train refresh`: a bundle out of a request log."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import pytest
from simulator_logs import random_log

from loadtest.request_log.schema import DAY_MS
from loadtest.request_log.storage import LogWriter, open_log
from models.refresh.training import KIND
from services.commands import train
from services.core.refresh.features import OURS, WWW18
from services.runtime.errors import UserError
from services.runtime.forests import open_forest


def run(*options: object) -> int:
    parser = ArgumentParser()
    train.register(parser.add_subparsers())
    arguments = parser.parse_args(["train", "refresh", *map(str, options)])
    code: int = arguments.run(arguments)
    return code


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Two days of 2,000 requests each."""
    times = np.arange(4000) * (DAY_MS // 2000)
    made = random_log(3, requests=4000, phrases=60, ads=40, time_ms=times)
    writer = LogWriter(
        tmp_path / "log",
        ad_ids=made.ad_ids,
        phrases=made.phrases,
        prior_requests=made.prior_requests,
        prior_clicks=made.prior_clicks,
        prior_revenue_usd=made.prior_revenue_usd,
        meta={},
    )
    with writer:
        writer.append(made)
    return tmp_path / "log"


def test_a_model_of_ours_opens_for_a_service(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(log, "--out", tmp_path / "model") == 0
    assert "4,000 requests: 3,940 training rows" in capsys.readouterr().out
    loaded = open_forest(tmp_path / "model", KIND, feature_names=OURS)
    assert loaded.meta["recipe"] == "ours"
    assert loaded.meta["log"] == open_log(log).fingerprint
    assert 0 < loaded.meta["probe_share"] < 0.1


def test_the_published_recipe_says_how_well_it_separates(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(log, "--recipe", "www18", "--days", 1, "--out", tmp_path / "model") == 0
    said = capsys.readouterr().out
    assert "2,000 requests: " in said
    assert "last hour, balanced: " in said
    assert "last hour, the rule: " in said
    loaded = open_forest(tmp_path / "model", KIND, feature_names=WWW18)
    assert loaded.meta["threshold_usd"] > 0


def test_days_that_are_none_are_refused(log: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--days: 0 must be at least 1"):
        run(log, "--days", 0, "--out", tmp_path / "model")
    assert not (tmp_path / "model").exists()
