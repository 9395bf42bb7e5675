"""Merging a fresh list into a cached one: the move-to-front queue of SoCC'17 section 4.3.

An entry is a queue of fixed capacity, somewhat longer than a usual list. At a refresh the ads of the fresh
list, new and known alike, move to the head in their order, with their new values; what else the queue held
follows in its old order, and the tail drops off. The auction picks from the superset, so an ad that one noisy
refresh missed can still earn.

The kernel works on arrays in place, for the simulator's cache and for the one list of a live refresh.
Complexity: O(cached x fresh), less than a microsecond for 64 x 16.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from services.core.compiled import compiled


@compiled
def move_to_front(
    ids: NDArray[Any],
    values: NDArray[Any],
    held: int,
    fresh_ids: NDArray[Any],
    fresh_values: NDArray[Any],
    capacity: int,
) -> int:
    """Merge a fresh list into the queue `ids[:held]`, in place; how many ads the queue holds afterwards.

    ids, values: the queue, `capacity` places or more. fresh_ids, fresh_values: the fresh list; what is beyond
    `capacity` is dropped. Ids are distinct within each.
    """
    fresh = min(len(fresh_ids), capacity)
    kept = 0
    for i in range(held):
        if kept == capacity - fresh:
            break
        known = False
        for j in range(fresh):
            if ids[i] == fresh_ids[j]:
                known = True
                break
        if not known:
            ids[kept] = ids[i]
            values[kept] = values[i]
            kept += 1
    for i in range(kept - 1, -1, -1):
        ids[fresh + i] = ids[i]
        values[fresh + i] = values[i]
    for j in range(fresh):
        ids[j] = fresh_ids[j]
        values[j] = fresh_values[j]
    return fresh + kept
