"""The priority of a write, from what the sidecar last said, and the expiry that stores it.

    priority = clock + scale x cost_us^cost_power x (size + overhead)^-size_power x frequency^frequency_power
    PXAT     = 2100-01-01 + 1024 x priority + sequence mod 1024

Redis so knows the order too: under `maxmemory-policy volatile-ttl` it evicts the lowest expiry first, while
the sidecar is gone or where there is none, and no entry ever expires by the clock. `services/core/eviction`
says where the rule comes from. The sidecar raises what is written too low: before it is heard, the clock is
0 and the rule that of its default order.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import OrderedDict
from typing import NamedTuple

from frugalads.eviction.v1 import eviction_pb2

BASE_MS = 4_102_444_800_000
SEQUENCE_BITS = 10
MAX_PRIORITY = (((1 << 53) - BASE_MS) >> SEQUENCE_BITS) - 1
"""Lua numbers hold expiries up to 2^53 exactly; priorities saturate there."""

_KNOWN_KEYS = 65_536
_DEFAULT_RULE = eviction_pb2.PriorityRule(
    scale=4096, cost_power=1.25, size_power=1.25, frequency_power=2, overhead_bytes=64
)


class Stamp(NamedTuple):
    """The priority of one write: its sequence, and the PXAT that holds both."""

    sequence: int
    expire_at_ms: int


class Priorities:
    """Stamps writes; learns from the sidecar in another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clock = 0
        self._rule = _DEFAULT_RULE
        self._frequencies: OrderedDict[bytes, int] = OrderedDict()
        self._sequence = itertools.count(time.time_ns() // 1_000_000)  # two processes should differ

    def learn(self, response: eviction_pb2.ReportResponse) -> None:
        """Takes in clock, rule and frequencies."""
        with self._lock:
            self._clock = max(self._clock, response.clock)
            if response.HasField("rule"):
                self._rule = response.rule
            for hint in response.frequency_hints:
                self._frequencies[hint.key] = hint.frequency
                self._frequencies.move_to_end(hint.key)
            while len(self._frequencies) > _KNOWN_KEYS:
                self._frequencies.popitem(last=False)

    def stamp(self, key: bytes, size_bytes: int, cost_us: int) -> Stamp:
        """The priority of a write that is about to happen. size_bytes: of key and value."""
        with self._lock:
            clock, rule, frequency = self._clock, self._rule, self._frequencies.get(key, 1)
            sequence = next(self._sequence)
        worth = rule.scale * float(cost_us) ** rule.cost_power * float(frequency) ** rule.frequency_power
        worth *= float(max(size_bytes + rule.overhead_bytes, 1)) ** -rule.size_power
        priority = min(clock + int(min(worth, MAX_PRIORITY)), MAX_PRIORITY)
        return Stamp(sequence, BASE_MS + (priority << SEQUENCE_BITS | sequence & ((1 << SEQUENCE_BITS) - 1)))
