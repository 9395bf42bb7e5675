"""Integer arithmetic of priorities: worth an entry's size, and sums that saturate instead of overflowing."""

from __future__ import annotations

from ..compiled import compiled
from .priority import MAX_PRIORITY

MOST_WORTH = MAX_PRIORITY >> 10
"""Most that an entry stands above the clock. Where everything else has gone the clock follows a single entry,
and it never falls: without this bound one absurd cost or expiry would use up the range of priorities."""


@compiled
def value(cost: int, size: int, weight: int) -> int:
    """weight * cost / size, rounded down, at most MAX_PRIORITY. None is negative; a size of 0 counts as 1."""
    if cost > 0 and weight > (1 << 62) // cost:  # the product leaves 62 bits; doubles are right to 1 in 2^51
        return int(min(float(weight) * float(cost) / max(size, 1), float(MAX_PRIORITY)))
    return min(weight * cost // max(size, 1), MAX_PRIORITY)


@compiled
def raised(clock: int, worth: int) -> int:
    """clock + worth, the worth at most MOST_WORTH and the sum at most MAX_PRIORITY."""
    return min(clock + min(worth, MOST_WORTH), MAX_PRIORITY)
