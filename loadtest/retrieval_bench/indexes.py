"""The indexes under test: FAISS builds them, and both FAISS and our scan search the same lists."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import faiss as _faiss
import numpy as np
import numpy.typing as npt

from services.core.ivf.memory import Lists, lists_of
from services.core.ivf.search import Found, search
from services.core.stopping.policy import Policy
from services.runtime.errors import UserError

faiss: Any = _faiss

IVF, IVFPQ = "ivf", "ivfpq"
CEILING = 0.997
_POINTS = 64  # training vectors a list
_ITERATIONS = 12
_DEPTHS = (20, 40, 80, 160, 320, 640, 1280)
_SAMPLE = 500
_OPQ_SAMPLE = 10_000
_UNIT = 1e-3

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Built:
    """An index as our scan sees it, and stock FAISS over the same lists.

    stock(queries, k, nprobe, depth): the rows [q, k] that FAISS finds. keep: what owns the memory of `lists`.
    """

    lists: Lists
    stock: Callable[[Floats, int, int, int], npt.NDArray[np.int64]]
    keep: Any

    def search(self, queries: Floats, k: int, policy: Policy) -> Found:
        """Our scan."""
        return search(self.lists, queries, k, policy)


def number_of_lists(n: int) -> int:
    """About 4 sqrt(n), as `frugalads index build` has it."""
    return max(1, min(round(4 * math.sqrt(n)), n // 39))


def build(kind: str, vectors: Floats, seed: int) -> Built:
    """Builds an index of `kind` over float32 [n, d] by squared distance."""
    faiss.omp_set_num_threads(1)
    if kind == IVF:
        return _flat(vectors, seed)
    if kind == IVFPQ:
        return _quantized(vectors, seed)
    raise UserError(f"index {kind!r}: must be {IVF} or {IVFPQ}")


def _clustering(index: Any, vectors: Floats, seed: int) -> None:
    """Sets the k-means. Unit vectors get unit centroids, as FAISS has it for inner products: with plain means
    the fixed budget of MiniLM vectors is a fifth larger."""
    lengths = np.linalg.norm(vectors[:: max(1, len(vectors) // 1000)], axis=1)
    index.cp.spherical = bool(np.abs(lengths - 1).max() < _UNIT)
    index.cp.seed = seed
    index.cp.niter = _ITERATIONS
    index.cp.max_points_per_centroid = _POINTS


def _centroids(quantizer: Any, lists: int, dimension: int) -> Floats:
    array: Floats = faiss.vector_to_array(quantizer.codes).view(np.float32).reshape(lists, dimension)
    return array


def _flat(vectors: Floats, seed: int) -> Built:
    n, dimension = vectors.shape
    lists = number_of_lists(n)
    quantizer = faiss.IndexFlatL2(dimension)
    index = faiss.IndexIVFFlat(quantizer, dimension, lists)
    _clustering(index, vectors, seed)
    index.train(vectors)
    index.add(vectors)

    def stock(queries: Floats, k: int, nprobe: int, _depth: int) -> npt.NDArray[np.int64]:
        parameters = faiss.SearchParametersIVF(nprobe=nprobe)
        rows: npt.NDArray[np.int64] = index.search(queries, k, params=parameters)[1]
        return rows

    return Built(lists_of(index.invlists, _centroids(quantizer, lists, dimension)), stock, (index, quantizer))


def _parts(dimension: int) -> int:
    """Bytes of a code: two numbers a byte up to 64 numbers, four a byte above."""
    wanted = dimension // (2 if dimension <= 64 else 4)
    return next(parts for parts in range(wanted, 0, -1) if dimension % parts == 0)


def _quantized(vectors: Floats, seed: int) -> Built:
    """OPQ, product quantization of whole vectors, exact re-ranking.

    Not of residuals: they would need a look-up table a list instead of one a query, which at 150 vectors a
    list costs more than the finer codes save.
    """
    n, dimension = vectors.shape
    lists, parts = number_of_lists(n), _parts(dimension)
    rng = np.random.default_rng(seed)
    sample = np.ascontiguousarray(vectors[rng.permutation(n)[:_OPQ_SAMPLE]])
    rotation = faiss.OPQMatrix(dimension, parts)
    rotation.niter, rotation.niter_pq_0 = 5, 10
    rotation.train(sample)
    quantizer = faiss.IndexFlatL2(dimension)
    index = faiss.IndexIVFPQ(quantizer, dimension, lists, parts, 8)
    index.by_residual = False
    _clustering(index, vectors, seed)
    index.pq.cp.niter, index.pq.cp.max_points_per_centroid = _ITERATIONS, _POINTS
    rotated = rotation.apply(vectors)
    index.train(rotated)
    index.add(rotated)
    whole = faiss.IndexPreTransform(rotation, index)
    refined = faiss.IndexRefineFlat(whole, faiss.swig_ptr(vectors))

    def stock(queries: Floats, k: int, nprobe: int, depth: int) -> npt.NDArray[np.int64]:
        inner = faiss.SearchParametersPreTransform(index_params=faiss.SearchParametersIVF(nprobe=nprobe))
        parameters = faiss.IndexRefineSearchParameters(k_factor=depth / k, base_index_params=inner)
        rows: npt.NDArray[np.int64] = refined.search(queries, k, params=parameters)[1]
        return rows

    matrix = faiss.vector_to_array(rotation.A).reshape(dimension, dimension)
    books = faiss.vector_to_array(index.pq.centroids).reshape(parts, 256, dimension // parts)
    seen = lists_of(
        index.invlists,
        _centroids(quantizer, lists, dimension),
        books=books,
        rotation=matrix,
        vectors=vectors,
    )
    return Built(seen, stock, (refined, whole, index, quantizer, rotation, vectors))


def depth_for(built: Built, queries: Floats, limits: Floats, vectors: Floats, k: int) -> int:
    """Candidates to re-rank so that an exhaustive search finds a share CEILING of the k nearest; 0 for flat
    codes.

    limits: float32 [q], the squared distance that counts as found. Raises UserError when no depth tried
    suffices.
    """
    if not len(built.lists.books):
        return 0
    some = queries[:_SAMPLE]
    for depth in _DEPTHS:
        if depth < 2 * k:
            continue
        rows = built.stock(some, k, len(built.lists.sizes), depth)
        difference = vectors[rows] - some[:, None, :]
        distances = np.einsum("qkd,qkd->qk", difference, difference)
        if (distances <= limits[: len(some), None]).sum(axis=1).clip(max=k).mean() >= (CEILING + 0.001) * k:
            return depth
    raise UserError(f"codes of {len(built.lists.books)} bytes are too coarse for k = {k}")
