"""`frugalads train termination`: a bundle of one index, out of queries or of noisy ads."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from retrieval.small_world import World, load_folder
from retrieval.test_index_command import WordHashes

import models.scorer.bundle
from services.commands import train
from services.retrieval.build import build_index
from services.retrieval.stop_model import load_stop_model
from services.runtime.bundles import MANIFEST
from services.runtime.errors import UserError


@pytest.fixture(autouse=True)
def _few_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "KS", (1, 10))
    monkeypatch.setattr(train, "MEAN_RECALLS", (0.9,))
    monkeypatch.setattr(train, "COVERAGES", ((0.9, 0.8),))


def run(*options: object) -> int:
    parser = ArgumentParser()
    train.register(parser.add_subparsers())
    arguments = parser.parse_args(["train", "termination", *map(str, options)])
    code: int = arguments.run(arguments)
    return code


def test_without_queries_noisy_ads_stand_in_and_it_is_said(
    world: World, index_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--index", index_folder, "--out", tmp_path / "model") == 0
    shown = capsys.readouterr().out
    assert "0.90 for 80%" in shown
    assert "2,000 noisy copies of ads (better: your own, by --queries FILE)" in shown
    index = load_folder(index_folder)
    model = load_stop_model(tmp_path / "model", index.fingerprint, index.lists, 0)
    assert model.choose(10, 0.9) is not None
    assert model.choose(10, 0.9, 0.8) is not None
    assert model.choose(10, 0.95) is None


def test_queries_are_embedded_by_the_encoder_of_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"word{i}" for i in range(60)]
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(words, 5)) for _ in range(600)]
    vectors = WordHashes().encode(texts).astype(np.float32)
    build_index(vectors, np.arange(1, 601), {}, {}, "words-1", tmp_path / "index", 1, lambda *_: None)
    scorer = SimpleNamespace(encoder=WordHashes(), encoder_fingerprint="words-1")
    monkeypatch.setattr(models.scorer.bundle, "load_scorer", lambda folder, threads: scorer)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / MANIFEST).touch()
    queries = tmp_path / "queries.txt"
    queries.write_text("\n".join(" ".join(rng.choice(words, 4)) for _ in range(500)))
    options = ("--index", tmp_path / "index", "--queries", queries, "--model", tmp_path / "model")
    assert run(*options, "--out", tmp_path / "stop") == 0
    assert "queries of yours" in capsys.readouterr().out
    scorer.encoder_fingerprint = "words-2"
    with pytest.raises(UserError, match="has encoder words-2, the index is of words-1"):
        run(*options, "--out", tmp_path / "stop")
    queries.write_text("word1\nword2\n")
    scorer.encoder_fingerprint = "words-1"
    with pytest.raises(UserError, match="queries: 2; training a stop model needs at least 300"):
        run(*options, "--out", tmp_path / "stop")


def test_what_is_missing_or_in_the_way_is_said_before_the_work(index_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing is missing; make it with: frugalads index build"):
        run("--index", tmp_path / "nothing", "--out", tmp_path / "stop")
    (tmp_path / "thesis.txt").write_text("ten years")
    with pytest.raises(UserError, match="holds something other than a bundle of kind 'termination'"):
        run("--index", index_folder, "--out", tmp_path)
