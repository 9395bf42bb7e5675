"""A small inverted-file index of clustered vectors, and searches recorded on it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import faiss as _faiss
import numpy as np
import numpy.typing as npt

from services.core.ivf.memory import Lists, lists_of
from services.core.ivf.search import record
from services.core.stopping.replay import Trace

faiss: Any = _faiss

DIMENSION = 12
LISTS = 60
VECTORS = 6000
QUERIES = 200
PARTS = 6


@dataclass(frozen=True)
class Small:
    """vectors [VECTORS, d], queries [QUERIES, d], FAISS' index over them and our view of it."""

    vectors: npt.NDArray[np.float32]
    queries: npt.NDArray[np.float32]
    index: Any
    lists: Lists
    keep: Any


def _vectors() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    rng = np.random.default_rng(5)
    centres = rng.standard_normal((300, DIMENSION))
    rows = centres[rng.integers(0, 300, VECTORS + QUERIES)] + 0.7 * rng.standard_normal(
        (VECTORS + QUERIES, DIMENSION)
    )
    single: npt.NDArray[np.float32] = rows.astype(np.float32)
    return single[:VECTORS], single[VECTORS:]


@cache
def flat() -> Small:
    faiss.omp_set_num_threads(1)
    vectors, queries = _vectors()
    quantizer = faiss.IndexFlatL2(DIMENSION)
    index = faiss.IndexIVFFlat(quantizer, DIMENSION, LISTS)
    index.train(vectors)
    index.add(vectors)
    return Small(vectors, queries, index, lists_of(index.invlists, _centroids(quantizer)), quantizer)


@cache
def quantized() -> Small:
    faiss.omp_set_num_threads(1)
    vectors, queries = _vectors()
    quantizer = faiss.IndexFlatL2(DIMENSION)
    rotation = faiss.OPQMatrix(DIMENSION, PARTS)
    rotation.niter = 3
    rotation.train(vectors)
    index = faiss.IndexIVFPQ(quantizer, DIMENSION, LISTS, PARTS, 8)
    index.by_residual = False
    rotated = rotation.apply(vectors)
    index.train(rotated)
    index.add(rotated)
    whole = faiss.IndexPreTransform(rotation, index)
    refined = faiss.IndexRefineFlat(whole, faiss.swig_ptr(vectors))
    lists = lists_of(
        index.invlists,
        _centroids(quantizer),
        books=faiss.vector_to_array(index.pq.centroids).reshape(PARTS, 256, DIMENSION // PARTS),
        rotation=faiss.vector_to_array(rotation.A).reshape(DIMENSION, DIMENSION),
        vectors=vectors,
    )
    return Small(vectors, queries, refined, lists, (rotation, whole, index, quantizer))


def exact(small: Small, queries: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Squared distance of every vector: float64 [q, n]."""
    difference = queries[:, None, :].astype(np.float64) - small.vectors[None, :, :]
    squares: npt.NDArray[np.float64] = np.einsum("qnd,qnd->qn", difference, difference)
    return squares


def traced(small: Small, k: int, depth: int = 0, width: int = LISTS) -> Trace:
    """Every query's searches over `width` lists."""
    nearest = np.sort(exact(small, small.queries), axis=1)[:, k - 1] * (1 + 1e-5)
    return record(small.lists, small.queries, k, depth, nearest.astype(np.float32), width)


def _centroids(quantizer: Any) -> npt.NDArray[np.float32]:
    array: npt.NDArray[np.float32] = (
        faiss.vector_to_array(quantizer.codes).view(np.float32).reshape(LISTS, DIMENSION)
    )
    return array
