"""The caller's deadline: checked between stages, and passed on as what remains of it."""

from __future__ import annotations

import math
import time
from typing import Protocol

from services.runtime.errors import DeadlineExceeded


class _HasTimeRemaining(Protocol):
    def time_remaining(self) -> float | None: ...


class Deadline:
    """A point on the monotonic clock; infinitely far when the caller set none."""

    __slots__ = ("_at",)

    def __init__(self, at_s: float) -> None:
        self._at = at_s

    @classmethod
    def of(cls, context: _HasTimeRemaining) -> Deadline:
        """The deadline of a gRPC call."""
        remaining = context.time_remaining()
        return cls(math.inf if remaining is None else time.monotonic() + remaining)

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """A deadline `seconds` from now."""
        return cls(time.monotonic() + seconds)

    def remaining_s(self) -> float:
        """Seconds left, 0 when passed, infinity when there is no deadline."""
        return max(0.0, self._at - time.monotonic())

    def check(self, stage: str) -> None:
        """Raises DeadlineExceeded when no time is left for `stage`."""
        if time.monotonic() >= self._at:
            raise DeadlineExceeded(stage)

    def timeout_s(self, cap_s: float) -> float:
        """What a call made now may take: what remains, at most `cap_s` seconds."""
        return min(cap_s, self.remaining_s())
