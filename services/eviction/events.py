"""Checks reports before anything is applied: a batch is taken whole or not at all."""

from __future__ import annotations

from typing import NamedTuple

from frugalads.eviction.v1 import eviction_pb2
from services.core.eviction.priority import BASE_MS, EXPIRE_LIMIT_MS
from services.runtime.errors import InvalidArgument, InvalidArguments

MAX_COST = 1 << 40
"""Highest cost of an entry, microseconds: about 13 days."""
MAX_ENTRY_BYTES = 1 << 40
"""Largest entry, bytes; far above what Redis stores, below what would distort the sums."""

_SHOWN_VIOLATIONS = 8
_HIT = eviction_pb2.EVENT_KIND_HIT
_WRITES = (eviction_pb2.EVENT_KIND_ADMIT, eviction_pb2.EVENT_KIND_REFRESH)


class Event(NamedTuple):
    """A checked event; `expire_at_ms` is 0 for a hit."""

    key: bytes
    size_bytes: int
    cost_us: int
    expire_at_ms: int


class Checker:
    """The limits that reports must keep."""

    def __init__(self, prefix: bytes, lease_key: bytes, max_events: int, max_key_bytes: int) -> None:
        self._prefix = prefix
        self._lease_key = lease_key
        self._max_events = max_events
        self._max_key_bytes = max_key_bytes

    def check(self, request: eviction_pb2.ReportRequest, last_batch: int) -> list[Event]:
        """The events of a batch in order.

        Raises InvalidArguments naming the fields (`events[3].key`), their values and limits; at most eight.
        """
        if request.batch <= last_batch:
            raise InvalidArgument(
                "batch", request.batch, f"above {last_batch}, the last batch of this stream"
            )
        count = len(request.events)
        if not 1 <= count <= self._max_events:
            raise InvalidArgument("events", count, f"1..{self._max_events} events")
        checked: list[Event] = []
        violations: list[tuple[str, object, str]] = []
        prefix, longest = self._prefix, self._max_key_bytes
        for index, event in enumerate(request.events):
            kind, key = event.kind, event.key
            if not (key.startswith(prefix) and len(key) <= longest and key != self._lease_key):
                violations.append((f"events[{index}].key", key, self._key_limit(key)))
            if kind == _HIT:
                checked.append(Event(key, 0, 0, 0))
            elif kind in _WRITES:
                size, cost, expiry = event.size_bytes, event.cost_us, event.expire_at_ms
                if not 0 <= size <= MAX_ENTRY_BYTES:
                    violations.append((f"events[{index}].size_bytes", size, f"in 0..{MAX_ENTRY_BYTES}"))
                if not 0 <= cost <= MAX_COST:
                    violations.append((f"events[{index}].cost_us", cost, f"in 0..{MAX_COST}"))
                if not BASE_MS <= expiry < EXPIRE_LIMIT_MS:
                    limit = f"in {BASE_MS}..{EXPIRE_LIMIT_MS - 1}"
                    violations.append((f"events[{index}].expire_at_ms", expiry, limit))
                checked.append(Event(key, size, cost, expiry))
            else:
                violations.append((f"events[{index}].kind", kind, "ADMIT, HIT or REFRESH"))
            if len(violations) >= _SHOWN_VIOLATIONS:
                break
        if violations:
            raise InvalidArguments(violations[:_SHOWN_VIOLATIONS])
        return checked

    def _key_limit(self, key: bytes) -> str:
        if len(key) > self._max_key_bytes:
            return f"at most {self._max_key_bytes} bytes"
        if key == self._lease_key:
            return "another key than that of the lease"
        return f"under the managed prefix {self._prefix.decode()!r}"
