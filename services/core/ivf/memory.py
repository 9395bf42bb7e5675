"""The arrays of an inverted-file index, read where the index keeps them.

FAISS owns codes and ids, one block of memory a list; vectors that we hold lie in list order in one block, of
which an exact search reads twice as many a second. An index is immutable once served, so the address of each
list is taken once and a kernel makes an array of it in place: no copy, no call per list. Who holds a `Lists`
must keep what it came from alive.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import carray as _carray  # type: ignore[attr-defined]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..compiled import compiled

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


class Lists(NamedTuple):
    """An index as a kernel sees it.

    codes, ids: int64 [lists], addresses of each list's codes and of its int64 rows. sizes: int64 [lists].
    centroids: float32 [lists, d]. books: float32 [m, 256, d/m], the codewords of product quantization; m is 0
    where codes are float32 vectors. rotation: float32 [d, d], applied to a query before anything else
    (query -> rotation @ query); 0 rows for none. vectors: float32 [rows, d] as they were before rotation, for
    the exact re-ranking of quantized candidates; 0 rows where codes are vectors.
    """

    codes: Ints
    ids: Ints
    sizes: Ints
    centroids: Floats
    books: Floats
    rotation: Floats
    vectors: Floats


def _pointer(context: Any, address: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


_as_pointer: Any = intrinsic(_pointer)


@compiled
def vectors_at(address: int, count: int, dimension: int) -> Floats:
    """float32 [count, dimension] at an address."""
    array: Floats = _carray(_as_pointer(address), (count, dimension), np.float32)
    return array


@compiled
def codes_at(address: int, count: int, width: int) -> npt.NDArray[np.uint8]:
    """uint8 [count, width] at an address."""
    array: npt.NDArray[np.uint8] = _carray(_as_pointer(address), (count, width), np.uint8)
    return array


@compiled
def rows_at(address: int, count: int) -> Ints:
    """int64 [count] at an address."""
    array: Ints = _carray(_as_pointer(address), (count,), np.int64)
    return array


def lists_over(vectors: Floats, rows: Ints, sizes: Ints, centroids: Floats) -> Lists:
    """The `Lists` of flat vectors float32 [n, d] that lie in list order, `sizes` int64 [lists] of them a
    list.

    rows: int64 [n], their numbers. Raises ValueError where the shapes do not fit.
    """
    n, dimension = vectors.shape
    shapes = centroids.shape == (len(sizes), dimension) and rows.shape == (n,) and sizes.sum() == n
    if not (shapes and vectors.flags.c_contiguous and rows.flags.c_contiguous):
        raise ValueError(f"vectors {vectors.shape}, rows {rows.shape}, centroids {centroids.shape}")
    nothing = np.empty((0, dimension), dtype=np.float32)
    starts = np.cumsum(sizes) - sizes
    return Lists(
        codes=vectors.ctypes.data + vectors.strides[0] * starts,
        ids=rows.ctypes.data + rows.itemsize * starts,
        sizes=sizes,
        centroids=np.ascontiguousarray(centroids, dtype=np.float32),
        books=np.empty((0, 256, 1), dtype=np.float32),
        rotation=nothing,
        vectors=nothing,
    )


def lists_of(
    invlists: Any,
    centroids: Floats,
    *,
    books: Floats | None = None,
    rotation: Floats | None = None,
    vectors: Floats | None = None,
) -> Lists:
    """The `Lists` of FAISS' ArrayInvertedLists and the float32 centroids [lists, d] of its quantizer.

    Raises ValueError where the shapes do not fit, which a kernel would read out of bounds.
    """
    count, dimension = centroids.shape
    nothing = np.empty((0, dimension), dtype=np.float32)
    books = np.empty((0, 256, 1), dtype=np.float32) if books is None else books
    rotation = nothing if rotation is None else rotation
    vectors = nothing if vectors is None else vectors
    keys = range(count)
    lists = Lists(
        np.fromiter((int(invlists.get_codes(key)) for key in keys), dtype=np.int64, count=count),
        np.fromiter((int(invlists.get_ids(key)) for key in keys), dtype=np.int64, count=count),
        np.fromiter((invlists.list_size(key) for key in keys), dtype=np.int64, count=count),
        *(np.ascontiguousarray(part, dtype=np.float32) for part in (centroids, books, rotation, vectors)),
    )
    parts, words, width = books.shape
    code_bytes = parts if parts else 4 * dimension
    if invlists.nlist != count or invlists.code_size != code_bytes:
        raise ValueError(
            f"{invlists.nlist} lists of {invlists.code_size}-byte codes, not {count} of {code_bytes}"
        )
    if parts and (words != 256 or parts * width != dimension or len(vectors) < lists.sizes.sum()):
        raise ValueError(f"books {books.shape} and {len(vectors)} vectors for dimension {dimension}")
    if len(rotation) and rotation.shape != (dimension, dimension):
        raise ValueError(f"rotation {rotation.shape} for dimension {dimension}")
    if vectors.shape[1] != dimension:
        raise ValueError(f"vectors {vectors.shape} for dimension {dimension}")
    return lists
