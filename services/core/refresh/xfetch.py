"""XFetch: a list expires by time, and a hit may refresh it a little before that, at random.

Source: A. Vattani, F. Chierichetti, K. Lowenstein, "Optimal probabilistic cache stampede prevention" (VLDB
2015): with delta the time that computing the list takes and U uniform in 0..1, a hit refreshes when

    now - beta * delta * ln(U) >= expiry

so that of the processes that share a cache one is likely to refresh in time and few do together. beta = 1 is
optimal for exponential delays. The rule needs no state but what the list itself carries: when it was written
and what it cost.

When not to use: as a guard of revenue; it knows neither what an entry earns nor whether it changed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from services.core.ads_list import AdsList
from services.core.compiled import compiled
from services.core.refresh.policy import REFRESH, REUSE, Decision

BETA = 1.0


@compiled
def on_hit(age_ms: float, cost_ms: float, uniform: float, ttl_ms: int, beta: float) -> bool:
    """Whether a list of this age refreshes, given what computing it took; uniform: a draw from 0..1."""
    return age_ms - beta * cost_ms * math.log(max(uniform, 1e-300)) >= ttl_ms


class XFetch:
    """Refreshes a list after `ttl_ms`, or early with the chance that XFetch gives."""

    name = "xfetch"

    def __init__(self, ttl_ms: int, beta: float = BETA, uniform: Callable[[], float] = random.random) -> None:
        if ttl_ms < 1 or not beta >= 0.0:
            raise ValueError(f"ttl_ms {ttl_ms} must be at least 1 and beta {beta} at least 0")
        self._ttl_ms = ttl_ms
        self._beta = beta
        self._uniform = uniform

    def on_hit(self, fingerprint: bytes, cached: AdsList, now_ms: int) -> Decision:
        """Refresh at the list's expiry, or a little early."""
        age_ms, cost_ms = float(now_ms - cached.written_at_ms), cached.cost_us / 1000
        due = on_hit(age_ms, cost_ms, self._uniform(), self._ttl_ms, self._beta)
        return REFRESH if due else REUSE

    def on_write(self, fingerprint: bytes, written: AdsList, similarity: float | None) -> None:
        """Nothing to note: the list carries its time and its cost."""
