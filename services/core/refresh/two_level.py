"""Two-level refresh: often where the phrase has earned, rarely elsewhere.

SoCC'17 section 4.4: 5 % of phrases earn everything, so lists of phrases in R (those that ever earned) are
computed anew at every hit (n = 1), the others at the 20th. It loses 2.0 % of revenue, and saves least,
because the phrases that earn are also the frequent ones.

When not to use: where lists of earning phrases are often unchanged; `adaptive` finds that out.
"""

from __future__ import annotations

from services.core.ads_list import AdsList
from services.core.compiled import compiled
from services.core.refresh.policy import CAPACITY, Earns, Rows, TablePolicy, is_nth_hit, restart

COLD_EVERY = 20
"""n of phrases that never earned (SoCC'17 section 5.2)."""


@compiled
def on_hit(entries: Rows, row: int, earning: bool, cold_every: int) -> bool:
    """Whether the hit refreshes; a phrase that starts to earn is refreshed at its next hit."""
    return is_nth_hit(entries, row, 1 if earning else cold_every)


class TwoLevelRefresh(TablePolicy):
    """Refreshes at every hit where the phrase has earned, at the `cold_every`-th elsewhere."""

    name = "two_level"

    def __init__(self, earns: Earns, cold_every: int = COLD_EVERY, capacity: int = CAPACITY) -> None:
        super().__init__(capacity)
        if cold_every < 1:
            raise ValueError(f"cold_every {cold_every} must be at least 1")
        self._earns = earns
        self._cold_every = cold_every

    def _is_due(self, row: int, fingerprint: bytes, cached: AdsList, now_ms: int) -> bool:
        return on_hit(self._rows, row, self._earns(fingerprint), self._cold_every)

    def _inserted(self, row: int) -> None:
        restart(self._rows, row)

    def _refreshed(self, row: int, fingerprint: bytes, similarity: float) -> None:
        restart(self._rows, row)
