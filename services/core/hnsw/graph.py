"""The arrays of an HNSW index, read where FAISS keeps them.

Y. Malkov, D. Yashunin, "Efficient and robust approximate nearest neighbor search using Hierarchical Navigable
Small World graphs", PAMI 42 (2020). Every node has links on level 0 and, with probability falling
geometrically, on levels above, by which a search finds a place to start.

Nothing is copied: each array is a view of FAISS' memory whose base refers to the index, so the memory lives
as long as any of them. An index must not be added to once it is viewed.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

_INNER_PRODUCT, _L2 = 0, 1  # FAISS' numbers of its metrics


class Arrays(NamedTuple):
    """An index as a kernel sees it.

    vectors: float32 [n, d]. links: int32, neighbours of every node level by level, -1 behind the last of a
    level. offsets: uint64 [n + 1], where the links of a node start. starts: int32 [levels + 1], where those
    of a level start among them. entry: the node that searches start from, on level `top`. inner: 1 for inner
    products, 0 for squared distances.
    """

    vectors: Floats
    links: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.uint64]
    starts: npt.NDArray[np.int32]
    entry: int
    top: int
    inner: int


class Scratch(NamedTuple):
    """What a search writes to, reused by the next: no search clears n bytes, nor allocates them.

    stamps: uint8 [n], the generation in which a node was last seen. generation: uint8 [1]. queue: int64 [n],
    nodes to expand.
    """

    stamps: npt.NDArray[np.uint8]
    generation: npt.NDArray[np.uint8]
    queue: Ints


class Graph:
    """A graph that any number of threads may search at once."""

    def __init__(self, index: Any, storage: Any) -> None:
        """`index` is FAISS' IndexHNSWFlat; `storage` its vectors, as `faiss.downcast_index` gives them.

        Raises ValueError for what a kernel would read out of bounds: links or entry that name no node, or
        offsets that do not fit.
        """
        hnsw, n, d = index.hnsw, int(index.ntotal), int(index.d)
        if not n or index.metric_type not in (_INNER_PRODUCT, _L2):
            raise ValueError(f"an HNSW index of {n} vectors, metric {index.metric_type}")
        vectors = _view(index, storage.get_xb(), np.float32, n * d).reshape(n, d)
        self.arrays = Arrays(
            vectors,
            _view(index, hnsw.neighbors.data(), np.int32, hnsw.neighbors.size()),
            _view(index, hnsw.offsets.data(), np.uint64, hnsw.offsets.size()),
            _view(index, hnsw.cum_nneighbor_per_level.data(), np.int32, hnsw.cum_nneighbor_per_level.size()),
            int(hnsw.entry_point),
            int(hnsw.max_level),
            int(index.metric_type == _INNER_PRODUCT),
        )
        levels = _view(index, hnsw.levels.data(), np.int32, hnsw.levels.size())
        _check(self.arrays, levels)
        self.size, self.dimension = n, d
        self._free: deque[Scratch] = deque()

    def take(self) -> Scratch:
        """Memory for one search at a time: 9 bytes a node, as often as searches run at once."""
        try:
            return self._free.pop()
        except IndexError:
            return Scratch(
                np.zeros(self.size, dtype=np.uint8),
                np.zeros(1, dtype=np.uint8),
                np.empty(self.size, dtype=np.int64),
            )

    def give(self, scratch: Scratch) -> None:
        """Returns what was taken, for the next search."""
        self._free.append(scratch)


class _Memory:
    """Memory of an owner, for numpy to view: the view keeps this alive, and this the owner."""

    def __init__(self, owner: Any, address: int, dtype: np.dtype[Any], count: int) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "data": (address, True),
            "typestr": dtype.str,
            "shape": (count,),
            "version": 3,
        }


def _view(owner: Any, pointer: Any, dtype: Any, count: int) -> npt.NDArray[Any]:
    return np.asarray(_Memory(owner, int(pointer), np.dtype(dtype), int(count)))


def _check(arrays: Arrays, levels: npt.NDArray[np.int32]) -> None:
    n = len(arrays.vectors)
    starts, offsets = arrays.starts, arrays.offsets.astype(np.int64)
    widths = np.diff(starts)
    if len(levels) != n or len(offsets) != n + 1 or starts[0] != 0 or not (widths >= 0).all():
        raise ValueError(f"{len(levels)} levels and {len(offsets)} offsets for {n} vectors")
    if widths.max() > widths[0] or not widths[0]:
        raise ValueError(f"links by level {widths.tolist()}: level 0 has the most")
    if levels.min() < 1 or levels.max() >= len(starts):
        raise ValueError(f"levels {levels.min()} to {levels.max()}, of {len(starts) - 1}")
    if offsets[0] != 0 or offsets[-1] != len(arrays.links) or (np.diff(offsets) != starts[levels]).any():
        raise ValueError("offsets of links do not fit the levels of the nodes")
    if arrays.links.size and (arrays.links.min() < -1 or arrays.links.max() >= n):
        raise ValueError(f"links from {arrays.links.min()} to {arrays.links.max()} among {n} nodes")
    if not 0 <= arrays.entry < n or levels[arrays.entry] != arrays.top + 1:
        raise ValueError(f"entry {arrays.entry} on level {arrays.top}")
    for level in range(1, arrays.top + 1):  # a link on a level leads to a node on that level
        rows = np.flatnonzero(levels > level)
        width = int(starts[level + 1] - starts[level])
        at = offsets[rows, None] + starts[level] + np.arange(width)
        reached = arrays.links[at]
        if (levels[reached[reached >= 0]] <= level).any():
            raise ValueError(f"a link on level {level} leads to a node below it")
