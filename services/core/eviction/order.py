"""The contract of an eviction order, whatever its policy.

An order is pure bookkeeping: it holds no values, reads no clock, does no I/O and has no capacity of its
own. Its owner decides when something must go and calls `pop`. The same orders run in the sidecar and in the
simulator.

Invariants that every order keeps:
- `clock` (L) never falls, and no entry's priority lies below the clock it was admitted at.
- `pop` returns the entry of lowest priority, the least recently used among equals, and sets L to its
  priority.
- `total_bytes` is the sum of the sizes of the entries; admitting a present key replaces its size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol


class Entry(NamedTuple):
    """A key in an order: its priority (priority units), size (bytes) and last known cost (0 when unknown)."""

    key: bytes
    priority: int
    size_bytes: int
    cost: int


class Order(Protocol):
    """Which entry goes next. Keys are bytes, costs and priorities integers of one unit (here µs)."""

    name: str

    @property
    def clock(self) -> int:
        """L: the priority that new priorities start from."""
        ...

    @property
    def total_bytes(self) -> int:
        """Sum of the entries' sizes."""
        ...

    def __len__(self) -> int: ...

    def __contains__(self, key: object) -> bool: ...

    def get(self, key: bytes) -> Entry | None:
        """The entry of a key, None when absent; does not count as a use."""
        ...

    def admit(self, key: bytes, size_bytes: int, cost: int) -> int:
        """Insert or replace an entry as just used; its new priority."""
        ...

    def hit(self, key: bytes) -> int | None:
        """Count a use; the new priority, None when the key is absent."""
        ...

    def remove(self, key: bytes) -> bool:
        """Drop an entry without moving the clock; whether it was there."""
        ...

    def pop(self) -> Entry | None:
        """Remove and return the next victim, None when empty; moves the clock."""
        ...

    def head(self, limit: int) -> list[Entry]:
        """The next `limit` victims in the order in which `pop` would return them."""
        ...

    def advance(self, clock: int) -> None:
        """Raise L to `clock` unless it is there already."""
        ...

    def restore(self, entries: Iterable[tuple[bytes, int, int]]) -> None:
        """Insert (key, bytes, priority) triples of unknown cost; keys already present stay as they are."""
        ...

    def set_priority(self, key: bytes, priority: int) -> None:
        """Place a present entry at a priority, higher or lower.

        Raises:
            KeyError: the key is absent.
        """
        ...

    def clear(self) -> None:
        """Drop all entries; the clock stays."""
        ...
