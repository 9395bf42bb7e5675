from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_hnsw import DIMENSION, L2, QUERIES, faiss, graph_of, limits, small, vectors_of

from models.termination import walks
from models.termination.calibration import Target, cap_of, fixed_lists, ratio_families
from services.core.hnsw import heap
from services.core.hnsw.replay import Trace
from services.core.hnsw.search import record, search
from services.core.ivf.scan import ROW_ASKED, ROW_CODES, ROW_LISTS, ROW_STOPPED
from services.core.stopping import marginal
from services.core.stopping.policy import Policy, fixed
from services.core.stopping.ratio import reach
from services.core.stopping.rules import FIXED, MARGINAL, NO_FOREST, PATIENCE, RATIO

WIDTH = 300
DISTANCES = st.floats(-(2.0**90), 2.0**90, width=32, allow_subnormal=False)
# Stops where the start of the walk, the ladder and the candidate are weighed in some way, and asks no forest.
WEIGHTS = np.linspace(-0.5, 0.5, marginal.TERMS)


@cache
def traced(k: int) -> Trace:
    on = small(L2)
    return record(on.graph, on.queries, k, limits(on, k), WIDTH)


def policies(k: int) -> list[Policy]:
    gain = np.append(marginal.parameters(-2.0, 0.0, k, WEIGHTS.tolist()), [0.5, 0.3])
    return [
        fixed(25),
        Policy(RATIO, np.array([0.2, 0.0]), WIDTH),
        Policy(RATIO, np.array([0.4, 0.5]), 60),
        Policy(PATIENCE, np.array([9.0, float(k == 1)]), 120),
        Policy(MARGINAL, gain, 200),
    ]


@pytest.mark.parametrize("k", [1, 10, 40])
@pytest.mark.parametrize("rule", range(5), ids=["fixed", "ratio", "mixed", "patience", "marginal"])
def test_a_replay_is_what_the_walk_does(k: int, rule: int) -> None:
    on, trace, policy = small(L2), traced(k), policies(k)[rule]
    found = search(on.graph, on.queries, k, policy)
    cap = WIDTH if policy.rule == FIXED else policy.cap
    nodes, asked = trace.replay(k, policy.rule, policy.parameters, policy.forest, cap)
    np.testing.assert_array_equal(found.work[:, ROW_LISTS], nodes)
    np.testing.assert_array_equal(found.work[:, ROW_CODES], trace.compared(nodes))
    np.testing.assert_array_equal(found.work[:, ROW_ASKED], asked)
    true = (found.distances <= limits(on, k)[:, None]).sum(axis=1)
    np.testing.assert_array_equal(true, trace.found[np.arange(QUERIES), nodes - 1])
    assert nodes.min() < nodes.max()


def test_a_walk_that_runs_out_of_nodes_is_recorded_to_its_end() -> None:
    vectors = vectors_of(L2)[0][:40]
    index = faiss.IndexHNSWFlat(DIMENSION, 8)
    index.add(vectors)
    graph = graph_of(index)
    everything = np.full(len(vectors), np.float32(np.inf))
    trace = record(graph, vectors, 10, everything, 100)
    assert trace.width == 40
    assert (trace.found[:, -1] == 10).all()
    for width in (3, 39, 40):
        nodes, _ = trace.replay(10, FIXED, np.array([float(width)]), NO_FOREST, trace.width)
        found = search(graph, vectors, 10, fixed(width))
        np.testing.assert_array_equal(found.work[:, ROW_LISTS], nodes)
        np.testing.assert_array_equal(found.work[:, ROW_CODES], trace.compared(nodes))


def test_the_answer_says_whether_the_rule_or_its_cap_ended_the_walk() -> None:
    on = small(L2)
    wide = search(on.graph, on.queries, 10, Policy(RATIO, np.array([0.4, 0.0]), 5000)).work
    capped = search(on.graph, on.queries, 10, Policy(RATIO, np.array([0.4, 0.0]), 30)).work
    assert (wide[:, ROW_STOPPED] == 1).all()
    np.testing.assert_array_equal(capped[:, ROW_LISTS], np.minimum(wide[:, ROW_LISTS], 30))
    np.testing.assert_array_equal(capped[:, ROW_STOPPED] == 1, wide[:, ROW_LISTS] <= 30)


@pytest.mark.parametrize("k", [1, 10])
def test_a_ratio_reaches_the_recall_of_a_beam_with_less_work(k: int) -> None:
    trace, target = traced(k), Target(0.95)
    budget = fixed_lists(trace, k, target)
    assert budget is not None
    nodes, _ = trace.replay(k, FIXED, np.array([float(budget)]), policies(k)[0].forest, WIDTH)
    narrower, _ = trace.replay(k, FIXED, np.array([budget - 1.0]), policies(k)[0].forest, WIDTH)
    rows = np.arange(QUERIES)
    assert trace.found[rows, nodes - 1].mean() / k >= 0.95 > trace.found[rows, narrower - 1].mean() / k
    works = []
    for family in ratio_families(k):
        cap = cap_of(budget, WIDTH, family.cap)
        knob = family.least_knob(trace, k, target, cap)
        assert knob is not None
        outcome = family.outcome(trace, k, knob, cap)
        assert outcome.recalls.mean() >= 0.95
        assert outcome.lists.max() <= cap
        works.append(outcome.codes.mean())
    assert min(works) < trace.compared(nodes).mean()


def test_the_gain_model_of_walks_reaches_its_target_and_knows_more_than_the_ladder() -> None:
    on, trace, k = small(L2), traced(10), 10
    model = walks.train(trace, k, 1)
    budget = fixed_lists(trace, k, Target(0.95))
    assert budget is not None
    for family in walks.marginal_families(model, k):
        cap = cap_of(budget, WIDTH, family.cap)
        knob = family.least_knob(trace, k, Target(0.95), cap)
        assert knob is not None
        outcome = family.outcome(trace, k, knob, cap)
        assert outcome.recalls.mean() >= 0.95
        assert outcome.asked.sum() > 0
        live = search(on.graph, on.queries, k, Policy(MARGINAL, family.parameters(knob), cap, family.forest))
        np.testing.assert_array_equal(live.work[:, ROW_LISTS], outcome.lists)
        np.testing.assert_array_equal(live.work[:, ROW_ASKED], outcome.asked)


def test_a_reach_is_a_mix_of_the_best_and_the_last_and_infinite_before_there_are_enough() -> None:
    assert reach(1.0, 4.0, np.log(2.0), 0.0) == pytest.approx(8.0)
    assert reach(1.0, 4.0, np.log(2.0), 0.5) == pytest.approx(4.0)
    assert reach(1.0, np.inf, 0.0, 0.5) == np.inf


@given(st.lists(st.tuples(DISTANCES, st.integers(0, 2**31 - 1)), min_size=1, max_size=40), st.integers(1, 12))
def test_heaps_order_distances_and_keep_the_nearest(drawn: list[tuple[float, int]], most: int) -> None:
    pairs = [(distance + 0.0, node) for distance, node in drawn]  # -0.0 and 0.0 are one distance
    bits = [int(np.float32(distance).view(np.int32)) for distance, _ in pairs]
    keys = [int(heap.key_of(b, node)) for b, (_, node) in zip(bits, pairs, strict=True)]
    assert [heap.node_of(key) for key in keys] == [node for _, node in pairs]
    assert [heap.bits_of(key) for key in keys] == bits
    by_distance = sorted(range(len(pairs)), key=lambda i: pairs[i])
    assert sorted(range(len(pairs)), key=lambda i: keys[i]) == by_distance
    queue, nearest = np.empty(len(keys), dtype=np.int64), np.empty(most, dtype=np.int64)
    kept = 0
    for size, key in enumerate(keys):
        heap.push(queue, size, key)
        if kept < most or ~key > nearest[0]:
            kept = heap.offer(nearest, kept, ~key)
    popped = []
    for size in range(len(keys) - 1, -1, -1):
        popped.append(int(queue[0]))
        heap.replace(queue, size, int(queue[size]))
    assert popped == sorted(keys)
    assert sorted(~int(key) for key in nearest[:kept]) == sorted(keys)[:most]
