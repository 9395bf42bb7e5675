"""Every rule beside a plain Python reading of its paper, and live searches beside their replay."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import lightgbm
import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import betainc
from small_ivf import LISTS, QUERIES, exact, flat, quantized, traced

from services.core.ivf.scan import ROW_ASKED, ROW_CODES, ROW_LISTS
from services.core.ivf.search import search
from services.core.stopping import aps, darth, laet, marginal
from services.core.stopping.policy import Policy, fixed
from services.core.stopping.replay import Trace, lists_visited
from services.core.stopping.rules import (
    APS,
    DARTH,
    DENSITY,
    FIXED,
    LAET,
    MARGINAL,
    NO_FOREST,
    PATIENCE,
)
from services.core.stopping.state import (
    BEST,
    BEST_AT,
    CODES,
    INSERTED,
    LAST,
    LAST_AT,
    MEAN,
    MEDIAN,
    QUARTER,
    SLOTS,
    STABLE_AT,
    THREE_QUARTERS,
    VARIANCE,
    next_rung,
)
from services.core.stopping.state import (
    LISTS as VISITED,
)
from services.core.trees import Forest, parse_lightgbm

WIDTH = 50
CAP = 45
K = 10

Doubles = npt.NDArray[np.float64]


def trained(rows: Doubles, targets: npt.NDArray[Any], **parameters: Any) -> Forest:
    """A small forest on these rows."""
    settings = {"num_leaves": 8, "verbose": -1, "num_threads": 1, "min_data_in_leaf": 5, **parameters}
    booster = lightgbm.train(settings, lightgbm.Dataset(rows, targets), 16)
    return parse_lightgbm(booster.model_to_string().encode())


@pytest.fixture(scope="module")
def trace() -> Trace:
    return traced(flat(), K, width=WIDTH)


def replayed(
    trace: Trace, rule: int, parameters: list[float], forest: Any = NO_FOREST
) -> tuple[list[int], list[int]]:
    asked = np.zeros(QUERIES, dtype=np.int64)
    lists = lists_visited(trace, rule, np.array(parameters, dtype=np.float64), forest, CAP, asked)
    return lists.tolist(), asked.tolist()


Step = Callable[[int, int], float]
"""(query, lists visited) -> lists to visit before asking again; not more than those visited: stop."""


def stepped(step: Step) -> list[int]:
    """Lists visited by a rule that is asked from the first list on, under the cap."""
    visited = []
    for q in range(QUERIES):
        lists = 1
        while lists < CAP:
            wanted = int(step(q, lists))
            if wanted <= lists:
                break
            lists = min(wanted, CAP)
        visited.append(lists)
    return visited


def test_the_state_is_what_the_lists_hold(trace: Trace) -> None:
    small = flat()
    _, keys = small.keep.search(small.queries, WIDTH)
    squares = exact(small, small.queries)
    list_of = np.empty(len(small.vectors), dtype=np.int64)
    for key in range(LISTS):
        list_of[_rows_of(key)] = key
    for q in range(0, QUERIES, 23):
        changed_best, changed, stable, inserted = 0, 0, 0, 0
        before: set[int] = set()
        for lists in range(1, WIDTH + 1):
            rows = np.flatnonzero(np.isin(list_of, keys[q, :lists]))
            near = rows[np.argsort(squares[q, rows])[:K]]
            best = set(near[:1].tolist()) - before
            entered = set(near.tolist()) - before
            seen = trace.seen[q, lists - 1]
            if entered:
                changed = lists
            if best:
                changed_best = lists
            assert seen[VISITED] == lists
            assert seen[CODES] == rows.size
            assert seen[LAST_AT] == changed
            assert seen[BEST_AT] == changed_best
            values = np.sort(squares[q, near])
            if near.size == K:
                np.testing.assert_allclose(seen[[BEST, LAST]], values[[0, -1]], rtol=1e-4)
                np.testing.assert_allclose(seen[MEAN], values.mean(), rtol=1e-4)
                np.testing.assert_allclose(seen[VARIANCE], values.var(), rtol=1e-2, atol=1e-3)
                np.testing.assert_allclose(
                    seen[[QUARTER, MEDIAN, THREE_QUARTERS]], values[[2, 5, 7]], rtol=1e-4
                )
            else:
                assert np.isinf(seen[LAST])
            assert seen[INSERTED] >= inserted + len(entered)
            assert seen[STABLE_AT] >= stable
            inserted, stable = seen[INSERTED], seen[STABLE_AT]
            truth = np.sort(squares[q])[K - 1] * (1 + 1e-5)
            assert trace.found[q, lists - 1] == (values <= truth).sum()
            before = set(near.tolist())


def _rows_of(key: int) -> npt.NDArray[np.int64]:
    from small_ivf import faiss

    lists = flat().index.invlists
    rows: npt.NDArray[np.int64] = faiss.rev_swig_ptr(lists.get_ids(key), lists.list_size(key)).copy()
    return rows


def test_fixed_visits_as_many_lists_as_it_says(trace: Trace) -> None:
    assert replayed(trace, FIXED, [17])[0] == [17] * QUERIES
    assert replayed(trace, FIXED, [LISTS])[0] == [CAP] * QUERIES


@pytest.mark.parametrize(("exponent", "mix", "threshold"), [(8.0, 1.0, -15.0), (4.0, 0.5, -12.0)])
def test_density_is_the_closed_form(trace: Trace, exponent: float, mix: float, threshold: float) -> None:
    def step(q: int, lists: int) -> float:
        seen = trace.seen[q, lists - 1]
        if math.isinf(seen[LAST]):
            return next_rung(lists)
        found = seen[LAST] ** mix * seen[BEST] ** (1 - mix)
        density = (found / trace.coarse[q, lists]) ** exponent / seen[CODES]
        return lists if math.log(density) < threshold else next_rung(lists)

    expected = stepped(step)
    lists, asked = replayed(trace, DENSITY, [threshold, exponent, mix])
    assert lists == expected
    assert len(set(expected)) > 3, set(expected)
    assert asked == [0] * QUERIES


@pytest.mark.parametrize("k", [1, K])
@pytest.mark.parametrize("band", [0.0, 0.4, 1e9])
def test_marginal_compares_the_expected_gain_per_vector(trace: Trace, k: int, band: float) -> None:
    rng = np.random.default_rng(0)
    terms = 0.02 * rng.standard_normal(marginal.TERMS)
    terms[[0, 3]] = -0.5, -2.0
    forest = trained(rng.standard_normal((400, 9)), rng.poisson(0.5, 400), objective="poisson")
    asked = [0] * QUERIES
    threshold = -8.5

    def step(q: int, lists: int) -> float:
        seen, coarse = trace.seen[q, lists - 1].astype(float), trace.coarse[q]
        if math.isinf(seen[LAST]):
            return next_rung(lists)
        ahead = trace.seen[q, min(next_rung(lists), CAP) - 1, CODES] - seen[CODES]
        since = lists - seen[BEST_AT if k == 1 else LAST_AT]
        x = [
            math.log(lists),
            math.log(max(ahead, 1)),
            math.log(coarse[lists] / seen[LAST]),
            math.log(coarse[lists] / seen[BEST]),
            math.log(1 + since),
            math.log(coarse[min(2 * lists, LISTS - 1)] / seen[LAST]),
            math.log(coarse[0] / seen[LAST]),
            math.log(seen[LAST]),
            math.log(k),
        ]
        products = [x[i] * x[j] for i in range(8) for j in range(i, 8)]
        excess = float(np.dot(terms, [1, *x[:8], *products])) - x[1] - threshold
        if abs(excess) < band:
            asked[q] += 1
            excess += float(forest.predict_raw(np.array([x]))[0])
        return lists if excess < 0 else next_rung(lists)

    expected = stepped(step)
    parameters = marginal.parameters(threshold, band, k, terms.tolist()).tolist()
    assert replayed(trace, MARGINAL, parameters, forest.arrays) == (expected, asked)
    assert len(set(expected)) > 3
    assert (sum(asked) > 0) == (band > 0)


@pytest.mark.parametrize("delta", [1, 3, 9])
def test_patience_ends_after_calm_lists(trace: Trace, delta: int) -> None:
    visited = []
    for q in range(QUERIES):
        calm, lists, last = 0, 0, -1.0
        while lists < CAP:
            lists += 1
            entered = trace.seen[q, lists - 1, INSERTED] != last
            last = trace.seen[q, lists - 1, INSERTED]
            calm = 0 if entered else calm + 1
            if calm >= delta:
                break
        visited.append(lists)
    assert replayed(trace, PATIENCE, [delta, 0.0])[0] == visited


@pytest.mark.parametrize("tau", [0.5, 0.9, 0.99])
def test_aps_compares_the_volumes_of_caps(trace: Trace, tau: float) -> None:
    small, candidates = flat(), 30
    distances, keys = small.keep.search(small.queries, LISTS)
    centroids = small.lists.centroids.astype(float)
    dimension = small.vectors.shape[1]

    def estimate(q: int, lists: int) -> float:
        radius = math.sqrt(trace.seen[q, lists - 1, LAST])
        apart = np.linalg.norm(centroids[keys[q]] - centroids[keys[q, 0]], axis=1)
        volumes = np.zeros(candidates)
        for j in range(1, candidates):
            h = (distances[q, j] - distances[q, 0]) / (2 * apart[j])
            if h < radius:
                volumes[j] = 0.5 * betainc((dimension + 1) / 2, 0.5, 1 - (h / radius) ** 2)
        volumes[0] = 2 * volumes[1]
        return float(volumes[:lists].sum() / volumes.sum()) if volumes.any() else 1.0

    parameters = aps.parameters(tau, candidates, dimension)
    visited = replayed(trace, APS, parameters.tolist())[0]
    assert len(set(visited)) > 3
    for q in range(0, QUERIES, 3):
        # The table of volumes has 1,024 entries: right before the stop and at it, within its error.
        if visited[q] < CAP:
            assert estimate(q, visited[q]) >= tau - 2e-3
        if visited[q] > 1 and math.isfinite(trace.seen[q, visited[q] - 2, LAST]):
            assert estimate(q, visited[q] - 1) <= tau + 2e-3


@pytest.mark.parametrize("stamps", [[3], [2, 8], [1, 5, 20]])
def test_laet_visits_what_it_predicted(trace: Trace, stamps: list[int]) -> None:
    rows = {stamp: _laet_rows(trace, stamp) for stamp in stamps}
    needed = np.log2(1 + trace.found.argmax(axis=1).astype(float))
    forest = trained(rows[stamps[0]], needed)
    asked = [0] * QUERIES
    multiplier = 1.5

    def visited(q: int) -> int:
        planned = 0
        for i, stamp in enumerate(stamps):
            prediction = 2 ** max(0.0, float(forest.predict(rows[stamp][q : q + 1])[0]))
            planned = math.ceil(multiplier * max(1.0, prediction))
            asked[q] += 1
            if i + 1 == len(stamps) or planned < stamps[i + 1]:
                return min(max(planned, stamp), CAP)
        raise AssertionError

    expected = [visited(q) for q in range(QUERIES)]
    assert replayed(trace, LAET, [multiplier, 1.0, *stamps], forest.arrays) == (expected, asked)
    assert len(set(expected)) > 3


def _laet_rows(trace: Trace, stamp: int) -> Doubles:
    rows = np.empty((QUERIES, trace.queries.shape[1] + 14))
    for q in range(QUERIES):
        coarse, seen = trace.coarse[q].astype(float), trace.seen[q, stamp - 1].astype(float)
        ratios = [coarse[min(10 * i, LISTS) - 1] / (coarse[0] + 1e-10) for i in range(1, 11)]
        best, tenth = seen[BEST], seen[LAST]
        rows[q] = [
            *trace.queries[q], *ratios, best, tenth, best / (tenth + 1e-10), best / (coarse[0] + 1e-10),
        ]  # fmt: skip
    return rows


@pytest.mark.parametrize("target", [0.7, 0.95])
def test_darth_asks_more_often_near_its_target(trace: Trace, target: float) -> None:
    rows = np.concatenate(
        [trace.seen[:, :, [VISITED, CODES, INSERTED]], trace.seen[:, :, [0]],
         trace.seen[:, :, [BEST, LAST, MEAN, VARIANCE, QUARTER, MEDIAN, THREE_QUARTERS]]], axis=2,
    ).astype(float)  # fmt: skip
    rows[:, :, 3] = trace.coarse[:, :1]
    full = np.isfinite(trace.seen[:, :, LAST])
    forest = trained(rows[full], (trace.found / K)[full].astype(float))
    first, least = 900.0, 150.0
    asked = [0] * QUERIES

    def step(q: int, lists: int) -> float:
        codes = float(trace.seen[q, lists - 1, CODES])
        if codes >= first and full[q, lists - 1]:
            asked[q] += 1
            missing = target - float(forest.predict(rows[q, lists - 1][None])[0])
            if missing <= 0:
                return lists
            interval = least + (first - least) * missing
        else:
            interval = max(first - codes, 0.0)
        return lists + max(1, int(interval * lists / max(codes, 1) + 0.5))

    expected = stepped(step)
    assert replayed(trace, DARTH, [target, first, least], forest.arrays) == (expected, asked)
    assert len(set(expected)) > 3


def policies() -> dict[str, Policy]:
    rng = np.random.default_rng(1)
    d = flat().vectors.shape[1]
    terms = np.zeros(marginal.TERMS)
    terms[[0, 3]] = 0.5, -3.0
    poisson = trained(rng.standard_normal((300, 9)), rng.poisson(0.5, 300), objective="poisson")
    plain = trained(rng.standard_normal((300, d + 14)), rng.uniform(0, 5, 300))
    recalls = trained(rng.uniform(0, 40, (300, darth.FEATURES)), rng.uniform(0.5, 1, 300))
    return {
        "fixed": fixed(9),
        "density": Policy(DENSITY, np.array([-11.0, 6.0, 0.8]), CAP),
        "marginal": Policy(MARGINAL, marginal.parameters(-9.0, 0.5, K, terms.tolist()), CAP, poisson.arrays),
        "laet": Policy(LAET, np.array([1.2, 1.0, 2.0, 6.0]), CAP, plain.arrays),
        "darth": Policy(DARTH, np.array([0.8, 700.0, 100.0]), CAP, recalls.arrays),
        "aps": Policy(APS, aps.parameters(0.9, 30, d), CAP),
        "patience": Policy(PATIENCE, np.array([4.0, 0.0]), CAP),
    }


@pytest.mark.parametrize("kind", ["flat", "quantized"])
@pytest.mark.parametrize("name", list(policies()))
def test_a_live_search_does_what_its_replay_says(kind: str, name: str) -> None:
    small, depth = (flat(), 0) if kind == "flat" else (quantized(), 40)
    policy = policies()[name]
    policy = Policy(policy.rule, policy.parameters, policy.cap, policy.forest, depth)
    trace = traced(small, K, depth, WIDTH)
    asked = np.zeros(QUERIES, dtype=np.int64)
    lists = lists_visited(trace, policy.rule, policy.parameters, policy.forest, policy.cap, asked)
    found = search(small.lists, small.queries, K, policy)
    # A record keeps single precision: a state on the very threshold may fall on its other side.
    assert (found.work[:, ROW_LISTS] == lists).mean() > 0.99
    same = found.work[:, ROW_LISTS] == lists
    rows = np.flatnonzero(same)
    np.testing.assert_array_equal(found.work[rows, ROW_ASKED], asked[rows])
    np.testing.assert_array_equal(found.work[rows, ROW_CODES], trace.seen[rows, lists[rows] - 1, CODES])
    truth = np.sort(exact(small, small.queries), axis=1)[:, K - 1] * (1 + 1e-5)
    np.testing.assert_array_equal(
        (found.distances <= truth[:, None]).sum(axis=1)[rows], trace.found[rows, lists[rows] - 1]
    )


def test_the_features_of_laet_and_the_slots_have_the_sizes_that_callers_allocate() -> None:
    row = np.full(DIM_ROW, np.nan)
    laet.features(np.ones(SLOTS), np.ones(LISTS, np.float32), np.ones(DIM_ROW - 14, np.float32), row)
    assert np.isfinite(row).all()


DIM_ROW = 12 + 14
