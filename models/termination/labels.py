"""The k nearest of a query by exact search, ties included.

A vector as near as the k-th nearest is as good as it, so what is kept of the truth is one number a query: the
squared distance that a vector may have. It is computed as the search computes it, but for the order of
additions, which the tolerance covers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import faiss as _faiss
import numpy as np
import numpy.typing as npt

faiss: Any = _faiss

TOLERANCE = 1e-5
"""Relative difference of two float32 sums of the same squares in another order, at most."""
_BLOCK = 256

Floats = npt.NDArray[np.float32]
Progress = Callable[[int, int], None]


def nearest_distances(
    queries: Floats, vectors: Floats, ks: Sequence[int], progress: Progress = lambda _done, _total: None
) -> Floats:
    """Squared distance that counts as one of the k nearest: float32 [ks, q], for queries [q, d] over vectors
    [n, d].

    Raises ValueError when a k exceeds n.
    """
    most = max(ks)
    if most > len(vectors):
        raise ValueError(f"k = {most}: there are {len(vectors)} vectors")
    limits = np.empty((len(ks), len(queries)), dtype=np.float32)
    for start in range(0, len(queries), _BLOCK):
        block = queries[start : start + _BLOCK]
        _, rows = faiss.knn(block, vectors, most)
        for i, (query, near) in enumerate(zip(block, rows, strict=True)):
            difference = vectors[near] - query
            distances = np.sort(np.einsum("ij,ij->i", difference, difference))
            limits[:, start + i] = distances[np.asarray(ks) - 1] * (1 + TOLERANCE)
        progress(min(start + _BLOCK, len(queries)), len(queries))
    return limits
