"""Stops evictions that free nothing.

Reports of other systems show what happens without: used memory that does not fall after deletions
(dragonfly#8149), or that is measured wrongly (dragonfly#5945), makes an evictor flush the whole cache and
gain nothing. Here the bytes that each batch freed are measured inside Redis and set against their estimate;
below a quarter of it evictions pause, which is reported, and they are tried anew after each pause. Redis'
own eviction stays as the backstop.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_LEAST_SHARE = 0.25
_LEAST_ESTIMATE_BYTES = 256 << 10  # well above the 70 kB that a script's first run leaves in Redis
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0


class FreedBreaker:
    """Open while evicting does not free what it should. Judges at least 256 KiB of evictions at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._estimated_bytes = 0
        self._freed_bytes = 0
        self._pause_s = 0.0
        self._closed_at_s = 0.0

    @property
    def is_open(self) -> bool:
        """Whether evictions have been paused and not been shown to work since."""
        return self._pause_s > 0

    def allows(self) -> bool:
        """Whether a batch may be evicted now."""
        return self._clock() >= self._closed_at_s

    def record(self, estimated_bytes: int, freed_bytes: int) -> bool:
        """Counts a batch; True when this opened the breaker or kept it open."""
        self._estimated_bytes += estimated_bytes
        self._freed_bytes += freed_bytes
        if self._estimated_bytes < _LEAST_ESTIMATE_BYTES:
            return False
        failed = self._freed_bytes < _LEAST_SHARE * self._estimated_bytes
        self._estimated_bytes = self._freed_bytes = 0
        self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S) if failed else 0.0
        self._closed_at_s = self._clock() + self._pause_s
        return failed
