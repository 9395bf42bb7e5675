"""Which lists the cache holds when a request arrives: LRU over N entries.

A hit, a refresh and a miss all leave the key's list in the cache as the one used last, so residency depends
on the keys alone, not on what a policy decides: every policy with the same keys can be compared request by
request, and the optimum is computable key by key. The one exception is part of the keys too: under selective
personalisation an insert deletes the phrase's own entry (SoCC'17, Algorithm 2).

Complexity: O(1) a request; a linked list over the keys, in arrays.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from services.core.compiled import compiled


def residency(keys: NDArray[np.int32], entries: int) -> NDArray[np.bool_]:
    """Whether the cache of `entries` lists holds the key of each request when it arrives.

    keys: n small non-negative numbers. Raises ValueError when entries is below 1.
    """
    return places(keys, np.full(len(keys), -1, np.int32), entries)[0]


def places(
    keys: NDArray[np.int32], deleted: NDArray[np.int32], entries: int
) -> tuple[NDArray[np.bool_], NDArray[np.int32]]:
    """As `residency`, and the place 0..entries-1 where the list of each request lies.

    deleted: the key whose list goes when the key of a request is inserted, -1 for none.
    """
    if entries < 1:
        raise ValueError(f"entries {entries} must be at least 1")
    count = int(keys.max(initial=-1)) + 1
    resident, place = np.zeros(len(keys), np.bool_), np.zeros(len(keys), np.int32)
    _replay(keys, deleted, min(entries, count), count, resident, place)
    return resident, place


@compiled
def _replay(
    keys: NDArray[np.int32],
    deleted: NDArray[np.int32],
    entries: int,
    count: int,
    resident: NDArray[np.bool_],
    place: NDArray[np.int32],
) -> None:
    newer = np.full(count + 1, -1, np.int32)  # a ring: `count` stands for both its ends
    older = np.full(count + 1, -1, np.int32)
    at = np.full(count, -1, np.int32)  # place of a resident key
    free = np.arange(entries - 1, -1, -1).astype(np.int32)
    spare = entries
    newer[count] = older[count] = count
    for i in range(len(keys)):
        key = keys[i]
        if at[key] >= 0:
            resident[i] = True
            newer[older[key]], older[newer[key]] = newer[key], older[key]
        else:
            gone = deleted[i]
            if gone < 0 or at[gone] < 0:
                gone = newer[count] if spare == 0 else -1  # the least recently used
            if gone >= 0:
                newer[older[gone]], older[newer[gone]] = newer[gone], older[gone]
                free[spare] = at[gone]
                spare += 1
                at[gone] = -1
            spare -= 1
            at[key] = free[spare]
        newest = older[count]
        newer[newest], older[key], newer[key], older[count] = key, newest, count, key
        place[i] = at[key]
