"""The k nearest seen so far: a binary heap with the farthest of them at the root, in two parallel arrays.

Ties keep what came first. Unfilled places hold an infinite distance and row -1, so that the root is the
distance to beat from the first push on: O(log k) for a push that enters, one comparison for one that does
not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..compiled import compiled

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]


@compiled
def empty(distances: Floats, rows: Rows) -> None:
    """Makes the heap empty."""
    distances[:] = np.inf
    rows[:] = -1


@compiled
def _sift(distances: Floats, rows: Rows, at: int, size: int, distance: float, row: int) -> None:
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and distances[child + 1] > distances[child]:
            child += 1
        if not distances[child] > distance:
            break
        distances[at], rows[at] = distances[child], rows[child]
        at = child
    distances[at], rows[at] = distance, row


@compiled
def replace(distances: Floats, rows: Rows, distance: float, row: int) -> None:
    """Puts a vector in the place of the farthest; only for `distance` below distances[0]."""
    _sift(distances, rows, 0, distances.size, distance, row)


@compiled
def rebuild(distances: Floats, rows: Rows) -> None:
    """Makes a heap again of distances that have changed."""
    for at in range(distances.size // 2 - 1, -1, -1):
        _sift(distances, rows, at, distances.size, distances[at], rows[at])


@compiled
def sort(distances: Floats, rows: Rows) -> None:
    """Turns the heap into a list from the nearest on. It is a heap no more."""
    for end in range(distances.size - 1, 0, -1):
        distance, row = distances[end], rows[end]
        distances[end], rows[end] = distances[0], rows[0]
        _sift(distances, rows, 0, end, distance, row)
