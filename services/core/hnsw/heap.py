"""Binary heaps of nodes by distance: one 64-bit key an entry, the least key at the root.

A key packs the bits of a float32 distance above the number of the node. Non-negative floats sort as their
bits do; for negative ones (inner products) all bits but the sign are flipped, so that keys sort as signed
integers, equal distances by node. A heap of the farthest at the root holds complements of keys (`~key`).
O(log n) a push or pop; half the memory, and so half the cache misses, of parallel arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..compiled import compiled

Keys = npt.NDArray[np.int64]

_NODE = (1 << 32) - 1


@compiled
def key_of(bits: int, node: int) -> int:
    """The key of a node at the float32 distance with these bits (int32)."""
    key: Any = (np.int64(bits ^ ((bits >> 31) & 0x7FFFFFFF)) << 32) | np.int64(node)
    packed: int = key
    return packed


@compiled
def node_of(key: int) -> int:
    """The node that a key names."""
    return key & _NODE


@compiled
def bits_of(key: int) -> int:
    """The bits of the float32 distance in a key, as int32."""
    high: Any = np.int32(key >> 32)
    bits: int = high ^ ((high >> 31) & np.int32(0x7FFFFFFF))
    return bits


@compiled
def push(keys: Keys, size: int, key: int) -> None:
    """Adds a key to the heap keys[:size]; there must be room for it."""
    at = size
    while at:
        parent = (at - 1) >> 1
        if keys[parent] <= key:
            break
        keys[at] = keys[parent]
        at = parent
    keys[at] = key


@compiled
def replace(keys: Keys, size: int, key: int) -> None:
    """Puts a key in the place of the root of the heap keys[:size]."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and keys[child + 1] < keys[child]:
            child += 1
        if key <= keys[child]:
            break
        keys[at] = keys[child]
        at = child
    keys[at] = key


@compiled
def offer(keys: Keys, size: int, key: int) -> int:
    """Puts a key into a heap that keeps the keys.size greatest; how many it then holds.

    With complements: that keeps the nearest. Only for a key that enters a full heap (above its root).
    """
    if size < keys.size:
        push(keys, size, key)
        return size + 1
    replace(keys, size, key)
    return size
