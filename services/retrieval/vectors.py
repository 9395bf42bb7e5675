"""Reads the FAISS file of an index and checks everything that a search relies on.

A successful load proves nothing: of 200 files with three random bytes changed, plain FAISS served 138. The
checks cost one pass over the vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt

from services.retrieval.kernels import faiss, list_sizes
from services.runtime.errors import BundleError

VECTORS_FILE = "vectors.faiss"
MAX_DIMENSION = 65_536
UNIT_TOLERANCE = 1e-3
_BLOCK_ROWS = 4096


def read_vectors(data: bytes, size: int) -> Any:
    """The index in `data`, which must hold rows 0..size-1 in list order; BundleError when it is not sound."""
    try:
        ivf = faiss.read_index(faiss.PyCallbackIOReader(BytesIO(data).read))
    except (RuntimeError, ValueError, MemoryError) as error:
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        raise BundleError(f"{VECTORS_FILE}: FAISS cannot read it: {reason}") from error
    if type(ivf) is not faiss.IndexIVFFlat:
        raise BundleError(f"{VECTORS_FILE}: an index of type {type(ivf).__name__}, not IndexIVFFlat")
    _check(ivf, size)
    return ivf


def _check(ivf: Any, size: int) -> None:
    """Everything that a search relies on and FAISS does not check."""

    def require(holds: bool, what: str) -> None:
        if not holds:
            raise BundleError(f"{VECTORS_FILE}: {what}")

    require(0 < ivf.d <= MAX_DIMENSION and 0 < ivf.nlist <= size, "dimension or number of lists out of range")
    require(
        ivf.is_trained and ivf.metric_type == faiss.METRIC_INNER_PRODUCT, "not trained, or not inner product"
    )
    require(not ivf.by_residual and ivf.parallel_mode == 0, "residual codes or a parallel mode")
    lists = faiss.downcast_InvertedLists(ivf.invlists) if ivf.invlists is not None else None
    require(type(lists) is faiss.ArrayInvertedLists, "the inverted lists are not held in memory")
    require(ivf.quantizer is not None, "there is no coarse quantizer")
    require(ivf.code_size == ivf.invlists.code_size == 4 * ivf.d, "codes are not flat vectors")
    require(ivf.ntotal == size, f"{ivf.ntotal} vectors for {size} ads")
    require(ivf.invlists.nlist == ivf.nlist, "number of inverted lists differs")
    quantizer = faiss.downcast_index(ivf.quantizer)
    flat = type(quantizer) in (faiss.IndexFlat, faiss.IndexFlatIP)
    require(flat and quantizer.metric_type == faiss.METRIC_INNER_PRODUCT, "the coarse quantizer is not flat")
    require(quantizer.d == ivf.d and quantizer.ntotal == ivf.nlist, "the coarse quantizer has another shape")
    require(quantizer.codes.size() == 4 * ivf.d * ivf.nlist, "the coarse quantizer lacks centroids")
    centroids = faiss.vector_to_array(quantizer.codes).view(np.float32)
    require(bool(np.isfinite(centroids).all()), "a centroid is not finite")
    sizes = list_sizes(ivf)
    require(int(sizes.sum()) == size, f"the lists hold {int(sizes.sum())} vectors for {size} ads")
    start = 0
    for key, count in enumerate(sizes.tolist()):
        if count:
            rows = faiss.rev_swig_ptr(ivf.invlists.get_ids(key), count)
            require(np.array_equal(rows, np.arange(start, start + count)), f"list {key} is not in row order")
            start += count
    for vectors in stored_vectors(ivf):
        norms = np.einsum("ij,ij->i", vectors, vectors)
        require(bool((np.abs(norms - 1) < UNIT_TOLERANCE).all()), "a vector is not of unit length")


def stored_vectors(ivf: Any) -> Iterator[npt.NDArray[np.float32]]:
    """Views of the vectors in row order, in blocks of bounded size."""
    for key in range(ivf.nlist):
        count = ivf.invlists.list_size(key)
        if count:
            codes = faiss.rev_swig_ptr(ivf.invlists.get_codes(key), count * ivf.code_size)
            vectors = codes.view(np.float32).reshape(count, ivf.d)
            for start in range(0, count, _BLOCK_ROWS):
                yield vectors[start : start + _BLOCK_ROWS]
