"""The exact k nearest of an inverted-file index: every vector that is admitted is compared.

Lists are taken as they lie in memory, without ranking them, and a vector that is not admitted is not touched:
under a filter that admits one in twenty a search costs a fifth of one that compares first and filters then.
The answer is that of `search` over every list, distances to the last bit, but for which of equally far
vectors takes the last place. O(n) tests and O(d) an admitted vector.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..compiled import compiled
from . import nearest
from .distances import squared_distance
from .memory import Floats, Ints, Lists, rows_at, vectors_at


@compiled
def _exhaustive(
    lists: Lists, queries: Floats, bitmap: npt.NDArray[np.uint8], distances: Floats, rows: Ints, codes: Ints
) -> None:
    dimension = queries.shape[1]
    for q in range(queries.shape[0]):
        query, found, names, compared = queries[q], distances[q], rows[q], 0
        nearest.empty(found, names)
        for key in range(lists.sizes.size):
            size = lists.sizes[key]
            ids, vectors = rows_at(lists.ids[key], size), vectors_at(lists.codes[key], size, dimension)
            for i in range(size):
                row = ids[i]
                if bitmap.size and not (bitmap[row >> 3] >> (row & 7)) & 1:
                    continue
                compared += 1
                distance = squared_distance(query, vectors[i])
                if distance < found[0]:
                    nearest.replace(found, names, distance, row)
        nearest.sort(found, names)
        codes[q] = compared


def exhaustive(
    lists: Lists, queries: Floats, k: int, bitmap: npt.NDArray[np.uint8] | None = None
) -> tuple[Floats, Ints, Ints]:
    """The k nearest of each query among the vectors of flat lists.

    queries: float32 [q, d], contiguous. bitmap: as in `search.search`. Returns squared distances float32 [q,
    k], infinite where there are fewer; rows int64 [q, k], -1 there; vectors compared int64 [q]. Releases the
    GIL. Raises ValueError for what a kernel would read out of bounds.
    """
    if queries.ndim != 2 or queries.shape[1] != lists.centroids.shape[1] or queries.dtype != np.float32:
        raise ValueError(f"queries: {queries.dtype} {queries.shape} over centroids {lists.centroids.shape}")
    if k < 1 or len(lists.books):
        raise ValueError(f"k = {k}, or quantized codes")
    if bitmap is not None and 8 * bitmap.size < lists.sizes.sum():
        raise ValueError(f"bitmap: {bitmap.size} bytes for {lists.sizes.sum()} rows")
    distances = np.empty((len(queries), k), dtype=np.float32)
    rows, codes = np.empty((len(queries), k), dtype=np.int64), np.empty(len(queries), dtype=np.int64)
    everyone = np.empty(0, dtype=np.uint8)
    _exhaustive(lists, queries, everyone if bitmap is None else bitmap, distances, rows, codes)
    return distances, rows, codes
