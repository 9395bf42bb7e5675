"""Builds an index bundle: cluster, order by list, quantize where asked, check, calibrate, write.

About 4 sqrt(n) lists (the usual range is 4 to 16 sqrt(n)), but never fewer than 39 training vectors a list,
below which k-means centroids are poorly determined. Rows are renumbered in list order (see `index`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from services.core.ivf.search import record
from services.retrieval import attributes
from services.retrieval.calibration import CALIBRATION_FILE, Calibration, depth_of, measure, measure_recorded
from services.retrieval.contents import IDS_FILE, KIND, hashes_of, seal
from services.retrieval.index import quantized_view
from services.retrieval.kernels import faiss, list_sizes, rank_lists
from services.retrieval.quantization import (
    CEILING,
    MIN_VECTORS,
    code_sizes,
    depth_for,
    quantized_index,
    rotation_for,
)
from services.retrieval.vectors import (
    IVF_FLAT,
    MAX_DIMENSION,
    ROTATION_FILE,
    STORED_FILE,
    VECTORS_FILE,
)
from services.runtime.bundles import check_replaceable, write_bundle
from services.runtime.errors import UserError

MIN_POINTS_PER_LIST = 39
MAX_POINTS_PER_LIST = 256  # more training vectors a list do not move the centroids noticeably
MAX_LISTS = 65_536
CALIBRATION_QUERIES = 1_000
QUANTIZED_QUERIES = 300  # of them, where each is searched to the end for every k, which takes 10 ms and more
_TRAIN_ITERATIONS = 20
_BLOCK_ROWS = 65_536
# Similarity of a made-up query to the ad it was made from. At 0.2 it needs about the lists that real queries
# need for a recall of .95 (MiniLM, k=100: 76 against 66 on 19,406 products, 58 against 58 on 6,000 sample
# ads). At 0.7, which looks like the similarity of a query and its best ad, it needs 16 and 22, and real
# queries reach .82: they differ from ads along the directions that ads vary in, and random noise hardly does.
_NOISE_COSINE = 0.2

Floats = npt.NDArray[np.float32]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Built:
    """What was built. code_bytes: of an ad in the lists."""

    kind: str
    code_bytes: int
    ads: int
    dimension: int
    lists: int
    calibration: Calibration
    train_s: float
    calibrate_s: float


def build_index(
    vectors: Floats,
    ad_ids: npt.NDArray[np.int64],
    strings: Mapping[str, Sequence[str | None]],
    numbers: Mapping[str, npt.NDArray[np.float64]],
    encoder: str,
    out: Path,
    seed: int,
    progress: Progress,
    queries: Floats | None = None,
    *,
    catalogue: str = "",
    kind: str = IVF_FLAT,
) -> Built:
    """Writes the index bundle `out`, atomically replacing what is there.

    `vectors` float32 [n, d], any non-zero length (normalised here); `ad_ids` int64 [n], positive, distinct;
    `strings` and `numbers` one value an ad (None, NaN: absent); `encoder` the fingerprint of the encoder that
    made the vectors; `kind` ivf_flat or ivf_pq. `queries` float32 [m, d] calibrate the budgets (at most
    1,000, drawn by `seed`); without them noisy copies of ads stand in, and the bundle says so. `catalogue` is
    the fingerprint of the bundle that the ads come from, kept in the metadata. `progress` gets stage, done,
    total. Raises UserError naming what is wrong with the input, that no code is fine enough, or that `out`
    cannot be written.
    """
    check_replaceable(out, KIND)
    unit = unit_rows("vectors", vectors)
    n, dimension = unit.shape
    ids = _checked_ids(ad_ids, n)
    asked = None if queries is None else unit_rows("queries", queries)
    if asked is not None and asked.shape[1] != dimension:
        raise UserError(f"queries: dimension {asked.shape[1]}, the ads have {dimension}")
    if not encoder:
        raise UserError("encoder: the fingerprint is empty")
    try:
        columns = attributes.encode(strings, numbers, n)
    except ValueError as error:
        raise UserError(str(error)) from error
    rng = np.random.default_rng(seed)
    started = time.monotonic()
    sample, source = _calibration_queries(unit, asked, rng)
    if kind == IVF_FLAT:
        lists = _flat_lists(unit, seed, progress)
    else:
        lists = _quantized_lists(unit, sample, seed, rng, progress)
    trained = time.monotonic()
    ivf, order = lists.ivf, lists.order
    unit, ids, columns = unit[order], ids[order], columns.take(order)
    stored = int(list_sizes(ivf).sum())
    if not int(ivf.ntotal) == stored == n:
        raise UserError(f"FAISS stored {stored} of {n} vectors")
    calibration = _calibrated(lists, sample, unit, source, lambda *at: progress("calibrate", *at))
    meta = {
        "index_kind": kind,
        "code_bytes": int(ivf.code_size),
        "ads": n,
        "dimension": dimension,
        "lists": ivf.nlist,
        "encoder": encoder,
        "catalogue": catalogue,
        "seed": seed,
        "calibration_source": source,
        "faiss": faiss.__version__,
    }
    try:
        with write_bundle(out, KIND, meta) as folder:
            faiss.write_index(ivf, str(folder / VECTORS_FILE))
            if lists.rotation is not None:
                np.save(folder / ROTATION_FILE, lists.rotation, allow_pickle=False)
                np.save(folder / STORED_FILE, unit, allow_pickle=False)
            np.save(folder / IDS_FILE, ids, allow_pickle=False)
            attributes.save(columns, folder)
            document = seal(calibration.to_json(), hashes_of(folder))
            (folder / CALIBRATION_FILE).write_bytes(document)
    except RuntimeError as error:  # of FAISS, which does not say more
        raise UserError(f"{out}: cannot be written: FAISS failed; is the disk full?") from error
    seconds = (trained - started, time.monotonic() - trained)
    return Built(kind, int(ivf.code_size), n, dimension, ivf.nlist, calibration, *seconds)


def number_of_lists(n: int) -> int:
    """About 4 sqrt(n), with at least 39 vectors a list, within 1..65,536."""
    return max(1, min(round(4 * math.sqrt(n)), n // MIN_POINTS_PER_LIST, MAX_LISTS))


def unit_rows(name: str, vectors: Floats) -> Floats:
    """`vectors` [n, d] at unit length; raises UserError, which calls them `name`, for what has none."""
    if vectors.ndim != 2 or vectors.dtype != np.float32:
        raise UserError(f"{name}: {vectors.dtype} of shape {vectors.shape}, expected float32 [n, d]")
    if not len(vectors) or not 0 < vectors.shape[1] <= MAX_DIMENSION:
        raise UserError(f"{name}: shape {vectors.shape}; needs a row and a dimension in 1..{MAX_DIMENSION}")
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise UserError(f"{name}: row {int(finite.argmin())} holds a number that is not finite")
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
    if not norms.all():
        raise UserError(f"{name}: row {int(norms.argmin())} is a zero vector")
    unit = np.empty(vectors.shape, dtype=np.float32)
    for start in range(0, len(vectors), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        unit[block] = vectors[block] / norms[block, None]
    return unit


def _checked_ids(ad_ids: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.int64]:
    if ad_ids.dtype != np.int64 or ad_ids.shape != (n,):
        raise UserError(f"ad_ids: {ad_ids.dtype} of shape {ad_ids.shape}, expected int64 [{n}]")
    if ad_ids.min() < 1:
        raise UserError(f"ad_ids: {int(ad_ids.min())} is not positive")
    distinct, counts = np.unique(ad_ids, return_counts=True)
    if distinct.size != n:
        raise UserError(f"ad_ids: {int(distinct[counts > 1][0])} stands there more than once")
    return ad_ids


@dataclass(frozen=True)
class _Filled:
    """Trained and filled lists, and the order in which their rows hold the vectors; where they are quantized
    the rotation before, and the re-ranking depth."""

    ivf: Any
    order: npt.NDArray[np.int64]
    rotation: Floats | None = None
    depth: int = 0


def _flat_lists(unit: Floats, seed: int, progress: Progress) -> _Filled:
    n, dimension = unit.shape
    quantizer = faiss.IndexFlatIP(dimension)
    ivf = faiss.IndexIVFFlat(quantizer, dimension, number_of_lists(n), faiss.METRIC_INNER_PRODUCT)
    return _Filled(ivf, _fill(ivf, unit, seed, progress))


def _quantized_lists(
    unit: Floats, queries: Floats, seed: int, rng: np.random.Generator, progress: Progress
) -> _Filled:
    n, dimension = unit.shape
    if n < MIN_VECTORS:
        raise UserError(f"{n} ads: a quantized index needs at least {MIN_VECTORS}; build {IVF_FLAT}")
    for parts in code_sizes(dimension):
        rotation = rotation_for(unit, parts, rng)
        ivf = quantized_index(dimension, number_of_lists(n), parts)
        order = _fill(ivf, unit @ rotation.T, seed, progress)
        vectors = unit[order]
        depth = depth_for(quantized_view(ivf, rotation, vectors), queries, vectors)
        if depth is not None:
            return _Filled(ivf, order, rotation, depth)
    raise UserError(f"no code reaches a recall of {CEILING} on these vectors; build {IVF_FLAT}")


def _fill(ivf: Any, unit: Floats, seed: int, progress: Progress) -> npt.NDArray[np.int64]:
    """Trains the lists and fills them; returns the order in which their rows hold the vectors."""
    n = len(unit)
    ivf.cp.seed = seed & 0x7FFFFFFF
    ivf.cp.niter = _TRAIN_ITERATIONS
    ivf.cp.min_points_per_centroid = min(MIN_POINTS_PER_LIST, n)  # fewer ads than that: no warning of FAISS
    ivf.cp.max_points_per_centroid = MAX_POINTS_PER_LIST
    progress("train", 0, n)
    ivf.train(unit)
    list_of = np.empty(n, dtype=np.int64)
    for start in range(0, n, _BLOCK_ROWS):
        list_of[start : start + _BLOCK_ROWS] = rank_lists(ivf, unit[start : start + _BLOCK_ROWS], 1)[:, 0]
        progress("train", min(start + _BLOCK_ROWS, n), n)
    order = np.argsort(list_of, kind="stable")
    for start in range(0, n, _BLOCK_ROWS):
        rows = order[start : start + _BLOCK_ROWS]
        block, keys = unit[rows], list_of[rows]  # referenced until FAISS has copied them
        ivf.add_core(len(rows), faiss.swig_ptr(block), None, faiss.swig_ptr(keys))
    return order


def _calibrated(
    lists: _Filled, queries: Floats, unit: Floats, source: str, progress: Callable[[int, int], None]
) -> Calibration:
    """The table of the lists; `unit` [n, d] in row order."""
    ivf = lists.ivf
    if lists.rotation is None:
        list_of = np.repeat(np.arange(ivf.nlist), list_sizes(ivf))

        def ranked(part: Floats) -> npt.NDArray[np.int64]:
            return rank_lists(ivf, part, ivf.nlist)

        return measure(queries, unit, list_of, ranked, ivf.nlist, source, progress)
    view = quantized_view(ivf, lists.rotation, unit)

    def found(part: Floats, k: int, limits: Floats) -> Floats:
        return record(view, part, k, depth_of(lists.depth, k), limits, ivf.nlist).found

    some = queries[:QUANTIZED_QUERIES]
    return measure_recorded(some, unit, found, ivf.nlist, source, lists.depth, progress)


def _calibration_queries(unit: Floats, asked: Floats | None, rng: np.random.Generator) -> tuple[Floats, str]:
    if asked is not None:
        chosen = rng.permutation(len(asked))[:CALIBRATION_QUERIES]
        return np.ascontiguousarray(asked[np.sort(chosen)]), "queries"
    return noisy_ads(unit, CALIBRATION_QUERIES, rng), "noisy_ads"


def noisy_ads(unit: Floats, count: int, rng: np.random.Generator) -> Floats:
    """At most `count` made-up queries, one an ad of `unit` [n, d]: unit float32 [min(count, n), d]."""
    chosen = rng.permutation(len(unit))[:count]
    noise = rng.standard_normal((len(chosen), unit.shape[1]))
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    mixed = _NOISE_COSINE * unit[chosen] + math.sqrt(1 - _NOISE_COSINE**2) * noise
    mixed /= np.linalg.norm(mixed, axis=1, keepdims=True)
    return np.ascontiguousarray(mixed, dtype=np.float32)
