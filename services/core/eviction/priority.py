"""An entry's priority, written as the expiry time of its Redis key.

Problem: the order that decides evictions lives in the sidecar's memory, but Redis must know it too: to
evict on its own when the sidecar is gone, and to give the order back to a sidecar that has crashed.

Redis offers one 64-bit number per key that it also orders evictions by: the expiry time, under
`maxmemory-policy volatile-ttl`. So a priority H is stored as the instant

    BASE_MS + (H * 1024 + sequence mod 1024)     milliseconds since 1970

BASE_MS lies in the year 2100, so that no entry ever expires by the clock. No clock enters H, so clocks that
disagree harm nothing. Freshness of an entry lies in its value, never in this expiry.

What follows from it:
- Within one write of a key H only rises (L does not fall and the cost stays), so every later rise is
  `PEXPIREAT key at GT`: monotone, idempotent and commutative. Doubled, late or reordered rises are
  harmless, and GT never gives an expiry to a key that has none nor brings back a key that is gone. A new
  write may lower H: it is a SET with PXAT, which overwrites.
- The expiry is the persisted priority: scanning the keys restores the order after a crash.
- The expiry is a version stamp: "unlink if the expiry is still this" cannot remove an entry that was
  written or raised since. Two writes of equal priority differ in the sequence bits; after 1,024 writes of a
  client these repeat, which costs an entry at most one early eviction.

Limits: Lua numbers are doubles, so instants stay below 2**53, which leaves priorities up to 8.79e12 units.
With microseconds as unit the clock L reaches that after about 1e9 turnovers of a cache whose entries cost 9
ms. There the priority saturates instead of failing a write: order among saturated entries falls back to
recency. Nothing is ever rescaled, since a lowered priority would be refused by GT.
"""

from __future__ import annotations

BASE_MS = 4_102_444_800_000
"""2100-01-01T00:00:00Z, Unix milliseconds: the expiry of priority 0."""

SEQUENCE_BITS = 10
"""Low bits of the expiry that tell two writes of equal priority apart."""

EXPIRE_LIMIT_MS = 1 << 53
"""Expiries lie below this: a Lua number holds every integer up to here exactly."""

MAX_PRIORITY = ((EXPIRE_LIMIT_MS - BASE_MS) >> SEQUENCE_BITS) - 1
"""Highest priority whose expiry lies below EXPIRE_LIMIT_MS with any sequence."""

LIVE = ("ours", "gdsf", "gdwheel", "greedydual")
"""Orders that a live cache can be kept in: what they know of an entry is a priority, kept as its expiry."""

_SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1


def expire_at_ms(priority: int, sequence: int) -> int:
    """Expiry (PXAT, Unix milliseconds) that stores a priority; priorities above MAX_PRIORITY saturate there.

    >>> expire_at_ms(0, 0) == BASE_MS
    True
    >>> expire_at_ms(7, 1) - expire_at_ms(7, 0), expire_at_ms(8, 0) - expire_at_ms(7, 0)
    (1, 1024)

    Raises:
        ValueError: the priority is negative.
    """
    if priority < 0:
        raise ValueError(f"priority {priority} is negative")
    return BASE_MS + (min(priority, MAX_PRIORITY) << SEQUENCE_BITS | sequence & _SEQUENCE_MASK)


def priority_of(expire_at_ms: int) -> int:
    """Priority that an expiry (Unix milliseconds) stores, in 0..MAX_PRIORITY.

    An expiry before BASE_MS is an ordinary time to live and reads as 0: such a key goes first, as under
    volatile-ttl.
    """
    return min(max(expire_at_ms - BASE_MS, 0) >> SEQUENCE_BITS, MAX_PRIORITY)


def sequence_of(expire_at_ms: int) -> int:
    """Sequence bits of an expiry (Unix milliseconds), 0..1023."""
    return max(expire_at_ms - BASE_MS, 0) & _SEQUENCE_MASK
