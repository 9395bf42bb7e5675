from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_ivf import DIMENSION, LISTS, QUERIES, VECTORS, Small, exact, faiss, flat, quantized

from services.core.ivf import nearest, ranking
from services.core.ivf.memory import lists_of
from services.core.ivf.scan import ROW_CODES, ROW_LISTS, ROW_STOPPED
from services.core.ivf.search import search
from services.core.stopping.policy import fixed

DISTANCES = st.floats(0, 2.0**90, width=32, allow_subnormal=False)


@pytest.mark.parametrize(("k", "lists"), [(1, 1), (1, 7), (10, 7), (10, LISTS), (37, 20)])
def test_flat_answers_are_those_of_faiss(k: int, lists: int) -> None:
    small = flat()
    parameters = faiss.SearchParametersIVF(nprobe=lists)
    distances, rows = small.index.search(small.queries, k, params=parameters)
    found = search(small.lists, small.queries, k, fixed(lists))
    # Sums in another order: two vectors at nearly the same distance may change places.
    assert (found.rows == rows).mean() > 0.999
    np.testing.assert_allclose(found.distances, distances, rtol=1e-5)
    assert (found.work[:, ROW_LISTS] == lists).all()
    assert (found.work[:, ROW_STOPPED] == 0).all()


def test_codes_counted_are_those_of_the_lists_visited() -> None:
    small = flat()
    _, keys = small.keep.search(small.queries, 9)
    found = search(small.lists, small.queries, 10, fixed(9))
    np.testing.assert_array_equal(found.work[:, ROW_CODES], small.lists.sizes[keys].sum(axis=1))


@pytest.mark.parametrize("lists", [5, LISTS])
def test_quantized_answers_are_those_of_faiss_with_exact_re_ranking(lists: int) -> None:
    small, k, depth = quantized(), 10, 60
    inner = faiss.SearchParametersPreTransform(index_params=faiss.SearchParametersIVF(nprobe=lists))
    parameters = faiss.IndexRefineSearchParameters(k_factor=depth / k, base_index_params=inner)
    distances, rows = small.index.search(small.queries, k, params=parameters)
    found = search(small.lists, small.queries, k, fixed(lists, depth))
    assert (found.rows == rows).mean() > 0.995  # equal codes: which of them is a candidate is open
    np.testing.assert_allclose(np.median(found.distances / distances), 1, rtol=1e-5)
    difference = small.vectors[found.rows] - small.queries[:, None]
    np.testing.assert_allclose(found.distances, (difference**2).sum(axis=2), rtol=1e-4)


def test_only_admitted_rows_are_found_and_counted() -> None:
    small = flat()
    mask = np.random.default_rng(1).random(VECTORS) < 0.1
    bitmap = np.packbits(mask, bitorder="little")
    found = search(small.lists, small.queries, 10, fixed(LISTS), bitmap=bitmap)
    squares = np.where(mask, exact(small, small.queries), np.inf)
    np.testing.assert_allclose(found.distances, np.sort(squares, axis=1)[:, :10], rtol=1e-4)
    assert (found.work[:, ROW_CODES] == mask.sum()).all()


def test_fewer_admitted_than_wanted_leave_empty_places_behind() -> None:
    small = flat()
    bitmap = np.zeros((VECTORS + 7) // 8, dtype=np.uint8)
    bitmap[0] = 0b101
    found = search(small.lists, small.queries, 4, fixed(LISTS), bitmap=bitmap)
    assert {tuple(sorted(row)) for row in found.rows[:, :2]} == {(0, 2)}
    assert (found.rows[:, 2:] == -1).all()
    assert np.isinf(found.distances[:, 2:]).all()


@pytest.mark.parametrize("small", [flat(), quantized()], ids=["flat", "quantized"])
def test_an_answer_does_not_depend_on_its_batch(small: Small) -> None:
    policy, caps = fixed(12, 30), 1 + np.arange(QUERIES) % 12
    together = search(small.lists, small.queries, 10, policy, caps=caps)
    for q in range(0, QUERIES, 17):
        alone = search(small.lists, small.queries[q : q + 1], 10, policy, caps=caps[q : q + 1])
        np.testing.assert_array_equal(alone.rows[0], together.rows[q])
        np.testing.assert_array_equal(alone.distances[0], together.distances[q])
        np.testing.assert_array_equal(alone.work[0], together.work[q])


def test_queries_with_different_targets_share_a_call() -> None:
    small = flat()
    knobs, caps = 3 + np.arange(QUERIES, dtype=np.float64) % 9, 4 + np.arange(QUERIES, dtype=np.int64) % 5
    together = search(small.lists, small.queries, 10, fixed(20), knobs=knobs, caps=caps)
    assert together.work[:, ROW_LISTS].tolist() == np.minimum(knobs, caps).astype(int).tolist()
    for q in range(0, QUERIES, 13):
        alone = search(small.lists, small.queries[q : q + 1], 10, fixed(int(min(knobs[q], caps[q]))))
        np.testing.assert_array_equal(alone.rows[0], together.rows[q])
        np.testing.assert_array_equal(alone.distances[0], together.distances[q])


def test_threads_get_the_answers_of_one() -> None:
    small = flat()
    serial = search(small.lists, small.queries, 10, fixed(8))
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: search(small.lists, small.queries, 10, fixed(8)), range(8)))
    for found in answers:
        np.testing.assert_array_equal(found.rows, serial.rows)


def test_shapes_that_do_not_fit_are_refused() -> None:
    small = flat()
    with pytest.raises(ValueError, match="dimension 12"):
        search(small.lists, np.zeros((1, 11), dtype=np.float32), 1, fixed(1))
    with pytest.raises(ValueError, match="float64"):
        search(small.lists, np.zeros((1, 12)), 1, fixed(1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="k = 0"):
        search(small.lists, small.queries, 0, fixed(1))
    with pytest.raises(ValueError, match="bitmap"):
        search(small.lists, small.queries, 1, fixed(1), bitmap=np.zeros(3, dtype=np.uint8))
    with pytest.raises(ValueError, match="caps"):
        search(small.lists, small.queries, 1, fixed(1), caps=np.zeros(QUERIES, dtype=np.int64))
    with pytest.raises(ValueError, match="knobs"):
        search(small.lists, small.queries, 1, fixed(1), knobs=np.zeros(3))
    with pytest.raises(ValueError, match="lists of"):
        lists_of(small.index.invlists, np.zeros((LISTS - 1, DIMENSION), dtype=np.float32))
    with pytest.raises(ValueError, match="rotation"):
        lists_of(
            small.index.invlists,
            small.lists.centroids,
            rotation=np.zeros((3, DIMENSION), dtype=np.float32),
        )


@given(
    st.lists(DISTANCES | st.sampled_from([0.0, 1.0, 2.0]), min_size=1, max_size=300),
    st.lists(st.integers(1, 80), max_size=6),
)
def test_lists_are_ranked_as_a_sort_would(values: list[float], steps: list[int]) -> None:
    distances = np.array(values, dtype=np.float32)
    keys = np.empty(distances.size, dtype=np.int64)
    ranking.pack(distances, keys)
    stack = np.empty(ranking.STACK, dtype=np.int64)
    stack[0] = distances.size
    order = np.lexsort((np.arange(distances.size), distances))
    depth, ready = 1, 0
    for step in [*steps, distances.size]:
        depth, ready = ranking.extend(keys, stack, depth, ready, ready + step)
        np.testing.assert_array_equal(keys[:ready] & 0xFFFFFFFF, order[:ready])
    assert ready == distances.size


@given(st.lists(DISTANCES, max_size=60), st.integers(1, 12))
def test_the_heap_keeps_the_nearest(values: list[float], k: int) -> None:
    distances, rows = np.empty(k, dtype=np.float32), np.empty(k, dtype=np.int64)
    nearest.empty(distances, rows)
    for row, value in enumerate(np.array(values, dtype=np.float32)):
        if value < distances[0]:
            nearest.replace(distances, rows, value, row)
    nearest.sort(distances, rows)
    best = np.sort(np.array(values, dtype=np.float32))[:k]
    np.testing.assert_array_equal(distances[: best.size], best)
    assert np.isinf(distances[best.size :]).all()
    assert all(values[row] == distance for row, distance in zip(rows, distances, strict=True) if row >= 0)
