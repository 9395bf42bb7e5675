"""What every compiled order works on: one node an entry, and lists threaded through the nodes.

Problem. A simulator replays millions of requests and a sidecar drains batches of thousands, so an operation
may cost a fraction of a microsecond: no Python object an entry, no Python call an operation. Every order is
therefore a set of kernels over the arrays of one `State`; because all orders share its type, the loops around
them are compiled once.

A node takes 48 bytes, so that an operation touches one or two cache lines of it. Nodes are numbered by
`slot`. The first slots are no entries but the heads of circular, doubly linked lists: an empty list is a head
that points to itself, so linking and unlinking have no special cases. Behind them come the entries; free ones
are chained by `next` from `numbers[FREE]`, and those never used begin at `numbers[FRESH]`. A kernel never
allocates: its caller stops where `full` says so, enlarges the arrays (`orders.grown`) and goes on.

Invariants: `numbers[COUNT]` entries are in the order and `numbers[BYTES]` is the sum of their sizes, in 64
bits; `numbers[CLOCK]` never falls.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..compiled import compiled

NODE = np.dtype(
    [
        ("next", "i4"),  # older neighbour
        ("previous", "i4"),  # newer neighbour
        ("priority", "i8"),
        ("cost", "i8"),
        ("size", "i8"),
        ("digest", "i4"),  # mixed bits of the key
        ("key", "i4"),  # what the owner knows the key by
        ("used", "i4"),  # low bits of the number of a use
        ("frequency", "i4"),  # a count, or the list that the entry is in
    ]
)
EXTRA = np.dtype([("used", "i8"), ("place", "i8")])
"""Of a slot in a heap: number of its last use, place in the heap."""

NONE = -1

(
    CLOCK,  # L
    BYTES,  # sum of the sizes
    COUNT,  # entries
    FREE,  # first of the chain of free slots
    FRESH,  # first slot never used
    USES,  # number of the last use
    TYPICAL_COST,  # of an entry: orders that weigh cost by size take their integer resolution from it
    TYPICAL_SIZE,
    HAND,  # of a wheel or a list
    HEAPED,  # slots in the heap
    PART,  # bytes in an order's first list
    SEEN,  # events since the sketch was halved, or evictions told to the ghosts
    RETURNING,  # smoothed share of newcomers that the sketch remembers
    LARGEST,  # largest size seen
) = range(14)
NUMBERS = 14


class State(NamedTuple):
    """An order's arrays. numbers: int64[NUMBERS], the places above. nodes, extras: one a slot. heap: int32,
    slots. words: int64, 32 flags each. counters: uint8, a sketch. ghosts: int64, evicted entries. What an
    order does not use has length 1."""

    numbers: NDArray[np.int64]
    nodes: NDArray[np.void]
    extras: NDArray[np.void]
    heap: NDArray[np.int32]
    words: NDArray[np.int64]
    counters: NDArray[np.uint8]
    ghosts: NDArray[np.int64]


@compiled
def full(s: State) -> bool:
    """Whether the next `take` needs larger arrays."""
    return bool(s.numbers[FREE] == NONE and s.numbers[FRESH] == len(s.nodes))


@compiled
def take(s: State, key: int, digest: int, cost: int, size: int) -> int:
    """A slot for a new entry, which belongs to no list yet."""
    slot = s.numbers[FREE]
    if slot != NONE:
        s.numbers[FREE] = s.nodes[slot]["next"]
    else:
        slot = s.numbers[FRESH]
        s.numbers[FRESH] += 1
    s.nodes[slot]["priority"] = 0
    s.nodes[slot]["cost"] = cost
    s.nodes[slot]["size"] = size
    s.nodes[slot]["digest"] = digest
    s.nodes[slot]["key"] = key
    s.nodes[slot]["used"] = 0
    s.nodes[slot]["frequency"] = 0
    s.numbers[BYTES] += size
    s.numbers[COUNT] += 1
    return int(slot)


@compiled
def give(s: State, slot: int) -> None:
    """Free the slot of an entry that has left its lists."""
    s.numbers[BYTES] -= s.nodes[slot]["size"]
    s.numbers[COUNT] -= 1
    s.nodes[slot]["next"] = s.numbers[FREE]
    s.numbers[FREE] = slot


@compiled
def use(s: State) -> int:
    """Number of a new use."""
    s.numbers[USES] += 1
    return int(s.numbers[USES])


@compiled
def link(s: State, head: int, slot: int) -> None:
    """Make a slot the newest of a list."""
    nodes = s.nodes
    first = nodes[head]["next"]
    nodes[slot]["next"] = first
    nodes[slot]["previous"] = head
    nodes[first]["previous"] = slot
    nodes[head]["next"] = slot


@compiled
def unlink(s: State, slot: int) -> None:
    """Take a slot out of its list."""
    nodes = s.nodes
    after, before = nodes[slot]["next"], nodes[slot]["previous"]
    nodes[before]["next"] = after
    nodes[after]["previous"] = before


@compiled
def oldest(s: State, head: int) -> int:
    """The oldest slot of a list, the head itself when it is empty."""
    return int(s.nodes[head]["previous"])
