"""FAISS as we use it: to build an index and to read its file. Searches go through `services.core.ivf`, over
the arrays that FAISS keeps.

* Nothing of an index object is written after loading.
* A thread that calls FAISS calls `use_one_thread` first. OpenMP keeps the thread count per calling thread, so
  setting it once in the main thread would leave every pool thread with an OpenMP team of its own.
* Ranking goes in blocks below FAISS' BLAS threshold (20 rows): as fast at these sizes, and a row's ranking
  does not depend on the rows beside it.
"""

from __future__ import annotations

from typing import Any

import faiss as _faiss
import numpy as np
import numpy.typing as npt

faiss: Any = _faiss  # the stubs it ships lag behind what it offers

_COARSE_ROWS = 16

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


def use_one_thread() -> None:
    """Makes FAISS calls of the calling thread single-threaded; the initializer of every pool."""
    faiss.omp_set_num_threads(1)


def limit_loading(max_bytes: int) -> None:
    """Bounds what deserialization may allocate; process-wide and not thread-safe, so before any load."""
    faiss.set_deserialization_vector_byte_limit(max_bytes)
    faiss.set_deserialization_loop_limit(max(1_000_000, max_bytes // 1024))


def rank_lists(ivf: Any, queries: Floats, width: int) -> Ints:
    """The `width` nearest lists of each query, nearest first: int64 [rows, width]."""
    rows = len(queries)
    similarities = np.empty((rows, width), dtype=np.float32)
    keys = np.empty((rows, width), dtype=np.int64)
    for start in range(0, rows, _COARSE_ROWS):
        block = slice(start, start + _COARSE_ROWS)
        ivf.quantizer.search(queries[block], width, D=similarities[block], I=keys[block])
    return keys


def list_sizes(ivf: Any) -> Ints:
    """Number of vectors in each inverted list: int64 [lists]."""
    sizes = (ivf.invlists.list_size(key) for key in range(ivf.nlist))
    return np.fromiter(sizes, dtype=np.int64, count=ivf.nlist)
