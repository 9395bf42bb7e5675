"""A recall target means on real texts what it says, also where no query was there to calibrate on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from retrieval.small_world import NEVER, load_folder, query

from loadtest.queries import write_queries
from loadtest.sample import write_sample
from models.scorer.bundle import load_scorer
from models.scorer.calibration import DEFAULT
from models.scorer.convert import Weights, build_scorer
from services.catalogue.bundle import read_catalogue
from services.catalogue.importing import import_catalogue
from services.retrieval.build import build_index
from services.retrieval.delta import Delta
from services.retrieval.plan import Exact, MeanRecall
from services.retrieval.search import search

K = 10


def test_targets_calibrated_without_queries_hold_for_queries(tmp_path: Path) -> None:
    """Noisy ads of cosine 0.7 were so easy that a target of .95 gave real queries .71."""
    build_scorer(Weights.of_package(), tmp_path / "scorer", DEFAULT)
    encoder = load_scorer(tmp_path / "scorer", threads=1).encoder
    write_sample(tmp_path / "ads.jsonl", ads=800)
    import_catalogue(tmp_path / "ads.jsonl", tmp_path / "catalogue")
    write_queries(tmp_path / "catalogue", tmp_path / "queries.txt", requests=300)
    ads = read_catalogue(tmp_path / "catalogue")
    ids = np.array([ad.ad_id for ad in ads])
    vectors = encoder.encode([ad.text for ad in ads])
    build_index(vectors, ids, {}, {}, "MiniLM", tmp_path / "index", 1, lambda *_: None)
    index = load_folder(tmp_path / "index")
    assert index.calibration.source == "noisy_ads"
    delta = Delta(index, tmp_path / "delta", 10)
    asked = encoder.encode((tmp_path / "queries.txt").read_text().splitlines())
    exact = search(delta.snapshot, query(asked, K, Exact()), 0, NEVER).rows
    for target in (0.8, 0.9):
        found = search(delta.snapshot, query(asked, K, MeanRecall(target)), 0, NEVER).rows
        assert found[0].lists_visited < index.lists
        recalls = [np.isin(a.ad_ids, b.ad_ids).mean() for a, b in zip(exact, found, strict=True)]
        assert np.mean(recalls) > target - 0.03, f"target {target}, reached {np.mean(recalls):.3f}"
    delta.close()
