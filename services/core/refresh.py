"""When a cached list is computed anew although it could be reused.

Problem. A list in the cache goes stale: ads come and go, bids and click probabilities move, and every reuse
may lose the revenue of an ad that the list lacks. A refresh policy looks at each hit and says whether to
recompute, and what it expects to lose by not doing so.

`FixedRefresh` is the plain mechanism of SoCC'17 section 4.4 with a constant n: a counter starts at 1 when the
list is written; a hit whose counter is a multiple of n refreshes, any other hit counts on. So the n-th hit
after a write refreshes, and n = 1 refreshes always. It knows nothing about revenue: WWW'18 table 4 measures
-5.2 % revenue at n = 5.

Invariants: a counter belongs to one written list (key and written_at_ms); a newer write starts it again, an
older list, read by a caller that a refresh overtook, never triggers one. A refresh that failed leaves the
counter where it is, so the next hit asks again. Memory is bounded; what is approximate: a counter forgotten
because more than `capacity` keys were hit since restarts at 1, and each process counts its own hits.
Complexity: O(1) a hit.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

from services.core.ads_list import AdsList


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to recompute, and the revenue predicted to be lost otherwise (0 where no model decides)."""

    refresh: bool
    predicted_loss_usd: float = 0.0


_REUSE = Decision(refresh=False)
_REFRESH = Decision(refresh=True)


class RefreshPolicy(Protocol):
    """Decides on every hit; implementations must be cheap enough for the path of a hit."""

    @property
    def name(self) -> str:
        """Short name for GetInfo and metrics."""

    def on_hit(self, fingerprint: bytes, cached: AdsList) -> Decision:
        """Judge one hit on the list of a key."""

    def on_write(self, fingerprint: bytes, written: AdsList) -> None:
        """Take note that the list of a key was inserted or refreshed."""


class FixedRefresh:
    """Refreshes at the n-th hit after each write.

    When not to use: wherever a trained model fits the traffic.
    """

    name = "fixed"

    def __init__(self, every: int, capacity: int = 100_000):
        if every < 1 or capacity < 1:
            raise ValueError(f"every {every} and capacity {capacity} must be at least 1")
        self._every = every
        self._capacity = capacity
        self._counters: OrderedDict[bytes, tuple[int, int]] = OrderedDict()  # key -> written_at_ms, count

    def on_hit(self, fingerprint: bytes, cached: AdsList) -> Decision:
        """Refresh when the counter of this list is a multiple of n, else count on."""
        written_at_ms, count = self._counters.get(fingerprint, (-1, 1))
        if cached.written_at_ms < written_at_ms:
            return _REUSE
        if cached.written_at_ms > written_at_ms:
            count = 1
        if count % self._every == 0:
            self._store(fingerprint, cached.written_at_ms, count)
            return _REFRESH
        self._store(fingerprint, cached.written_at_ms, count + 1)
        return _REUSE

    def on_write(self, fingerprint: bytes, written: AdsList) -> None:
        """Start the counter of the new list at 1."""
        self._store(fingerprint, written.written_at_ms, 1)

    def __len__(self) -> int:
        return len(self._counters)

    def _store(self, fingerprint: bytes, written_at_ms: int, count: int) -> None:
        self._counters[fingerprint] = (written_at_ms, count)
        self._counters.move_to_end(fingerprint)
        if len(self._counters) > self._capacity:
            self._counters.popitem(last=False)
