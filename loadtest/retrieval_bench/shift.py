"""Queries of another kind than those that rules were tuned on: the middle between two held-out vectors.

Of unit vectors it is put back to unit length, so that the sum of two items is asked for. Nobody holds a
target there; the question is by how much each rule misses it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from services.core.stopping.policy import Policy

from . import hnsw
from .indexes import Built

QUERIES = 1000
_UNIT = 1e-3

Floats = npt.NDArray[np.float32]


def shifted(queries: Floats, seed: int) -> Floats:
    """float32 [at most QUERIES, d], each from two of `queries`, drawn by `seed`."""
    rng = np.random.default_rng(seed)
    count = min(QUERIES, len(queries))
    first, second = (rng.permutation(len(queries))[:count] for _ in range(2))
    middle = (queries[first] + queries[second]) / 2
    if np.abs(np.linalg.norm(queries, axis=1) - 1).max() < _UNIT:
        middle /= np.maximum(np.linalg.norm(middle, axis=1, keepdims=True), 1e-12)
    return np.ascontiguousarray(middle, dtype=np.float32)


def recalls(
    built: Built | hnsw.Built, queries: Floats, near: Floats, k: int, policies: Mapping[str, Policy]
) -> dict[str, float]:
    """Mean recall of the k nearest under each policy; near: float32 [q], the distance that counts as one."""
    achieved = {}
    for name, policy in policies.items():
        found = built.search(queries, k, policy).distances
        achieved[name] = float((found <= near[:, None]).sum(axis=1).clip(max=k).mean() / k)
    return achieved
