"""No refresh: a list is served as long as the cache keeps it.

The naive cache of SoCC'17 section 5.2, which saves most and loses a quarter of the revenue (-25.5 %). It is
the baseline of every table and never the policy to run.
"""

from __future__ import annotations

from services.core.ads_list import AdsList
from services.core.refresh.policy import REUSE, Decision


class NoRefresh:
    """Reuses every list."""

    name = "none"

    def on_hit(self, fingerprint: bytes, cached: AdsList, now_ms: int) -> Decision:
        """Reuse."""
        return REUSE

    def on_write(self, fingerprint: bytes, written: AdsList, similarity: float | None) -> None:
        """Nothing to note."""
