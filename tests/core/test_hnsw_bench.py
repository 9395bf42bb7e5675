"""The retrieval bench of a graph, on a set small enough to build in a second."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from loadtest.retrieval_bench import hnsw
from loadtest.retrieval_bench.main import Options, main
from services.core.stopping.policy import fixed


def clustered(count: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((400, 16))
    rows = centres[rng.integers(0, 400, count)] + 0.9 * rng.standard_normal((count, 16))
    rounded: np.ndarray = rows.astype(np.float32)
    return rounded


def test_every_rule_of_walks_has_a_row_a_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors, report = tmp_path / "set.npy", tmp_path / "report.json"
    np.save(vectors, clustered(5000))
    np.save(tmp_path / "set.queries.npy", clustered(6500)[5000:])
    options = Options(str(vectors), hnsw.HNSW, [1, 10], [0.9], 1, 1)
    assert main(options, str(report)) == 0
    rows = json.loads(report.read_text())["rows"]
    rules = {"fixed", "ratio", "marginal", "patience"}
    assert {(row["policy"], row["k"]) for row in rows} == {(rule, k) for rule in rules for k in (1, 10)}
    for row in rows:
        assert row["recall"] == pytest.approx(0.9, abs=0.08)
        assert 0 < row["distances"] <= row["p99_distances"]
        assert 0 < row["shifted"] <= 1
        assert row["index"] == "hnsw"
        assert (row["model_calls"] > 0) <= (row["policy"] == "marginal")
    defaults = [row for row in rows if row["default"]]
    assert [row["k"] for row in defaults] == [1, 10]
    assert all(row["ratio"] > 0.9 for row in defaults)  # beams of ten nodes leave little to save
    assert "shifted" in capsys.readouterr().out


def test_stock_and_ours_search_the_same_graph() -> None:
    vectors = clustered(1500)
    built = hnsw.build(vectors[:1000])
    ours = built.search(vectors[1000:], 10, fixed(40)).rows
    assert (built.stock(vectors[1000:], 10, 40, 0) == ours).mean() > 0.999
