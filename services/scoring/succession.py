"""Which cached lists are computed anew because a newer model or index serves.

Problem. A new model makes every cached list outdated in the same moment. Were they dropped, or refreshed at
their next hit, all traffic would fall upon inference at once: the cache would be flushed by a roll-out.

How. An outdated list stays good. The refresh policy judges it as before, and of the hits on outdated lists at
most `per_s` a second refresh for their age alone. Popular lists, which are hit most, come first; a list that
nobody asks for leaves by eviction. Lists of unequal scorers are never merged (`services/core/ads_list.py`).

The newest versions are those of the list computed last. While two versions serve side by side lists change
hands both ways, at this pace at most. Event-loop only. O(1) a hit.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from services.core.ads_list import Versions


class Succession:
    """Paces refreshes of lists that other versions made; with `per_s` 0 there are none."""

    def __init__(self, per_s: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.newest = Versions()
        self._interval_s = 1 / per_s if per_s else 0.0
        self._clock = clock
        self._next_s = 0.0

    def is_due(self, versions: Versions) -> bool:
        """Whether the hit on a list of these versions is to refresh; what it says counts as done."""
        if versions == self.newest or self.newest == Versions() or not self._interval_s:
            return False
        now_s = self._clock()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + self._interval_s
        return True
