"""Fixed refresh: the n-th hit after each write.

The plain mechanism of SoCC'17 section 4.4 with one n for all lists. It knows nothing about revenue: SoCC'17
measures -14.1 % at n = 2 (pessimistic), WWW'18 table 4 -5.2 % at n = 5 (by auction).

When not to use: wherever a policy that knows which phrases earn fits the traffic.
"""

from __future__ import annotations

from services.core.ads_list import AdsList
from services.core.refresh.policy import CAPACITY, TablePolicy, is_nth_hit, restart


class FixedRefresh(TablePolicy):
    """Refreshes at the n-th hit after each write."""

    name = "fixed"

    def __init__(self, every: int, capacity: int = CAPACITY) -> None:
        super().__init__(capacity)
        if every < 1:
            raise ValueError(f"every {every} must be at least 1")
        self._every = every

    def _is_due(self, row: int, fingerprint: bytes, cached: AdsList, now_ms: int) -> bool:
        return is_nth_hit(self._rows, row, self._every)

    def _inserted(self, row: int) -> None:
        restart(self._rows, row)

    def _refreshed(self, row: int, fingerprint: bytes, similarity: float) -> None:
        restart(self._rows, row)
