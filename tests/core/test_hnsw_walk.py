from __future__ import annotations

import gc
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from small_hnsw import COSINE, DIMENSION, INNER, L2, QUERIES, VECTORS, Small, built, faiss, graph_of, small

from services.core.hnsw.graph import Graph
from services.core.hnsw.search import record, search
from services.core.ivf.scan import ROW_CODES, ROW_LISTS, ROW_STOPPED
from services.core.ivf.search import Found
from services.core.stopping.policy import Policy, fixed
from services.core.stopping.rules import DENSITY, RATIO

RATIO_POLICY = Policy(RATIO, np.array([0.3, 0.5]), 500)


def copy_of(file: npt.NDArray[np.uint8]) -> Graph:
    """A graph of an index that nothing else refers to."""
    return graph_of(faiss.deserialize_index(file))


def stock(on: Small, k: int, ef: int, selector: object = None) -> tuple[Any, Any]:
    """Distances as our walk has them, and rows."""
    parameters = faiss.SearchParametersHNSW(efSearch=ef, sel=selector)
    distances, rows = on.index.search(on.queries, k, params=parameters)
    return (distances if on.graph.arrays.inner == 0 else -distances), rows


@pytest.mark.parametrize("metric", [L2, INNER, COSINE])
@pytest.mark.parametrize(("k", "ef"), [(1, 3), (10, 10), (10, 60), (37, 20)])
def test_a_beam_answers_as_faiss_does(metric: str, k: int, ef: int) -> None:
    on = small(metric)
    faiss.cvar.hnsw_stats.reset()
    distances, rows = stock(on, k, ef)
    compared = faiss.cvar.hnsw_stats.ndis
    found = search(on.graph, on.queries, k, fixed(ef))
    # Sums in another order: two vectors at nearly the same distance may change places.
    assert (found.rows == rows).mean() > 0.999
    np.testing.assert_allclose(found.distances, distances, rtol=1e-4, atol=1e-5)
    assert found.work[:, ROW_CODES].sum() == pytest.approx(compared + QUERIES, rel=0.01)
    assert (found.work[:, ROW_STOPPED] == 0).all()


@pytest.mark.parametrize("share", [0.02, 0.3, 0.99])
def test_only_admitted_rows_are_found_and_they_are_those_of_faiss(share: float) -> None:
    on = small(L2)
    bitmap = np.packbits(np.random.default_rng(1).random(VECTORS) < share, bitorder="little")
    distances, rows = stock(on, 10, 64, faiss.IDSelectorBitmap(bitmap))
    found = search(on.graph, on.queries, 10, fixed(64), bitmap=bitmap)
    assert (found.rows == rows).mean() > 0.999
    real = found.rows >= 0
    assert ((bitmap[found.rows[real] >> 3] >> (found.rows[real] & 7)) & 1).all()
    np.testing.assert_allclose(found.distances[real], distances[real], rtol=1e-4)
    assert np.isinf(found.distances[~real]).all()


def test_a_ratio_walks_on_where_a_filter_leaves_it_with_too_few() -> None:
    on = small(L2)
    bitmap = np.packbits(np.random.default_rng(2).random(VECTORS) < 0.1, bitorder="little")
    policy = Policy(RATIO, np.array([0.1, 0.0]), VECTORS)
    admitted = search(on.graph, on.queries, 10, policy, bitmap=bitmap)
    everyone = search(on.graph, on.queries, 10, policy)
    assert (admitted.rows >= 0).all()
    assert admitted.work[:, ROW_LISTS].mean() > 2 * everyone.work[:, ROW_LISTS].mean()


def test_nothing_of_the_index_is_copied() -> None:
    on = small(L2)
    assert on.graph.arrays.vectors.ctypes.data == int(faiss.downcast_index(on.index.storage).get_xb())
    assert on.graph.arrays.links.ctypes.data == int(on.index.hnsw.neighbors.data())


@pytest.mark.parametrize("policy", [fixed(30), RATIO_POLICY], ids=["beam", "ratio"])
def test_an_answer_does_not_depend_on_its_batch_nor_on_searches_before(policy: Policy) -> None:
    on, caps = small(L2), 5 + np.arange(QUERIES) % 40
    together = search(on.graph, on.queries, 10, policy, caps=caps)
    assert (together.work[:, ROW_LISTS] <= caps).all()
    for q in [*range(0, QUERIES, 17)] * 25:  # more searches than stamps of a byte tell apart
        alone = search(on.graph, on.queries[q : q + 1], 10, policy, caps=caps[q : q + 1])
        for one, several in ((alone.rows, together.rows), (alone.work, together.work)):
            np.testing.assert_array_equal(one[0], several[q])
        np.testing.assert_array_equal(alone.distances[0], together.distances[q])


def test_each_query_has_its_own_knob() -> None:
    on = small(L2)
    knobs = np.where(np.arange(QUERIES) % 2, 12.0, 80.0)
    found = search(on.graph, on.queries, 10, fixed(1), knobs=knobs)
    for ef in (12, 80):
        of_all = search(on.graph, on.queries, 10, fixed(ef))
        np.testing.assert_array_equal(found.rows[knobs == ef], of_all.rows[knobs == ef])


def test_eight_threads_get_the_answers_of_one() -> None:
    on = small(L2)
    expected = search(on.graph, on.queries, 10, RATIO_POLICY)

    def answers(_: int) -> Found:
        return search(on.graph, on.queries, 10, RATIO_POLICY)

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(answers, range(64)):
            np.testing.assert_array_equal(found.rows, expected.rows)
            np.testing.assert_array_equal(found.work, expected.work)


def test_a_search_beside_a_swap_reads_one_graph_that_nothing_else_keeps() -> None:
    first, second = built(L2, 6), built(L2, 7)
    queries = first.queries
    expected = {
        seed: search(graph_of(on.index), queries, 10, fixed(40)).rows
        for seed, on in ((6, first), (7, second))
    }
    files = {6: faiss.serialize_index(first.index), 7: faiss.serialize_index(second.index)}
    del first, second
    serving, stop, seen = [copy_of(files[6])], [False], set[int]()

    def ask() -> None:
        while not stop[0]:
            rows = search(serving[0], queries[:20], 10, fixed(40)).rows
            matching = [seed for seed in expected if np.array_equal(rows, expected[seed][:20])]
            assert len(matching) == 1
            seen.update(matching)

    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask) for _ in range(2)]
        turn = 0
        while not any(future.done() for future in asking) and (turn < 10 or seen != {6, 7}):
            serving[0] = copy_of(files[7 - turn % 2])
            gc.collect()
            turn += 1
        stop[0] = True
        for future in asking:
            future.result()
    assert seen == {6, 7}


def resident_bytes() -> int:
    gc.collect()
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


def resident_growth(searches: int) -> int:
    """Bytes that so many searches, one a call, leave in memory."""
    on = small(L2)
    before = 0
    for q in range(2000 + searches):
        if q == 2000:
            before = resident_bytes()
        search(on.graph, on.queries[q % QUERIES][None], 10, RATIO_POLICY)
    return resident_bytes() - before


@pytest.mark.drill
def test_memory_stays_as_it_is_over_a_million_searches() -> None:
    searches = 1_000_000 if os.environ.get("FRUGALADS_DRILL") else 50_000
    assert resident_growth(searches) < 4 << 20


def test_what_a_kernel_would_read_out_of_bounds_is_refused() -> None:
    on, queries = small(L2), small(L2).queries
    bad: Any
    for bad in (queries[:, :5], queries.astype(np.float64), queries[0]):
        with pytest.raises(ValueError, match="queries"):
            search(on.graph, bad, 10, fixed(10))
        with pytest.raises(ValueError, match="queries"):
            record(on.graph, bad, 10, np.zeros(QUERIES, dtype=np.float32), 50)
    with pytest.raises(ValueError, match="nearest"):
        record(on.graph, queries, 10, np.zeros(3, dtype=np.float32), 50)
    with pytest.raises(ValueError, match="k = 0"):
        search(on.graph, queries, 0, fixed(10))
    with pytest.raises(ValueError, match="bitmap"):
        search(on.graph, queries, 10, fixed(10), bitmap=np.zeros(VECTORS // 8 - 1, dtype=np.uint8))
    for caps in (np.ones(3, dtype=np.int64), np.arange(QUERIES)):
        with pytest.raises(ValueError, match="caps"):
            search(on.graph, queries, 10, fixed(10), caps=caps)
    with pytest.raises(ValueError, match="caps"):
        search(on.graph, queries, 10, Policy(RATIO, np.array([0.3, 0.5]), 0))
    with pytest.raises(ValueError, match="knobs"):
        search(on.graph, queries, 10, fixed(10), knobs=np.ones(3))


@pytest.mark.parametrize("policy", [fixed(30), RATIO_POLICY], ids=["beam", "ratio"])
def test_more_neighbours_than_vectors_and_numbers_that_are_none_end_a_walk(policy: Policy) -> None:
    on = small(L2)
    index = faiss.IndexHNSWFlat(DIMENSION, 8)
    index.add(on.vectors[:7])
    rows = search(graph_of(index), on.queries, 9, policy).rows
    np.testing.assert_array_equal(np.sort(rows, axis=1), [[-1, -1, *range(7)]] * QUERIES)
    for number in (np.nan, np.inf):
        lost = np.full((1, DIMENSION), np.float32(number))
        rows = search(on.graph, lost, 10, policy).rows
        assert ((rows >= -1) & (rows < VECTORS)).all()


def test_a_rule_that_a_walk_cannot_follow_is_refused() -> None:
    with pytest.raises(ValueError, match=f"rule {DENSITY}"):
        search(small(L2).graph, small(L2).queries, 10, Policy(DENSITY, np.zeros(3), 10))
    with pytest.raises(ValueError, match=f"rule {RATIO}"):  # of inner products, which may be negative
        search(small(INNER).graph, small(INNER).queries, 10, RATIO_POLICY)


@pytest.mark.parametrize("at", [0, -1], ids=["first", "last"])
def test_links_to_nodes_that_are_not_there_are_refused(at: int) -> None:
    index = built(L2, 8).index
    links = faiss.rev_swig_ptr(index.hnsw.neighbors.data(), index.hnsw.neighbors.size())
    links[at] = VECTORS
    with pytest.raises(ValueError, match="links"):
        graph_of(index)


def test_an_entry_and_levels_that_do_not_fit_are_refused() -> None:
    index = built(L2, 8).index
    good = index.hnsw.entry_point
    index.hnsw.entry_point = VECTORS
    with pytest.raises(ValueError, match="entry"):
        graph_of(index)
    index.hnsw.entry_point = good
    low = int(np.flatnonzero(faiss.vector_to_array(index.hnsw.levels) == 1)[0])
    links = faiss.rev_swig_ptr(index.hnsw.neighbors.data(), index.hnsw.neighbors.size())
    start = int(index.hnsw.offsets.at(good)) + 16  # its links on level 1
    links[start] = low
    with pytest.raises(ValueError, match="level 1"):
        graph_of(index)
    with pytest.raises(ValueError, match="0 vectors"):
        graph_of(faiss.IndexHNSWFlat(DIMENSION, 8))
