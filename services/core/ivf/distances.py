"""Squared distances of one query to the codes of a list: flat vectors, or product-quantized ones.

A sum of floats is only vectorised when its order may change, so these kernels, unlike all others here, allow
the compiler to reassociate additions (and nothing else that fast-math would: NaN and infinities keep their
meaning). With that a loop of unknown length runs at the speed of FAISS' own kernels (d = 50: 4.0 ns a vector
against 5.1; d = 384: 23.8 against 24.9). The order, and so the last bit of a distance, is the same for the
same dimension on the same CPU, whatever list or batch a vector stands in.

Unit vectors under inner product use the same kernel: |q - x|^2 = 2 - 2 q.x, so one order serves both.

Product quantization (Jegou, Douze, Schmid, "Product quantization for nearest neighbor search", PAMI 33, 2011,
section 3.2, asymmetric distance): a code is one byte a sub-space, and the distance is the sum of one look-up
a byte in a table made once per query.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from ..compiled import compiled

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz"},
}


def _reassociating(function: Any) -> Any:
    try:
        return numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # numba found no folder to write to
        return numba.njit(**_OPTIONS)(function)


def _squared_distance(a: Floats, b: Floats) -> np.float32:
    total = np.float32(0)
    for j in range(a.size):
        difference = a[j] - b[j]
        total += difference * difference
    return total


def _inner_product(a: Floats, b: Floats) -> np.float32:
    total = np.float32(0)
    for j in range(a.size):
        total += a[j] * b[j]
    return total


squared_distance = _reassociating(_squared_distance)
"""Squared Euclidean distance of two float32 vectors."""
inner_product = _reassociating(_inner_product)
"""Inner product of two float32 vectors."""


@compiled
def flat_distances(query: Floats, vectors: Floats, out: Floats) -> None:
    """Squared distance of `query` [d] to each of `vectors` [n, d], into out[:n]."""
    for i in range(vectors.shape[0]):
        out[i] = squared_distance(query, vectors[i])


@compiled
def distance_table(query: Floats, books: Floats, table: Floats) -> None:
    """Squared distance of each part of `query` [d] to each codeword of `books` [m, 256, d/m]: table [m,
    256]."""
    parts, _, width = books.shape
    for m in range(parts):
        part = query[m * width : (m + 1) * width]
        for code in range(256):
            table[m, code] = squared_distance(part, books[m, code])


def _table_sums(table: Floats, codes: Bytes, out: Floats) -> None:
    parts = table.shape[0]
    for i in range(codes.shape[0]):
        total = np.float32(0)
        for m in range(parts):
            total += table[m, codes[i, m]]
        out[i] = total


table_sums = _reassociating(_table_sums)
"""Sum of table look-ups [m, 256] of each of `codes` uint8 [n, m], into out[:n]."""
