"""What the build writes, measures and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from retrieval.small_world import NEVER, World, load_folder, make_world, query

from services.retrieval.build import MIN_POINTS_PER_LIST, build_index, number_of_lists
from services.retrieval.calibration import LEVELS, Calibration, ladder
from services.retrieval.delta import Delta
from services.retrieval.index import LoadedIndex
from services.retrieval.plan import Budget
from services.retrieval.search import search
from services.runtime.errors import BundleError, UserError


def build(world: World, out: Path, **changes: object) -> None:
    values = {
        "vectors": world.vectors,
        "ad_ids": world.ad_ids,
        "strings": world.strings,
        "numbers": world.numbers,
        "encoder": world.encoder,
        "queries": world.queries,
        **changes,
    }
    build_index(**values, out=out, seed=1, progress=lambda *_: None)


def with_value(array: np.ndarray, at: object, value: object) -> np.ndarray:
    changed = array.copy()
    changed[at] = value
    return changed


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("vectors", lambda w: with_value(w.vectors, (7, 3), np.nan), "vectors: row 7 holds a number"),
        ("vectors", lambda w: with_value(w.vectors, (7, 3), np.inf), "vectors: row 7 holds a number"),
        ("vectors", lambda w: with_value(w.vectors, 9, 0), "vectors: row 9 is a zero vector"),
        ("vectors", lambda w: w.vectors[:0], "needs a row"),
        ("vectors", lambda w: w.vectors.astype(np.float64), "expected float32"),
        ("vectors", lambda w: w.vectors[0], "expected float32 \\[n, d\\]"),
        (
            "vectors",
            lambda w: w.vectors[:-1],
            "ad_ids: int64 of shape \\(2000,\\), expected int64 \\[1999\\]",
        ),
        ("ad_ids", lambda w: with_value(w.ad_ids, 1, w.ad_ids[0]), "stands there more than once"),
        ("ad_ids", lambda w: with_value(w.ad_ids, 1, 0), "ad_ids: 0 is not positive"),
        ("ad_ids", lambda w: w.ad_ids.astype(np.int32), "expected int64"),
        ("strings", lambda w: {"advertiser": ["a"]}, "'advertiser': 1 values for 2000 ads"),
        ("strings", lambda w: {"Bad name": w.strings["category"]}, "not a lower_snake_case name"),
        ("strings", lambda w: {"product_price_usd": w.strings["category"]}, "both as strings and as numbers"),
        ("numbers", lambda w: {"price": np.zeros(3)}, "'price': shape \\(3,\\) for 2000 ads"),
        ("numbers", lambda w: {"price": np.full(2000, np.inf)}, "an infinite value at row 0"),
        ("queries", lambda w: w.queries[:, :5].copy(), "queries: dimension 5, the ads have 16"),
        ("encoder", lambda w: "", "encoder: the fingerprint is empty"),
    ],
)
def test_bad_input_is_refused_and_leaves_nothing(
    world: World, tmp_path: Path, name: str, change: object, said: str
) -> None:
    out = tmp_path / "index"
    with pytest.raises(UserError, match=said):
        build(world, out, **{name: change(world)})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_no_index_is_not_replaced(world: World, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("ten years")
    with pytest.raises(UserError, match="holds something other than a bundle of kind 'index'"):
        build(world, tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "ten years"


def test_an_index_is_replaced(index_folder: Path, tmp_path: Path) -> None:
    out = make_world(200, seed=3).build(tmp_path / "index")
    first = load_folder(out)
    make_world(300, seed=4).build(out)
    assert (first.size, load_folder(out).size) == (200, 300)
    assert first.fingerprint != load_folder(out).fingerprint


def test_the_same_input_and_seed_give_the_same_index(tmp_path: Path) -> None:
    world = make_world(300)
    prints = [load_folder(world.build(tmp_path / name)).fingerprint for name in ("a", "b")]
    assert prints[0] == prints[1]


def test_every_ad_is_stored_under_its_id_with_its_attributes(world: World, index: LoadedIndex) -> None:
    assert index.size == len(world.ad_ids) == index.list_sizes.sum()
    rows = index.rows_of(world.ad_ids)
    assert np.array_equal(index.ad_ids[rows], world.ad_ids)
    for name, column in index.columns.strings.items():
        values = [*column.vocabulary, None]
        assert [values[code] for code in column.codes[rows]] == world.strings[name]
    prices = index.columns.numbers["product_price_usd"][rows]
    assert np.array_equal(prices, world.numbers["product_price_usd"], equal_nan=True)
    assert np.allclose(index.contents.vectors[rows], world.vectors, atol=1e-6)


@pytest.mark.parametrize(
    ("n", "lists"), [(1, 1), (77, 1), (78, 2), (1_000, 25), (20_000, 512), (1_000_000, 4_000)]
)
def test_the_number_of_lists_follows_the_corpus(n: int, lists: int) -> None:
    assert number_of_lists(n) == lists
    assert n < 2 * MIN_POINTS_PER_LIST or n // lists >= MIN_POINTS_PER_LIST


@pytest.mark.parametrize("n", [1, 2, 9, 50])
def test_tiny_catalogues_build_and_answer(tmp_path: Path, n: int) -> None:
    world = make_world(n, d=3, copies=0)
    index = load_folder(world.build(tmp_path / "index"))
    index.warm()
    assert index.calibration.for_mean_recall(1, 1.0).recall == 1


@pytest.mark.parametrize("lists", [1, 2, 3, 10, 512, 65_536])
def test_the_ladder_rises_from_one_to_all_lists_in_small_steps(lists: int) -> None:
    rungs = ladder(lists)
    assert (rungs[0], rungs[-1]) == (1, lists)
    assert (np.diff(rungs) > 0).all()
    assert (rungs[1:] <= np.maximum(rungs[:-1] + 1, rungs[:-1] * 1.25)).all()


def test_calibrated_recall_is_the_recall_that_searches_reach(
    world: World, index: LoadedIndex, tmp_path: Path
) -> None:
    snapshot = Delta(index, tmp_path, 10).snapshot
    table = index.calibration
    assert (table.queries, table.source) == (len(world.queries), "queries")
    for k in (1, 10, 100):
        row = table.ks.index(k)
        for column in (0, 3, len(table.budgets) - 1):
            lists = int(table.budgets[column])
            answers = search(snapshot, query(world.queries, k, Budget(lists)), 0, NEVER).rows
            recalls = []
            for vector, answer in zip(world.queries, answers, strict=True):
                _, exact = world.nearest(vector, k)
                recalls.append((answer.similarities >= exact[-1] - 1e-6).sum() / k)
            # A budgeted search that came back short went on, so it may do better than its lists alone.
            short = sum(answer.lists_visited > lists for answer in answers)
            measured = table.mean_recall[row, column]
            assert np.mean(recalls) == pytest.approx(measured, abs=1e-9) or short
            assert np.mean(recalls) >= measured - 1e-9
            for level, share in zip(LEVELS, table.coverage[row, column], strict=True):
                assert np.mean(np.array(recalls) >= level - 1e-9) >= share - 1e-9


def test_without_queries_noisy_ads_calibrate_and_the_bundle_says_so(world: World, tmp_path: Path) -> None:
    build(world, tmp_path / "index", queries=None)
    table = load_folder(tmp_path / "index").calibration
    assert table.source == "noisy_ads"
    manifest = json.loads((tmp_path / "index" / "manifest.json").read_text())
    assert manifest["meta"]["calibration_source"] == "noisy_ads"


def test_choices_take_the_smallest_budget_that_reaches_the_target(index: LoadedIndex) -> None:
    table = index.calibration
    row = table.ks.index(10)
    for recall in (0.5, 0.8, 0.95, 0.999, 1.0):
        choice = table.for_mean_recall(10, recall)
        cheaper = table.budgets < choice.lists
        assert choice.recall >= recall - 1e-9
        assert (table.mean_recall[row][cheaper] < recall).all()
    assert table.for_mean_recall(7, 0.9) == table.for_mean_recall(10, 0.9)
    assert table.for_mean_recall(5_000, 0.1).lists == index.lists
    assert table.for_coverage(10, 0.93, 0.9) == table.for_coverage(10, 0.95, 0.9)
    assert table.for_coverage(10, 1.0, 0.9999).recall > 0.999


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("budgets", [1, 2]),
        ("budgets", "all"),
        ("levels", [0.5]),
        ("ks", []),
        ("ks", [10, 1]),
        ("mean_recall", [[2.0]]),
        ("coverage", None),
        ("queries", "many"),
    ],
)
def test_a_wrong_calibration_table_is_refused(index: LoadedIndex, key: str, value: object) -> None:
    document = index.calibration.to_json()
    assert Calibration.from_json(document, index.lists).ks == index.calibration.ks
    with pytest.raises(BundleError, match=r"calibration\.json"):
        Calibration.from_json({**document, key: value}, index.lists)
    with pytest.raises(BundleError, match=r"calibration\.json"):
        Calibration.from_json(document, index.lists + 1)
