"""Which row of a table belongs to which key, for the keys seen last.

Rules are kernels over arrays, one row a key; a live service meets keys without end and keeps rows for some of
them. A place is the row and the `written_at_ms` of the list it speaks of: a caller whose list is older was
overtaken by a refresh. O(1) a call.
"""

from __future__ import annotations

from collections import OrderedDict


class Places:
    """Rows 0..capacity-1 for the `capacity` keys seen last; a key that comes in takes the row of the oldest.

    Raises ValueError where capacity is below 1.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity {capacity} must be at least 1")
        self._capacity = capacity
        self._places: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def find(self, fingerprint: bytes) -> tuple[int, int]:
        """The list and the row of a key, now the last one seen: (written_at_ms, row).

        written_at_ms is -1 for a key not seen lately; its row may hold what was known of another.
        """
        place = self._places.get(fingerprint)
        if place is not None:
            self._places.move_to_end(fingerprint)
            return place
        row = len(self._places)
        if row == self._capacity:
            _, (_, row) = self._places.popitem(last=False)
        self._places[fingerprint] = -1, row
        return -1, row

    def put(self, fingerprint: bytes, written_at_ms: int) -> None:
        """The row of a key that `find` has just given speaks of this list from now on."""
        self._places[fingerprint] = written_at_ms, self._places[fingerprint][1]
