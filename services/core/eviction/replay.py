"""Replay of a request stream through an order: what a cache of a given capacity would have hit.

    on a request for p:  if p is cached: hit
                         else if p is larger than the cache: nothing
                         else evict victims until p fits, then admit p

Capacity and sizes are of one unit: bytes, or sizes of 1 and a capacity in entries. Keys that are numbers run
as keys of four bytes, so a replay is what a sidecar does, table included, and repeats exactly: the hash has a
fixed secret here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .keyed import REQUEST, KeyedOrder
from .orders import ORDERS
from .table import WORD, packed

__all__ = ["ORDERS", "Replay", "replay", "replay_bytes"]

_CHUNK = 1 << 19
_FIRST_ENTRIES = 1024
_NUMBER_BYTES = 4


@dataclass(frozen=True)
class Replay:
    """Outcome of a replay. hit: bool[n], one a request. state_bytes: the order's arrays at their largest,
    without keys and the table that finds them. peak_keys: most entries held at once."""

    hit: NDArray[np.bool_]
    evictions: int
    state_bytes: int
    peak_keys: int


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
    words = np.arange(len(costs), dtype=np.uint64) << np.uint64(WORD) | np.uint64(_NUMBER_BYTES)
    return _replayed(order, keys, words, np.arange(len(costs) + 1), costs, sizes, capacity, _NUMBER_BYTES)


def replay_bytes(
    order: str,
    requests: NDArray[np.int32],
    keys: Sequence[bytes],
    costs: NDArray[np.int64],
    sizes: NDArray[np.int64],
    capacity: int,
) -> Replay:
    """`replay` for byte keys: requests number the rows of keys, costs and sizes.

    Raises:
        ValueError: as `replay`; or a key longer than 255 bytes.
    """
    if not len(keys) == len(costs) == len(sizes):
        raise ValueError(f"keys ({len(keys)}), costs ({len(costs)}), sizes ({len(sizes)}) must be as many")
    if len(requests) and not 0 <= requests.min() <= requests.max() < len(keys):
        raise ValueError(f"requests: {requests.min()}..{requests.max()} leave 0..{len(keys) - 1}")
    words, ends = packed(keys)
    bounds = np.concatenate([[0], ends])
    key_bytes = max(len(words) * WORD // max(len(keys), 1), 1)
    return _replayed(order, requests, words, bounds, costs, sizes, capacity, key_bytes)


def _replayed(
    name: str,
    requests: NDArray[np.int32],
    words: NDArray[np.uint64],
    bounds: NDArray[np.int64],
    costs: NDArray[np.int64],
    sizes: NDArray[np.int64],
    capacity: int,
    key_bytes: int,
) -> Replay:
    unit = bool(len(sizes)) and sizes.min() == sizes.max() == 1
    order = KeyedOrder(
        name,
        entries=max(min(len(costs), capacity if unit else _FIRST_ENTRIES), 1),
        key_bytes=key_bytes,
        typical_cost=_typical(costs),
        typical_size=_typical(sizes),
        secret=0,
    )
    hits = [np.zeros(0, np.bool_)]
    for at in range(0, len(requests), _CHUNK):
        rows = requests[at : at + _CHUNK]
        lengths = bounds[rows + 1] - bounds[rows]
        ends = np.cumsum(lengths)
        picked = np.repeat(bounds[rows] - (ends - lengths), lengths) + np.arange(ends[-1])
        operations = np.full(len(rows), REQUEST, np.uint8)
        hits.append(order.apply(operations, words[picked], ends, costs[rows], sizes[rows], capacity))
    return Replay(np.concatenate(hits), order.evictions, order.order_bytes, order.peak_keys)


def _typical(amounts: NDArray[np.int64]) -> int:
    return max(round(float(amounts.mean())), 1) if len(amounts) else 1
