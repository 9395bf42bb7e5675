"""Product quantization of an index: code size and re-ranking depth for a recall ceiling, at the least cost.

Vectors are rotated so that the parts of a code carry alike (OPQ: Ge, He, Ke, Sun, "Optimized Product
Quantization", CVPR 2013), clustered, and coded by one byte a part; a search compares codes by look-up tables
and re-ranks its best candidates by the vectors themselves. Whole vectors are quantized, not their residuals
to the centroid: residuals would need a table for each list visited, which at 150 vectors a list costs more
than the finer codes save. The loss of codes is bounded by what is measured: the shortest code and the least
number of candidates with which a search over every list finds CEILING of the k nearest for every k up to
DEPTH_K.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from services.core.ivf.memory import Lists
from services.core.ivf.search import search
from services.core.stopping.policy import fixed
from services.retrieval.calibration import DEPTH_K, calibrated_ks, limits_of
from services.retrieval.kernels import faiss
from services.retrieval.vectors import CODEWORDS

CEILING = 0.997
MIN_VECTORS = 4 * CODEWORDS
_MARGIN = 0.001  # of the ceiling above what is asked for, as it is measured on a sample
_SAMPLE_QUERIES = 200
# Finer training (20,000 rows, 10 rotations) took 129 s of a core for 20,000 vectors of 384 numbers instead of
# 19; the depth that the ceiling takes varies more with the sample than with it.
_TRAIN_ROWS = 10_000
_ROTATIONS = 4
_ITERATIONS = 10
_POINTS_PER_WORD = 64
_DEPTHS = (100, 150, 200, 300, 400, 600, 800, 1200, 1600)

Floats = npt.NDArray[np.float32]


def code_sizes(dimension: int) -> list[int]:
    """Bytes of a code, from the shortest tried on: about four, two, one number of the vector a byte."""
    sizes = {_parts(dimension, width) for width in (4, 2, 1)}
    return sorted(sizes)


def rotation_for(unit: Floats, parts: int, rng: np.random.Generator) -> Floats:
    """The rotation [d, d] that suits codes of `parts` bytes, trained on a sample of `unit` [n, d]."""
    dimension = unit.shape[1]
    opq = faiss.OPQMatrix(dimension, parts)
    opq.niter, opq.niter_pq_0 = _ROTATIONS, _ITERATIONS
    pq = faiss.ProductQuantizer(dimension, parts, 8)
    _quick(pq)
    opq.pq = pq
    opq.train(np.ascontiguousarray(unit[np.sort(rng.permutation(len(unit))[:_TRAIN_ROWS])]))
    rotation: Floats = faiss.vector_to_array(opq.A).reshape(dimension, dimension)
    return rotation


def quantized_index(dimension: int, lists: int, parts: int) -> Any:
    """An untrained index of codes of `parts` bytes."""
    ivf = faiss.IndexIVFPQ(
        faiss.IndexFlatIP(dimension), dimension, lists, parts, 8, faiss.METRIC_INNER_PRODUCT
    )
    ivf.by_residual = False
    _quick(ivf.pq)
    return ivf


def _quick(pq: Any) -> None:
    pq.cp.niter = _ITERATIONS
    pq.cp.max_points_per_centroid = _POINTS_PER_WORD
    pq.cp.min_points_per_centroid = 1  # few vectors: no warning of FAISS


def depth_for(view: Lists, queries: Floats, vectors: Floats) -> int | None:
    """The least candidates with which a search over every list reaches the ceiling; None: none tried do.

    `queries` unit [m, d]; `vectors` unit [n, d] in row order.
    """
    some = np.ascontiguousarray(queries[:_SAMPLE_QUERIES])
    ks = [k for k in calibrated_ks(len(vectors)) if k <= DEPTH_K]
    limits = limits_of(some, vectors, ks)
    lists = len(view.sizes)
    for depth in _DEPTHS:
        recalls = []
        for k, limit in zip(ks, limits, strict=True):
            found = search(view, some, k, fixed(lists, depth))
            recalls.append((found.distances <= limit[:, None]).sum(axis=1).mean() / k)
        if min(recalls) >= CEILING + _MARGIN:
            return depth
    return None


def _parts(dimension: int, width: int) -> int:
    wanted = max(1, dimension // width)
    return next(parts for parts in range(wanted, 0, -1) if dimension % parts == 0)
