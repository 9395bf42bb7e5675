"""Time and memory of an operation: requests for byte keys, hash table included.

Keys are 16 to 64 bytes long. An operation is a request with all that it sets off: hash, look-up, and after a
miss the evictions and the admission. Requests are handed over in packed batches, as a sidecar hands over a
tick's; packing them is not in the figure.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.core.eviction.batches import REQUEST
from services.core.eviction.keyed import KeyedOrder
from services.core.eviction.orders import ORDERS
from services.core.eviction.table import packed

ROUNDS = 5
REQUESTS = 50_000
BATCH = 1_000_000
SHORTEST, LONGEST = 16, 64


class Speed(NamedTuple):
    """ns_per_op: median over rounds. state_bytes_per_key: order and table without the bytes of the keys."""

    ns_per_op: float
    state_bytes_per_key: float


def speeds(
    keys: NDArray[np.int32],
    costs: NDArray[np.int64],
    sizes: NDArray[np.int64],
    capacity: int,
    orders: Sequence[str] = ORDERS,
) -> dict[str, Speed]:
    """Speed of each order behind one filling with the requests before the last ROUNDS x REQUESTS.

    keys: int32[n]. costs, sizes: int64, one a key; capacity in the unit of sizes. Each round every order
    serves the same REQUESTS, one order after the other, in a sequence drawn anew. Of a short stream half
    is for filling.
    """
    filling = max(len(keys) - ROUNDS * REQUESTS, len(keys) // 2)
    made = {
        name: KeyedOrder(
            name,
            entries=max(int(capacity / sizes.mean()), 1),
            typical_cost=max(int(costs.mean()), 1),
            typical_size=max(int(sizes.mean()), 1),
            secret=0,
        )
        for name in orders
    }
    times: dict[str, list[float]] = {name: [] for name in orders}
    shuffled = random.Random(0)
    fills = np.array_split(keys[:filling], -(-filling // BATCH))
    for part in (*fills, *np.array_split(keys[filling:], ROUNDS)):
        words, ends = packed([_byte_key(key) for key in part.tolist()])
        operations, cost, size = np.full(len(part), REQUEST, np.uint8), costs[part], sizes[part]
        for name in shuffled.sample(orders, len(orders)):
            began = time.perf_counter_ns()
            made[name].apply(operations, words, ends, cost, size, capacity)
            times[name].append((time.perf_counter_ns() - began) / len(part))
    return {
        name: Speed(statistics.median(times[name][-ROUNDS:]), order.state_bytes / len(order))
        for name, order in made.items()
    }


def _byte_key(key: int) -> bytes:
    """Another for every number below 10^16: SHORTEST to LONGEST bytes."""
    return (b"%016d" % key * 4)[: SHORTEST + key % (LONGEST - SHORTEST + 1)]
