"""A small graph of clustered vectors, and what FAISS finds on it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import faiss as _faiss
import numpy as np
import numpy.typing as npt

from services.core.hnsw.graph import Graph

faiss: Any = _faiss

DIMENSION = 12
VECTORS = 4000
QUERIES = 200
L2, INNER, COSINE = "l2", "inner", "cosine"

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Small:
    """vectors [VECTORS, d], queries [QUERIES, d], FAISS' index over them and our view of it."""

    vectors: Floats
    queries: Floats
    index: Any
    graph: Graph


def vectors_of(metric: str, seed: int = 5) -> tuple[Floats, Floats]:
    """Vectors and queries; of unit length for COSINE."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((200, DIMENSION))
    rows = centres[rng.integers(0, 200, VECTORS + QUERIES)] + 0.7 * rng.standard_normal(
        (VECTORS + QUERIES, DIMENSION)
    )
    if metric == COSINE:
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    single: Floats = rows.astype(np.float32)
    return single[:VECTORS], single[VECTORS:]


def built(metric: str, seed: int = 5) -> Small:
    """A graph of its own."""
    faiss.omp_set_num_threads(1)
    vectors, queries = vectors_of(metric, seed)
    number = faiss.METRIC_L2 if metric == L2 else faiss.METRIC_INNER_PRODUCT
    index = faiss.IndexHNSWFlat(DIMENSION, 8, number)
    index.hnsw.efConstruction = 40
    index.add(vectors)
    return Small(vectors, queries, index, graph_of(index))


@cache
def small(metric: str) -> Small:
    """The graph of a metric, built once."""
    return built(metric)


def graph_of(index: Any) -> Graph:
    """Our view of FAISS' index."""
    return Graph(index, faiss.downcast_index(index.storage))


def limits(on: Small, k: int) -> Floats:
    """Squared distance that counts as one of the k nearest, [QUERIES]."""
    difference = on.queries[:, None, :].astype(np.float64) - on.vectors[None, :, :]
    squares = np.einsum("qnd,qnd->qn", difference, difference)
    return (np.sort(squares, axis=1)[:, k - 1] * (1 + 1e-5)).astype(np.float32)
