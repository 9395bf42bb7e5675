"""FAISS calls that are safe under threads and unsafe arguments: the only place where searches touch FAISS.

* Nothing of an index object is written after loading: nprobe and its kin travel in a parameters object made
  for each call, with every field set (one left out falls back to 1, not to the index's value; faiss #3321).
* `search_preassigned_c` gets an own statistics object, else a global one is bumped without a lock.
* Selector, bitmap and arrays stay referenced by Python until the call returns.
* Each searching thread calls `use_one_thread` first. OpenMP keeps the thread count per calling thread, so
  setting it once in the main thread would leave every pool thread with an OpenMP team of its own.
* Coarse ranking goes in blocks below FAISS' BLAS threshold (20 rows): as fast at these sizes, and a row's
  ranking does not depend on the rows beside it.
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
    """Makes FAISS calls of the calling thread single-threaded; the initializer of every search pool."""
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


def scan(
    ivf: Any, queries: Floats, keys: Ints, k: int, bitmap: npt.NDArray[np.uint8] | None
) -> tuple[Floats, Ints]:
    """Compares each query with the vectors of its lists.

    `queries` float32 [rows, d]; `keys` int64 [rows, width], lists to visit, -1 for none; k >= 1; `bitmap`
    one bit a row of the index, lowest first, of those admitted (None: all). Returns similarities float32 and
    rows int64, both [rows, k], most similar first, row -1 where fewer than k were found. Releases the GIL.
    Raises ValueError for shapes that do not fit, which FAISS would read out of bounds.
    """
    count, width = keys.shape
    if queries.shape != (count, ivf.d) or width < 1 or k < 1:
        raise ValueError(f"scan of {queries.shape} queries by {keys.shape} keys for k={k}")
    if bitmap is not None and bitmap.size * 8 < ivf.ntotal:
        raise ValueError(f"a bitmap of {bitmap.size} bytes for {ivf.ntotal} rows")
    queries = np.ascontiguousarray(queries, dtype=np.float32)
    keys = np.ascontiguousarray(keys, dtype=np.int64)
    unused = np.zeros(keys.shape, dtype=np.float32)  # Flat codes are not residuals: no coarse distances
    similarities = np.empty((count, k), dtype=np.float32)
    found = np.empty((count, k), dtype=np.int64)
    selector = None if bitmap is None else faiss.IDSelectorBitmap(bitmap)
    parameters = faiss.SearchParametersIVF(
        nprobe=width,
        max_codes=0,
        max_lists_num=0,
        ensure_topk_full=False,
        max_empty_result_buckets=0,
        quantizer_params=None,
        inverted_list_context=None,
        sel=selector,
    )
    ivf.search_preassigned_c(
        count,
        faiss.swig_ptr(queries),
        k,
        faiss.swig_ptr(keys),
        faiss.swig_ptr(unused),
        faiss.swig_ptr(similarities),
        faiss.swig_ptr(found),
        False,
        parameters,
        faiss.IndexIVFStats(),
    )
    return similarities, found


def inner_products(query: Floats, vectors: Floats) -> Floats:
    """Inner product of one query [d] with each of `vectors` [n, d], by the kernel that `scan` uses.

    Equal vectors therefore give equal similarities in the index and in the delta.
    """
    if query.shape != vectors.shape[1:]:
        raise ValueError(f"query {query.shape} for vectors {vectors.shape}")
    query = np.ascontiguousarray(query, dtype=np.float32)
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    products = np.empty(len(vectors), dtype=np.float32)
    if len(vectors):
        faiss.fvec_inner_products_ny(
            faiss.swig_ptr(products),
            faiss.swig_ptr(query),
            faiss.swig_ptr(vectors),
            vectors.shape[1],
            len(vectors),
        )
    return products


def list_sizes(ivf: Any) -> Ints:
    """Number of vectors in each inverted list: int64 [lists]."""
    sizes = (ivf.invlists.list_size(key) for key in range(ivf.nlist))
    return np.fromiter(sizes, dtype=np.int64, count=ivf.nlist)
