"""Revenue-aware adaptive refresh: SoCC'17 section 4.4, Algorithm 1.

Problem. Lists of earning phrases must be fresh, but many of them hardly change. Each cached list therefore
has a rate of its own, n, which follows how much refreshes turned out to change it. The steps, with R the
phrases that ever earned:

    1  on a hit:      if cnt mod n = 0, refresh, else cnt <- cnt + 1       n is 20 for a phrase outside R
    2  on an insert:  cnt <- 1, n <- 1                                     (the aggressive rate)
    3  on a refresh:  cnt <- 1, and for a phrase in R
    4                   similarity of cached and new list > 90 %:  n <- n + 1
    5                   similarity < 70 %:                         n <- max(1, n - 1)
    6  a phrase that comes into R:  n <- 1

Line 6 needs no step of its own: n stays at 1 until the phrase is in R. The paper keeps n in the cache entry,
so an evicted list starts again at 1; so do we.

Departure: the paper does not say what an empty list is similar to. Here the similarity is undefined when
either list is empty, and n stays. Were it taken as similar, n would rise on every phrase that sometimes finds
no ads, and lists that earn would be served stale.

When not to use: where a trained model fits the traffic; n reacts to change, not to what the change is worth.
"""

from __future__ import annotations

from services.core.ads_list import AdsList
from services.core.compiled import compiled
from services.core.refresh.policy import Rows, is_nth_hit
from services.core.refresh.two_level import TwoLevelRefresh

SIMILAR = 0.9
"""Above it a refresh was not worth it, and n rises."""

CHANGED = 0.7
"""Below it a refresh was due, and n falls."""


@compiled
def on_hit(entries: Rows, row: int, earning: bool, cold_every: int) -> bool:
    """Whether the hit refreshes (line 1)."""
    return is_nth_hit(entries, row, entries[row]["every"] if earning else cold_every)


@compiled
def on_insert(entries: Rows, row: int) -> None:
    """A list was written after a miss (line 2)."""
    entries[row]["count"] = 1
    entries[row]["every"] = 1


@compiled
def on_refresh(entries: Rows, row: int, earning: bool, similarity: float) -> None:
    """A list was refreshed; similarity 0..1 of the list before and the fresh one, NaN undefined."""
    entries[row]["count"] = 1  # line 3
    if earning and similarity > SIMILAR:
        entries[row]["every"] += 1  # line 4
    elif earning and similarity < CHANGED:
        entries[row]["every"] = max(1, entries[row]["every"] - 1)  # line 5


class AdaptiveRefresh(TwoLevelRefresh):
    """Refreshes each list of an earning phrase at its own rate, other lists at the `cold_every`-th hit."""

    name = "adaptive"

    def _is_due(self, row: int, fingerprint: bytes, cached: AdsList, now_ms: int) -> bool:
        return on_hit(self._rows, row, self._earns(fingerprint), self._cold_every)

    def _inserted(self, row: int) -> None:
        on_insert(self._rows, row)

    def _refreshed(self, row: int, fingerprint: bytes, similarity: float) -> None:
        on_refresh(self._rows, row, self._earns(fingerprint), similarity)
