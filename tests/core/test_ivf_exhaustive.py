"""The exhaustive search against brute force and against the search that ranks lists."""

from __future__ import annotations

import numpy as np
import pytest
from small_ivf import LISTS, QUERIES, VECTORS, exact, flat, quantized

from services.core.ivf.exhaustive import exhaustive
from services.core.ivf.memory import lists_over, rows_at
from services.core.ivf.search import search
from services.core.stopping.policy import fixed


@pytest.mark.parametrize("share", [None, 0.5, 0.02, 0.0])
@pytest.mark.parametrize("k", [1, 10, 200])
def test_it_finds_what_a_search_over_every_list_finds(k: int, share: float | None) -> None:
    small = flat()
    mask = np.random.default_rng(2).random(VECTORS) < (1 if share is None else share)
    bitmap = None if share is None else np.packbits(mask, bitorder="little")
    distances, rows, codes = exhaustive(small.lists, small.queries, k, bitmap)
    found = search(small.lists, small.queries, k, fixed(LISTS), bitmap=bitmap)
    np.testing.assert_array_equal(distances, found.distances)
    np.testing.assert_array_equal(rows, found.rows)
    assert (codes == mask.sum()).all()
    squares = np.sort(np.where(mask, exact(small, small.queries), np.inf), axis=1)[:, :k]
    np.testing.assert_allclose(distances, squares, rtol=1e-4)


def test_one_block_of_memory_holds_what_many_do() -> None:
    small = flat()
    given = small.lists
    ids = [rows_at(address, size) for address, size in zip(given.ids, given.sizes, strict=True)]
    rows = np.concatenate(ids)
    vectors = np.ascontiguousarray(small.vectors[rows])
    lists = lists_over(vectors, rows, given.sizes, given.centroids)
    for k in (1, 20):
        for one, many in zip(
            exhaustive(lists, small.queries, k), exhaustive(given, small.queries, k), strict=True
        ):
            np.testing.assert_array_equal(one, many)
        one_search, many_search = (search(view, small.queries, k, fixed(7)) for view in (lists, given))
        np.testing.assert_array_equal(one_search.distances, many_search.distances)
        np.testing.assert_array_equal(one_search.rows, many_search.rows)
    for fault in ({"rows": rows[1:]}, {"vectors": vectors[:, 1:]}, {"sizes": given.sizes[1:]}):
        arrays = {"vectors": vectors, "rows": rows, "sizes": given.sizes, "centroids": given.centroids}
        with pytest.raises(ValueError, match="vectors"):
            lists_over(**{**arrays, **fault})


def test_an_answer_does_not_depend_on_its_batch() -> None:
    small = flat()
    together = exhaustive(small.lists, small.queries, 5)
    for q in range(0, QUERIES, 23):
        for alone, all_ in zip(exhaustive(small.lists, small.queries[q : q + 1], 5), together, strict=True):
            np.testing.assert_array_equal(alone[0], all_[q])


def test_shapes_that_do_not_fit_are_refused() -> None:
    small = flat()
    with pytest.raises(ValueError, match="queries"):
        exhaustive(small.lists, np.zeros((1, 11), dtype=np.float32), 1)
    with pytest.raises(ValueError, match="k = 0"):
        exhaustive(small.lists, small.queries, 0)
    with pytest.raises(ValueError, match="quantized"):
        exhaustive(quantized().lists, small.queries, 1)
    with pytest.raises(ValueError, match="bitmap"):
        exhaustive(small.lists, small.queries, 1, np.zeros(3, dtype=np.uint8))
