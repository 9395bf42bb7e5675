"""How often evicted keys were used, in a few bytes an entry: a count-min sketch that forgets.

Sources: G. Cormode and S. Muthukrishnan, "An improved data stream summary: the count-min sketch and its
applications" (J. Algorithms 2005); halving as in G. Einziger, R. Friedman and B. Manes, "TinyLFU: a highly
efficient cache admission policy" (ACM ToS 2017).

A key has two counters of 8 bits, in the two halves of one line of 64, which is one cache line. Its estimate
is the smaller one, never below what was stored for it since the last halving; a collision can only raise it.
All counters are halved now and then, so that what nobody asks for any more fades and makes room.
"""

from __future__ import annotations

from ..compiled import compiled
from .state import State

LINE = 64
MOST = 255
_HALF_BITS = 5


@compiled
def _cells(s: State, digest: int) -> tuple[int, int]:
    bits = digest & 0xFFFFFFFF
    line = bits * (len(s.counters) // LINE) >> 32
    mixed = bits * 0x9E3779B1 & 0xFFFFFFFF
    first = line * LINE + (mixed >> (32 - _HALF_BITS))
    second = line * LINE + LINE // 2 + (mixed >> (32 - 2 * _HALF_BITS) & (LINE // 2 - 1))
    return first, second


@compiled
def estimate(s: State, digest: int) -> int:
    """What is stored for a key, or more."""
    first, second = _cells(s, digest)
    return int(min(s.counters[first], s.counters[second]))


@compiled
def store(s: State, digest: int, frequency: int) -> None:
    """Make a key's estimate at least a frequency; frequencies above MOST count as MOST."""
    first, second = _cells(s, digest)
    kept = min(frequency, MOST)
    s.counters[first] = max(s.counters[first], kept)
    s.counters[second] = max(s.counters[second], kept)


@compiled
def halve(s: State) -> None:
    """Halve every counter, rounding down."""
    for cell in range(len(s.counters)):
        s.counters[cell] >>= 1
