"""Adaptive time to live: each list lives as long as its past refreshes say it may.

Source: the incremental strategy of S. Alici et al., "Adaptive time-to-live strategies for query result
caching in web search engines" (ECIR 2012): a result starts with the least TTL; when it has expired and the
new result is the same, its TTL grows, and when it has changed it falls back to the least.

Departures. Their results are equal or not; our lists nearly always differ in some ad, so "the same" is a
similarity above 90 %, as in Algorithm 1 of SoCC'17, and a refresh with an undefined similarity leaves the
TTL. The TTL doubles, up to a longest one; the paper compares several increments.

When not to use: where lists change from request to request rather than with age, as Bing's do; time then says
nothing about what a hit would lose.
"""

from __future__ import annotations

from services.core.ads_list import AdsList
from services.core.compiled import compiled
from services.core.refresh.adaptive import SIMILAR
from services.core.refresh.policy import CAPACITY, Rows, TablePolicy

LONGEST_TTL_MS = 24 * 3_600_000


@compiled
def on_hit(entries: Rows, row: int, age_ms: int) -> bool:
    """Whether a list of this age has expired."""
    return bool(age_ms >= entries[row]["ttl_ms"])


@compiled
def on_insert(entries: Rows, row: int, least_ttl_ms: int) -> None:
    """A list was written after a miss."""
    entries[row]["ttl_ms"] = least_ttl_ms


@compiled
def on_refresh(entries: Rows, row: int, similarity: float, least_ttl_ms: int, longest_ttl_ms: int) -> None:
    """A list was refreshed; similarity 0..1 of the list before and the fresh one, NaN undefined."""
    if similarity > SIMILAR:
        entries[row]["ttl_ms"] = min(2 * entries[row]["ttl_ms"], longest_ttl_ms)
    elif similarity <= SIMILAR:
        entries[row]["ttl_ms"] = least_ttl_ms


class AdaptiveTtl(TablePolicy):
    """Refreshes a list that has outlived its TTL, which its refreshes move."""

    name = "adaptive_ttl"

    def __init__(
        self, least_ttl_ms: int, longest_ttl_ms: int = LONGEST_TTL_MS, capacity: int = CAPACITY
    ) -> None:
        super().__init__(capacity)
        if not 1 <= least_ttl_ms <= longest_ttl_ms:
            raise ValueError(f"least_ttl_ms {least_ttl_ms} must be 1 or more, and at most {longest_ttl_ms}")
        self._least_ttl_ms = least_ttl_ms
        self._longest_ttl_ms = longest_ttl_ms

    def _is_due(self, row: int, fingerprint: bytes, cached: AdsList, now_ms: int) -> bool:
        return on_hit(self._rows, row, now_ms - cached.written_at_ms)

    def _inserted(self, row: int) -> None:
        on_insert(self._rows, row, self._least_ttl_ms)

    def _refreshed(self, row: int, fingerprint: bytes, similarity: float) -> None:
        on_refresh(self._rows, row, similarity, self._least_ttl_ms, self._longest_ttl_ms)
