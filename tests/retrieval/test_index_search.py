"""Searches against brute force: targets, filters, batches, hostile arguments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from retrieval.small_world import NEVER, World, load_folder, make_world, query, unit

from services.retrieval.attributes import Condition, Membership, Range
from services.retrieval.delta import Delta, Snapshot
from services.retrieval.index import LoadedIndex
from services.retrieval.plan import Budget, Coverage, Exact, MeanRecall, Target, plan
from services.retrieval.search import EXHAUSTED, Answer, search
from services.runtime.deadlines import Deadline
from services.runtime.errors import DeadlineExceeded

TIE = 1e-5


@pytest.fixture(scope="module")
def snapshot(index: LoadedIndex, tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return Delta(index, tmp_path_factory.mktemp("delta"), 10).snapshot


def check_answer(world: World, answer: Answer, vector: np.ndarray, k: int, mask: np.ndarray) -> float:
    """Every invariant of an answer; returns its recall with ties."""
    ids = answer.ad_ids.tolist()
    row_of = {int(ad_id): row for row, ad_id in enumerate(world.ad_ids)}
    rows = [row_of[ad_id] for ad_id in ids]
    assert len(set(ids)) == len(ids) <= k
    assert mask[rows].all(), "an ad that the filter excludes"
    assert np.allclose(answer.similarities, world.vectors[rows] @ vector, atol=TIE)
    assert (np.diff(answer.similarities) <= 0).all()
    assert answer.truncated == (len(ids) < k)
    assert len(ids) == min(k, mask.sum()), "fewer than k although more ads exist"
    _, exact = world.nearest(vector, k, mask)
    return 1.0 if not len(exact) else float((answer.similarities >= exact[-1] - TIE).sum() / len(exact))


def admitted(world: World, conditions: list[Condition]) -> np.ndarray:
    """The filter's meaning, spelled out row by row."""
    mask = np.ones(len(world.ad_ids), dtype=bool)
    for condition in conditions:
        for row in range(len(mask)):
            if isinstance(condition, Membership):
                member = world.strings[condition.field][row] in condition.values
                mask[row] &= member != condition.negated
            else:
                mask[row] &= condition.low <= world.numbers[condition.field][row] <= condition.high
    return mask


values = {
    "advertiser": st.sampled_from([f"a{i}" for i in range(45)]),
    "category": st.sampled_from([f"c{i}" for i in range(12)]),
}
memberships = st.sampled_from(["advertiser", "category"]).flatmap(
    lambda field: st.builds(
        Membership,
        st.just(field),
        st.lists(values[field], min_size=1, max_size=6).map(tuple),
        st.booleans(),
    )
)
prices = st.sampled_from([0.0, 20.0, 50.0, 100.0, 250.0, 600.0])
ranges = st.builds(
    lambda low, width: Range("product_price_usd", low, low + width),
    st.one_of(prices, st.just(-np.inf)),
    st.one_of(prices, st.just(np.inf)),
)
filters = st.lists(st.one_of(memberships, ranges), max_size=3)


@given(
    conditions=filters,
    k=st.sampled_from([1, 3, 10, 100, 1000]),
    lists=st.integers(1, 40),
    exact_below=st.sampled_from([0, 100, 5_000]),
    row=st.integers(0, 199),
)
@settings(max_examples=60)
def test_budgeted_and_exact_searches_under_any_filter(
    world: World,
    snapshot: Snapshot,
    conditions: list[Condition],
    k: int,
    lists: int,
    exact_below: int,
    row: int,
) -> None:
    mask = admitted(world, conditions)
    vector = world.queries[row]
    everything = int(mask.sum())
    for target in (Exact(), Budget(min(lists, snapshot.index.lists))):
        answer = search(snapshot, query(vector, k, target, conditions), exact_below, NEVER).rows[0]
        recall = check_answer(world, answer, vector, k, mask)
        if answer.stopped == EXHAUSTED:
            assert recall == 1
            assert (answer.codes_scanned, answer.recall) == (everything, 1.0)
        else:
            assert isinstance(target, Budget)
            assert answer.lists_planned == target.lists <= answer.lists_visited
            if answer.lists_visited > target.lists:
                assert len(answer.ad_ids) == k
            assert answer.codes_scanned <= everything
            assert not answer.fixed_budget
        if isinstance(target, Exact) or (conditions and everything < exact_below):
            assert answer.stopped == EXHAUSTED


@pytest.mark.parametrize("k", [1, 10, 100])
@pytest.mark.parametrize("target", [MeanRecall(0.8), MeanRecall(0.95), MeanRecall(1.0)])
def test_a_mean_recall_is_reached_on_the_calibration_queries(
    world: World, snapshot: Snapshot, k: int, target: MeanRecall
) -> None:
    everyone = np.ones(len(world.ad_ids), dtype=bool)
    answers = search(snapshot, query(world.queries, k, target), 0, NEVER).rows
    recalls = [
        check_answer(world, answer, vector, k, everyone)
        for vector, answer in zip(world.queries, answers, strict=True)
    ]
    assert np.mean(recalls) >= target.recall - 1e-9
    for answer in answers:
        assert answer.stopped == EXHAUSTED or answer.fixed_budget
        assert answer.recall >= target.recall - 1e-9


@pytest.mark.parametrize("target", [Coverage(0.9, 0.5), Coverage(0.9, 0.95), Coverage(1.0, 0.99)])
def test_a_coverage_is_reached_on_the_calibration_queries(
    world: World, snapshot: Snapshot, target: Coverage
) -> None:
    everyone = np.ones(len(world.ad_ids), dtype=bool)
    answers = search(snapshot, query(world.queries, 10, target), 0, NEVER).rows
    recalls = [
        check_answer(world, answer, vector, 10, everyone)
        for vector, answer in zip(world.queries, answers, strict=True)
    ]
    assert np.mean(np.array(recalls) >= target.recall - 1e-9) >= target.share


@pytest.mark.parametrize("target", [Exact(), Budget(3), MeanRecall(0.9), Coverage(0.9, 0.9)])
@pytest.mark.parametrize("conditions", [[], [Membership("category", ("c1", "c2"), False)]])
def test_a_row_of_a_batch_gets_the_answer_it_gets_alone(
    world: World, snapshot: Snapshot, target: Target, conditions: list[Condition]
) -> None:
    together = search(snapshot, query(world.queries[:64], 20, target, conditions), 0, NEVER).rows
    for vector, answer in zip(world.queries[:64], together, strict=True):
        alone = search(snapshot, query(vector, 20, target, conditions), 0, NEVER).rows[0]
        assert np.array_equal(answer.ad_ids, alone.ad_ids)
        assert np.array_equal(answer.similarities, alone.similarities)
        assert answer.codes_scanned == alone.codes_scanned


def test_equal_similarities_come_by_rising_id(world: World, snapshot: Snapshot) -> None:
    answer = search(snapshot, query(world.vectors[0], 2, Exact()), 0, NEVER).rows[0]
    assert answer.ad_ids.tolist() == sorted([int(world.ad_ids[0]), int(world.ad_ids[1980])])
    assert answer.similarities[0] == answer.similarities[1] <= 1


def test_a_selective_filter_raises_the_budget(index: LoadedIndex) -> None:
    budgets = [plan(index, MeanRecall(0.95), 10, admitted).lists for admitted in (2000, 400, 100, 10)]
    assert budgets == sorted(budgets)
    assert budgets[0] < budgets[-1] == index.lists


def test_far_admitted_ads_are_found_behind_empty_near_lists(tmp_path: Path) -> None:
    """milvus #42951: stopping after two lists without results lost true ones."""
    rng = np.random.default_rng(5)
    near = unit(np.array([1.0, 0, 0, 0]) + 0.05 * rng.standard_normal((900, 4)))
    far = unit(np.array([-1.0, 0, 0, 0]) + 0.05 * rng.standard_normal((100, 4)))
    world = make_world(1000, d=4, copies=0)
    world.vectors = np.vstack((near, far))
    world.strings = {"side": ["near"] * 900 + ["far"] * 100}
    index = load_folder(world.build(tmp_path / "index"))
    snapshot = Delta(index, tmp_path / "delta", 10).snapshot
    conditions = [Membership("side", ("far",), False)]
    answer = search(snapshot, query(near[0], 100, Budget(2), conditions), 0, NEVER).rows[0]
    assert sorted(answer.ad_ids.tolist()) == sorted(world.ad_ids[900:].tolist())
    assert answer.stopped == EXHAUSTED
    assert (answer.lists_planned, answer.lists_visited) == (2, index.lists)


def test_a_budget_that_holds_too_few_ads_goes_on_until_it_has_k(world: World, snapshot: Snapshot) -> None:
    index = snapshot.index
    answers = search(snapshot, query(world.queries, 100, Budget(1)), 0, NEVER).rows
    for vector, answer in zip(world.queries, answers, strict=True):
        ranked = index.rank(vector)
        held = np.cumsum(index.list_sizes[ranked])
        assert answer.lists_visited == max(1, int((held < 100).sum()) + 1)
        assert answer.codes_scanned == held[answer.lists_visited - 1]
        assert (len(answer.ad_ids), answer.stopped == EXHAUSTED) == (100, False)


def test_a_filter_that_admits_nothing_answers_nothing(snapshot: Snapshot, world: World) -> None:
    conditions = [Membership("category", ("no such",), False)]
    answer = search(snapshot, query(world.queries[0], 5, Budget(3), conditions), 0, NEVER).rows[0]
    assert (answer.ad_ids.tolist(), answer.truncated, answer.stopped == EXHAUSTED) == ([], True, True)
    assert answer.codes_scanned == answer.lists_visited == 0


def test_a_passed_deadline_ends_the_search(snapshot: Snapshot, world: World) -> None:
    with pytest.raises(DeadlineExceeded, match="filtering"):
        search(snapshot, query(world.queries[0], 5, Exact()), 0, Deadline.after(-1))


def test_work_is_counted_by_ads_that_the_filter_admits(world: World, snapshot: Snapshot) -> None:
    conditions = [Membership("category", ("c3",), True)]
    index = snapshot.index
    per_list = index.admit(index.columns.admitted(conditions)).per_list
    for vector in world.queries[:10]:
        answer = search(snapshot, query(vector, 5, Budget(4), conditions), 0, NEVER).rows[0]
        keys = index.rank(vector)[: answer.lists_visited]
        assert answer.codes_scanned == per_list[keys].sum() < index.list_sizes[keys].sum()
