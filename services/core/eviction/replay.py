"""Replay of a request stream through an order: what a cache of a given capacity would have hit.

    on a request for p:  if p is cached: hit
                         else if p is larger than the cache: nothing
                         else evict victims until p fits, then admit p

Capacity and sizes are of one unit: bytes, or sizes of 1 and a capacity in entries. Keys that are numbers run
as keys of four bytes, so a replay is what a sidecar does, table included, and repeats exactly: the hash has a
fixed secret here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .batches import REQUEST
from .keyed import KeyedOrder
from .table import LENGTH

_CHUNK = 1 << 19
_FIRST_ENTRIES = 1024
_NUMBER_BYTES = 4


@dataclass(frozen=True)
class Replay:
    """Outcome of a replay. hit: bool[n], one a request."""

    hit: NDArray[np.bool_]
    evictions: int


def replay(
    order: str,
    keys: NDArray[np.int32],
    costs: NDArray[np.int64],
    sizes: NDArray[np.int64],
    capacity: int,
) -> Replay:
    """Replays requests for dense keys 0..k-1 through an order.

    keys: int32[n]. costs, sizes: int64[k], one a key. capacity: in the unit of sizes.

    Raises:
        ValueError: unknown order, a key outside 0..k-1, a cost or size outside 0..2**60.
    """
    if len(costs) != len(sizes):
        raise ValueError(f"costs ({len(costs)}) and sizes ({len(sizes)}) must be as many")
    if len(keys) and not 0 <= keys.min() <= keys.max() < len(costs):
        raise ValueError(f"keys: {keys.min()}..{keys.max()} leave 0..{len(costs) - 1}")
    unit = bool(len(sizes)) and sizes.min() == sizes.max() == 1
    keyed = KeyedOrder(
        order,
        entries=max(min(len(costs), capacity if unit else _FIRST_ENTRIES), 1),
        key_bytes=_NUMBER_BYTES,
        typical_cost=_typical(costs),
        typical_size=_typical(sizes),
        secret=0,
    )
    words = np.arange(len(costs), dtype=np.uint64) << np.uint64(8 * LENGTH) | np.uint64(_NUMBER_BYTES)
    hits = [np.zeros(0, np.bool_)]
    for at in range(0, len(keys), _CHUNK):
        rows = keys[at : at + _CHUNK]
        operations = np.full(len(rows), REQUEST, np.uint8)
        ends = np.arange(1, len(rows) + 1)
        hits.append(keyed.apply(operations, words[rows], ends, costs[rows], sizes[rows], capacity))
    return Replay(np.concatenate(hits), keyed.evictions)


def _typical(amounts: NDArray[np.int64]) -> int:
    return max(round(float(amounts.mean())), 1) if len(amounts) else 1
