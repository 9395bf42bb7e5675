"""GreedyDual, exact: entries leave in the order of what it costs to compute them again, softened by age.

Source: N. Young, "The k-server dual and loose competitiveness for paging", Algorithmica 11 (1994), in the
form with an inflation value L that section 3.1 of GD-Wheel (C. Li and A. Cox, EuroSys 2015) gives:

    1  on a request for p:
    2    if p is cached:      H(p) <- L + c(p)
    3    else:
    4      while there is no room:
    5        q <- argmin H,  the least recently used among equals
    6        L <- H(q)
    7        evict q
    8      insert p;          H(p) <- L + c(p)

Lines 4 and 7 belong to the caller, who knows what room is (a Redis between two watermarks, a simulated
cache).

Properties: k-competitive for weighted caching; with equal costs it is LRU, since H then rises with every
use. L is what ages: an entry that was hot once stays until L has risen by its cost, however often it was
used.

Structure: a binary heap of (H, use number, key) holding one live item per entry. Uses only raise an entry,
so its item may lag behind: it is a lower bound, and `pop` replaces a lagging item by the true one and looks
again. That keeps the order exact and a hit O(1). Removals, and writes that lower H, leave a dead item
behind; when more than half of the heap is dead it is rebuilt. Costs: hit O(1), admit, remove and pop O(log
n) amortised; the first pop after every entry was hit is O(n log n), once. Nothing is approximate. Sizes do
not enter H; they are only summed.

Integers are unbounded, H is not: it saturates at MAX_PRIORITY, where the order becomes LRU.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace

from .order import Entry
from .priority import MAX_PRIORITY

_Item = tuple[int, int, bytes]


class _Node:
    __slots__ = ("cost", "credit", "item", "priority", "size_bytes", "used")

    def __init__(
        self, priority: int, used: int, size_bytes: int, cost: int, credit: int, item: _Item
    ) -> None:
        self.priority = priority  # H
        self.used = used  # number of the last use: breaks ties, least recent first
        self.size_bytes = size_bytes
        self.cost = cost  # 0 when unknown
        self.credit = credit  # c: what a use adds to L; the cost, or a lower bound of it after a restore
        self.item = item  # this entry's one live heap item


class GreedyDual:
    """Exact GreedyDual order (see `Order`). Costs are at least 0; beyond MAX_PRIORITY they saturate."""

    name = "greedydual"

    def __init__(self) -> None:
        self._clock = 0
        self._bytes = 0
        self._uses = 0
        self._nodes: dict[bytes, _Node] = {}
        self._heap: list[_Item] = []

    @property
    def clock(self) -> int:
        """L: the highest priority evicted so far."""
        return self._clock

    @property
    def total_bytes(self) -> int:
        """Sum of the entries' sizes."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, key: object) -> bool:
        return key in self._nodes

    def get(self, key: bytes) -> Entry | None:
        """The entry of a key, None when absent; does not count as a use."""
        node = self._nodes.get(key)
        return None if node is None else Entry(key, node.priority, node.size_bytes, node.cost)

    def admit(self, key: bytes, size_bytes: int, cost: int) -> int:
        """Insert or replace an entry as just used; its new priority.

        Raises:
            ValueError: size or cost is negative.
        """
        if size_bytes < 0 or cost < 0:
            raise ValueError(f"size {size_bytes} and cost {cost} must be at least 0")
        priority = min(self._clock + cost, MAX_PRIORITY)  # line 8
        self._uses += 1
        node = self._nodes.get(key)
        if node is None:
            self._insert(key, size_bytes, priority, cost, cost)
            return priority
        self._bytes += size_bytes - node.size_bytes  # the growth, not the whole size again
        node.size_bytes, node.cost, node.credit = size_bytes, cost, cost
        self._place(key, node, priority)
        return priority

    def hit(self, key: bytes) -> int | None:
        """Count a use; the new priority, None when the key is absent."""
        node = self._nodes.get(key)
        if node is None:
            return None
        self._uses += 1
        node.used = self._uses
        risen = min(self._clock + node.credit, MAX_PRIORITY)  # line 2
        if risen > node.priority:  # always, but for entries whose credit is a lower bound
            node.priority = risen
        return node.priority

    def remove(self, key: bytes) -> bool:
        """Drop an entry without moving the clock; whether it was there."""
        node = self._nodes.pop(key, None)
        if node is None:
            return False
        self._bytes -= node.size_bytes
        self._compact()
        return True

    def pop(self) -> Entry | None:
        """Remove and return the next victim, None when empty; moves the clock to its priority."""
        node = self._settle()
        if node is None:
            return None
        priority, _, key = heappop(self._heap)  # line 5
        self.advance(priority)  # line 6
        del self._nodes[key]
        self._bytes -= node.size_bytes
        self._compact()
        return Entry(key, priority, node.size_bytes, node.cost)

    def head(self, limit: int) -> list[Entry]:
        """The next `limit` victims in order; O(limit log n), changes nothing."""
        items: list[_Item] = []
        while len(items) < limit and self._settle() is not None:
            items.append(heappop(self._heap))
        for item in items:
            heappush(self._heap, item)
        nodes = self._nodes
        return [Entry(key, h, nodes[key].size_bytes, nodes[key].cost) for h, _, key in items]

    def advance(self, clock: int) -> None:
        """Raise L to `clock` unless it is there already."""
        self._clock = min(max(self._clock, clock), MAX_PRIORITY)

    def restore(self, entries: Iterable[tuple[bytes, int, int]]) -> None:
        """Insert (key, bytes, priority) triples of unknown cost; keys already present stay as they are.

        H - L is credited to an entry's next use: a lower bound of its cost, as L can only have risen since.
        """
        for key, size_bytes, priority in entries:
            if key not in self._nodes:
                self._uses += 1
                self._insert(key, size_bytes, min(priority, MAX_PRIORITY), 0, max(priority - self._clock, 0))

    def set_priority(self, key: bytes, priority: int) -> None:
        """Place a present entry at a priority, higher or lower; KeyError when it is absent."""
        self._uses += 1
        self._place(key, self._nodes[key], min(priority, MAX_PRIORITY))

    def clear(self) -> None:
        """Drop all entries; the clock stays, since clients still start from it."""
        self._nodes.clear()
        self._heap.clear()
        self._bytes = 0

    def _insert(self, key: bytes, size_bytes: int, priority: int, cost: int, credit: int) -> None:
        item = (priority, self._uses, key)
        self._nodes[key] = _Node(priority, self._uses, size_bytes, cost, credit, item)
        heappush(self._heap, item)
        self._bytes += size_bytes

    def _place(self, key: bytes, node: _Node, priority: int) -> None:
        node.priority, node.used = priority, self._uses
        if priority < node.item[0]:  # the live item would no longer be a lower bound
            node.item = (priority, node.used, key)
            heappush(self._heap, node.item)
            self._compact()

    def _settle(self) -> _Node | None:
        """Bring the true minimum to the root of the heap: its node, None when empty."""
        heap = self._heap
        while heap:
            item = heap[0]
            node = self._nodes.get(item[2])
            if node is None or node.item is not item:
                heappop(heap)  # dead
            elif node.used == item[1]:
                return node
            else:
                node.item = (node.priority, node.used, item[2])
                heapreplace(heap, node.item)  # lagging
        return None

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._nodes) + 64:
            self._heap = [node.item for node in self._nodes.values()]
            heapify(self._heap)
