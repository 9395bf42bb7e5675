"""What Redis answers about a key."""

from __future__ import annotations

from typing import NamedTuple

GONE = -2
"""Instead of an expiry: there is no such key."""
IMMORTAL = -1
"""Instead of an expiry: the key has none."""
UNLINKED = 0
"""Of a victim: it was unlinked."""


class Found(NamedTuple):
    """A key: its expiry (Unix milliseconds, GONE or IMMORTAL), the bytes that it occupies, and the cost that
    a field of it gives (microseconds, -1 none)."""

    key: bytes
    expiry_ms: int
    size_bytes: int
    cost_us: int
