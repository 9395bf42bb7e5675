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

IVF_FLAT, IVF_PQ = "ivf_flat", "ivf_pq"
VECTORS_FILE = "vectors.faiss"
ROTATION_FILE = "rotation.npy"
STORED_FILE = "stored.npy"
MAX_DIMENSION = 65_536
UNIT_TOLERANCE = 1e-3
CODEWORDS = 256
_BLOCK_ROWS = 4096

Floats = npt.NDArray[np.float32]


def read_flat(data: bytes, size: int) -> Any:
    """The index in `data`, which must hold unit vectors as rows 0..size-1 in list order; else BundleError."""
    ivf = _read(data, faiss.IndexIVFFlat)
    _check(ivf, size)
    _require(ivf.code_size == 4 * ivf.d, "codes are not flat vectors")
    for vectors in _stored_vectors(ivf):
        _require(_unit(vectors), "a vector is not of unit length")
    return ivf


def read_quantized(data: bytes, size: int) -> Any:
    """The index in `data`, which must hold product-quantized rows 0..size-1 in list order; else
    BundleError."""
    ivf = _read(data, faiss.IndexIVFPQ)
    _check(ivf, size)
    parts = ivf.pq.M
    _require(0 < parts <= ivf.d and ivf.d % parts == 0, "the parts of a code do not divide the dimension")
    _require(
        ivf.pq.nbits == 8 and ivf.pq.d == ivf.d and ivf.code_size == parts, "codes are not a byte a part"
    )
    _require(ivf.pq.centroids.size() == ivf.d * CODEWORDS, "the codewords have another shape")
    _require(bool(np.isfinite(codewords(ivf)).all()), "a codeword is not finite")
    return ivf


def check_rotation(rotation: Floats) -> None:
    """BundleError unless `rotation` [d, d] keeps lengths."""
    product = rotation.astype(np.float64) @ rotation.T.astype(np.float64)
    if not (np.abs(product - np.eye(len(rotation))) < UNIT_TOLERANCE).all():
        raise BundleError(f"{ROTATION_FILE}: not a rotation")


def check_stored(vectors: Floats) -> None:
    """BundleError unless all of `vectors` [n, d] are of unit length."""
    for start in range(0, len(vectors), _BLOCK_ROWS):
        if not _unit(vectors[start : start + _BLOCK_ROWS]):
            raise BundleError(f"{STORED_FILE}: a vector is not of unit length")


def centroids(ivf: Any) -> Floats:
    """The centroids of the lists, float32 [lists, d]."""
    codes = faiss.vector_to_array(faiss.downcast_index(ivf.quantizer).codes)
    array: Floats = codes.view(np.float32).reshape(ivf.nlist, ivf.d)
    return array


def codewords(ivf: Any) -> Floats:
    """The codewords of a quantized index, float32 [parts, 256, d / parts]."""
    parts = ivf.pq.M
    array: Floats = faiss.vector_to_array(ivf.pq.centroids).reshape(parts, CODEWORDS, ivf.d // parts)
    return array


def take_vectors(ivf: Any) -> Floats:
    """The vectors of a flat index in row order, float32 [n, d] in one block of memory; its lists are empty
    then."""
    vectors = np.concatenate(list(_stored_vectors(ivf)))
    empty = faiss.ArrayInvertedLists(ivf.nlist, ivf.code_size)
    ivf.replace_invlists(empty, True)
    empty.this.disown()
    return vectors


def _stored_vectors(ivf: Any) -> Iterator[Floats]:
    """Views of the vectors of a flat index in row order, in blocks of bounded size."""
    for key in range(ivf.nlist):
        count = ivf.invlists.list_size(key)
        if count:
            codes = faiss.rev_swig_ptr(ivf.invlists.get_codes(key), count * ivf.code_size)
            vectors = codes.view(np.float32).reshape(count, ivf.d)
            for start in range(0, count, _BLOCK_ROWS):
                yield vectors[start : start + _BLOCK_ROWS]


def _read(data: bytes, kind: Any) -> Any:
    try:
        ivf = faiss.read_index(faiss.PyCallbackIOReader(BytesIO(data).read))
    except (RuntimeError, ValueError, MemoryError) as error:
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        raise BundleError(f"{VECTORS_FILE}: FAISS cannot read it: {reason}") from error
    _require(type(ivf) is kind, f"an index of type {type(ivf).__name__}, not {kind.__name__}")
    return ivf


def _check(ivf: Any, size: int) -> None:
    """Everything that a search of either kind relies on and FAISS does not check."""
    _require(
        0 < ivf.d <= MAX_DIMENSION and 0 < ivf.nlist <= size, "dimension or number of lists out of range"
    )
    _require(
        ivf.is_trained and ivf.metric_type == faiss.METRIC_INNER_PRODUCT, "not trained, or not inner product"
    )
    _require(not ivf.by_residual and ivf.parallel_mode == 0, "residual codes or a parallel mode")
    lists = faiss.downcast_InvertedLists(ivf.invlists) if ivf.invlists is not None else None
    _require(type(lists) is faiss.ArrayInvertedLists, "the inverted lists are not held in memory")
    _require(ivf.quantizer is not None, "there is no coarse quantizer")
    _require(ivf.code_size == ivf.invlists.code_size, "codes have two sizes")
    _require(ivf.ntotal == size, f"{ivf.ntotal} vectors for {size} ads")
    _require(ivf.invlists.nlist == ivf.nlist, "number of inverted lists differs")
    quantizer = faiss.downcast_index(ivf.quantizer)
    flat = type(quantizer) in (faiss.IndexFlat, faiss.IndexFlatIP)
    _require(flat and quantizer.metric_type == faiss.METRIC_INNER_PRODUCT, "the coarse quantizer is not flat")
    _require(quantizer.d == ivf.d and quantizer.ntotal == ivf.nlist, "the coarse quantizer has another shape")
    _require(quantizer.codes.size() == 4 * ivf.d * ivf.nlist, "the coarse quantizer lacks centroids")
    _require(_unit(centroids(ivf)), "a centroid is not of unit length")
    sizes = list_sizes(ivf)
    _require(int(sizes.sum()) == size, f"the lists hold {int(sizes.sum())} vectors for {size} ads")
    start = 0
    for key, count in enumerate(sizes.tolist()):
        if count:
            rows = faiss.rev_swig_ptr(ivf.invlists.get_ids(key), count)
            _require(np.array_equal(rows, np.arange(start, start + count)), f"list {key} is not in row order")
            start += count


def _unit(vectors: Floats) -> bool:
    """Whether all of [n, d] are of unit length; false for what is not finite."""
    norms = np.einsum("ij,ij->i", vectors, vectors)
    return bool((np.abs(norms - 1) < UNIT_TOLERANCE).all())


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise BundleError(f"{VECTORS_FILE}: {what}")
