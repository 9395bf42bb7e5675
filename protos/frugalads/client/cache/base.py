"""What blocking and asyncio caches have in common: names of keys, what is fresh, costs, counts."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from typing import NamedTuple, TypeAlias

from frugalads.client.cache.entries import MAX_COST_US, Entry, encode
from frugalads.client.cache.guards import Breaker, CoolDowns
from frugalads.client.cache.priorities import Priorities, Stamp
from frugalads.client.cache.reports import Reporter
from frugalads.client.channels import Endpoint
from frugalads.client.options import Options

MAX_CONNECTIONS = 64

_LEASE = b"~lease"

_LOG = logging.getLogger("frugalads.cache")


class HashField(NamedTuple):
    """A cost that stands in Redis: `HGET hash field`, microseconds, read whenever a value is computed.

    Keep the hash outside of the managed prefix. Where it holds no number, the measured time counts.
    """

    hash: str
    field: str


Cost: TypeAlias = int | HashField | None
"""What the eviction order counts for an entry, microseconds: given, read from a hash, or (None) measured."""


class Write(NamedTuple):
    """A value on its way to Redis. size_bytes: of key and data."""

    data: bytes
    size_bytes: int
    cost_us: int
    stamp: Stamp


class CacheBase:
    """The part of a cache that neither waits nor computes."""

    def __init__(
        self,
        prefix: str,
        sidecar: str | None,
        ttl_s: float | None,
        timeout_s: float,
        options: Options | None,
    ) -> None:
        if not prefix:
            raise ValueError("prefix: must not be empty, the sidecar manages the keys under it")
        if ttl_s is not None and not ttl_s > 0:
            raise ValueError(f"ttl_s: {ttl_s} is not above 0; None is for ever")
        if not 0 < timeout_s <= 60:
            raise ValueError(f"timeout_s: {timeout_s} is outside 0 < timeout_s <= 60")
        self._prefix = prefix.encode()
        self._ttl_s = ttl_s
        self._timeout_s = timeout_s
        self._priorities = Priorities()
        self._reporter = Reporter(None if sidecar is None else Endpoint(sidecar, options), self._priorities)
        self._breaker = Breaker()
        self._cool_downs = CoolDowns()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._closed = False

    @property
    def counts(self) -> dict[str, int]:
        """How often each of these happened since the start.

        hits: a value came from Redis. computed: it was absent or too old. refreshed: it was computed early.
        refresh_failed: computing early failed, the value at hand was used. unanswered: Redis gave no answer.
        refused: it refused a command. spared: it was not asked, because it had not answered lately.
        unreported: events that the sidecar was not told.
        """
        names = ("hits", "computed", "refreshed", "refresh_failed", "unanswered", "refused", "spared")
        with self._lock:
            return {**{name: self._counts[name] for name in names}, "unreported": self._reporter.dropped}

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1

    def _name(self, key: str | bytes) -> bytes:
        if self._closed:
            raise RuntimeError("the cache is closed")
        bare = key.encode() if isinstance(key, str) else key
        if bare == _LEASE:
            raise ValueError(f"key: {key!r} is the sidecar's own")
        return self._prefix + bare

    def _is_fresh(self, entry: Entry) -> bool:
        return entry.is_fresh(self._ttl_s, time.time())

    def _is_due(self, name: bytes, entry: Entry) -> bool:
        due = entry.is_due(self._ttl_s, time.time(), random.random())
        return due and not self._cool_downs.is_cooling(name)

    def _hit(self, name: bytes) -> None:
        self._count("hits")
        self._reporter.hit(name)

    def _prepared(self, name: bytes, value: bytes, compute_us: int, cost: int | None) -> Write:
        """What to store for a value that was computed just now; a cost of None gives way to the time."""
        cost_us = min(max(compute_us if cost is None else cost, 0), MAX_COST_US)
        data = encode(Entry(value, time.time_ns() // 1_000_000, cost_us, compute_us), name)
        self._cool_downs.success(name)
        size_bytes = len(name) + len(data)
        return Write(data, size_bytes, cost_us, self._priorities.stamp(name, size_bytes, cost_us))

    def _written(self, name: bytes, write: Write, is_new: bool) -> None:
        self._reporter.written(name, write.size_bytes, write.cost_us, write.stamp, is_new)

    def _refresh_failed(self, name: bytes, error: Exception) -> None:
        self._count("refresh_failed")
        self._cool_downs.failure(name)
        _LOG.warning("early refresh of %r failed, its value is used on: %r", name, error)

    def _allowed(self) -> bool:
        if self._breaker.allows():
            return True
        self._count("spared")
        return False

    def _answered(self) -> None:
        if self._breaker.success():
            _LOG.warning("Redis answers again")

    def _refused(self, error: Exception) -> None:
        self._count("refused")
        self._answered()
        _LOG.debug("Redis refused a command: %r", error)

    def _unanswered(self, error: Exception) -> None:
        self._count("unanswered")
        if self._breaker.failure():
            _LOG.warning("Redis does not answer, values are computed: %r", error)


def checked(value: object, name: bytes) -> bytes:
    """The value that a computation returned; raises TypeError when it is not bytes."""
    if not isinstance(value, bytes):
        raise TypeError(f"the computation of {name!r} returned {type(value).__name__}, not bytes")
    return value


def number(answer: object) -> int | None:
    """The number in a field of a hash, None where there is none."""
    try:
        return int(answer) if isinstance(answer, bytes | str) else None
    except ValueError:
        return None
