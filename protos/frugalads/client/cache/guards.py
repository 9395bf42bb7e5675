"""What keeps a broken dependency from being asked by every caller. Safe for threads: a race costs one try."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable


class Breaker:
    """Opens after three commands without an answer in a row; then lets one through every half second.

    A silent Redis so costs a process one timeout each half second, not one a call.
    """

    THRESHOLD = 3
    COOL_DOWN_S = 0.5

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._next_probe_s = 0.0

    @property
    def is_open(self) -> bool:
        """Whether commands are being spared."""
        return self._failures >= self.THRESHOLD

    def allows(self) -> bool:
        """Whether a command may be sent now."""
        if not self.is_open:
            return True
        now_s = self._clock()
        if now_s < self._next_probe_s:
            return False
        self._next_probe_s = now_s + self.COOL_DOWN_S
        return True

    def success(self) -> bool:
        """There was an answer; True when this closed the breaker."""
        closed = self.is_open
        self._failures = 0
        return closed

    def failure(self) -> bool:
        """There was none; True when this opened the breaker."""
        self._failures += 1
        self._next_probe_s = self._clock() + self.COOL_DOWN_S
        return self._failures == self.THRESHOLD


class CoolDowns:
    """Keys whose early refresh failed: not tried again for a second, then two, four, up to a minute.

    Remembers the last 1,000; a forgotten one costs one more try.
    """

    FIRST_S = 1.0
    LONGEST_S = 60.0
    CAPACITY = 1_000

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: OrderedDict[bytes, tuple[float, float]] = OrderedDict()  # key -> until_s, delay_s

    def is_cooling(self, key: bytes) -> bool:
        """Whether the key failed and its delay has not passed."""
        failed = self._failed.get(key)
        return failed is not None and self._clock() < failed[0]

    def failure(self, key: bytes) -> None:
        """Starts the delay, twice as long as the one before."""
        before = self._failed.pop(key, None)
        delay_s = self.FIRST_S if before is None else min(2 * before[1], self.LONGEST_S)
        self._failed[key] = (self._clock() + delay_s, delay_s)
        while len(self._failed) > self.CAPACITY:
            self._failed.popitem(last=False)

    def success(self, key: bytes) -> None:
        """Forgets the failures of the key."""
        self._failed.pop(key, None)
