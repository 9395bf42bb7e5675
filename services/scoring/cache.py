"""The cache of scored lists: one shared read a hit (`reads`), one conditional SET a computation.

A value is used only when it decodes as the list of the key that was asked for (`services.core.ads_list`);
anything else counts as a miss and in `corrupt_entries_total`. Every write carries PXAT: a key without expiry
would leave the volatile set and never be evicted (redis `volatile-ttl`); the expiry is the entry's priority,
freshness stands in the value.

A late writer (a stalled process, a slow socket) must not put back an older list. SET cannot compare, so a
write is a script that reads 32 bytes of what is there: about 5 us of server time more than SET, once per
computation of milliseconds.

When the cache does not answer within its timeout, `CacheUnavailable` is raised; a breaker then refuses at
once, with one probe each cool-down, so that a silent server costs one timeout and not one per answer.
A refusal (no memory, read-only, no permission) is an answer: it fails that command, not the breaker,
so that a cache which takes no writes is still read. A key of another type reads as none and is replaced.
"""

from __future__ import annotations

from collections.abc import Awaitable
from importlib.resources import files
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from services.core.ads_list import AdsList, CorruptEntry, decode, encode
from services.runtime.metrics import Metrics
from services.runtime.redis_client import Breaker, Patience
from services.scoring.reads import SharedReads

T = TypeVar("T")

_COMMANDS = ("get", "put", "ping")
_CORRUPT = ("length", "format", "crc", "fingerprint", "versions")


class CacheUnavailable(Exception):
    """The cache gave no answer."""


class Written(NamedTuple):
    """A write that took place: its key, the bytes of key and value, and whether the key is new."""

    key: bytes
    size_bytes: int
    is_new: bool


class ListCache(Protocol):
    """Where scored lists are kept between answers."""

    def key(self, fingerprint: bytes) -> bytes:
        """What the store calls a key."""

    async def get(self, fingerprint: bytes) -> AdsList | None:
        """The list of a key, or None. Raises CacheUnavailable."""

    async def put(self, fingerprint: bytes, entry: AdsList, expire_at_ms: int) -> Written | None:
        """Write a list under a priority; None when a newer one is there. Raises CacheUnavailable."""


class RedisCache:
    """Lists in Redis under `prefix` + the fingerprint in hexadecimal; a command ends within `timeout_ms`."""

    def __init__(
        self,
        client: Redis,
        prefix: str,
        metrics: Metrics,
        breaker: Breaker | None = None,
        timeout_ms: int = 1_000,
    ) -> None:
        self._client: Any = client  # redis-py's types allow text replies; this client gives bytes
        self._prefix = prefix.encode()
        self._breaker = breaker or Breaker()
        self._timeout_s = timeout_ms / 1000
        self._reads = SharedReads(self._fetch)
        self._put_newer = client.register_script(
            files("services.scoring").joinpath("put_newer.lua").read_text(encoding="utf-8")
        )
        self._corrupt = metrics.counter(
            "corrupt_entries_total", "Cached values that were not the list asked for.", ("reason",), _CORRUPT
        )
        self._failures = metrics.counter(
            "cache_failures_total", "Cache commands without an answer.", ("command",), _COMMANDS
        )
        self._spared = metrics.counter(
            "cache_spared_total",
            "Cache commands not sent because the breaker was open.",
            ("command",),
            _COMMANDS,
        )
        metrics.gauge("cache_breaker_open", "1 while the cache is not asked.").set_function(
            lambda: self._breaker.is_open
        )

    def key(self, fingerprint: bytes) -> bytes:
        """Redis key of a fingerprint."""
        return self._prefix + fingerprint.hex().encode()

    async def get(self, fingerprint: bytes) -> AdsList | None:
        """The list of a key, or None. Raises CacheUnavailable."""
        self._check_breaker("get")
        data = await self._reads.get(self.key(fingerprint))
        if data is None:
            return None
        try:
            return decode(data, fingerprint)
        except CorruptEntry as error:
            self._corrupt.labels(error.reason).inc()
            return None

    async def put(self, fingerprint: bytes, entry: AdsList, expire_at_ms: int) -> Written | None:
        """Write a list under a priority; None when a newer one is there. Raises CacheUnavailable."""
        key, value = self.key(fingerprint), encode(entry, fingerprint)
        self._check_breaker("put")
        call = cast("Awaitable[int]", self._put_newer(keys=[key], args=[value, expire_at_ms]))
        try:
            outcome = await self._answer("put", call)
        except ResponseError as error:
            raise self._failed("put", error) from error
        return Written(key, len(key) + len(value), outcome == 1) if outcome else None

    async def ping(self) -> None:
        """Returns when the server answers; closes the breaker. Raises CacheUnavailable."""
        try:
            await self._answer("ping", self._client.ping())
        except ResponseError as error:
            raise self._failed("ping", error) from error

    async def close(self) -> None:
        """Close every connection."""
        await self._reads.close()
        await self._client.aclose()

    async def _fetch(self, keys: list[bytes]) -> list[bytes | None]:
        try:
            values: list[bytes | None] = await self._answer("get", self._client.mget(keys))
        except ResponseError as error:
            raise self._failed("get", error) from error
        return values

    def _check_breaker(self, command: str) -> None:
        if not self._breaker.allows():
            self._spared.labels(command).inc()
            raise CacheUnavailable("the cache did not answer lately")

    async def _answer(self, command: str, call: Awaitable[T]) -> T:
        """The server's answer; raises its refusal as ResponseError, and CacheUnavailable for none."""
        try:
            async with Patience(self._timeout_s):
                answer = await call
        except ResponseError:
            self._breaker.success()
            raise
        except (RedisError, OSError, TimeoutError) as error:
            self._breaker.failure()
            raise self._failed(command, error) from error
        self._breaker.success()
        return answer

    def _failed(self, command: str, error: Exception) -> CacheUnavailable:
        self._failures.labels(command).inc()
        return CacheUnavailable(f"{command}: {type(error).__name__}: {error}")


class MemoryCache:
    """The same contract in memory, for tests and for the bare path of a benchmark.

    Unbounded: not for serving.
    """

    def __init__(self) -> None:
        self.entries: dict[bytes, tuple[bytes, int]] = {}

    def key(self, fingerprint: bytes) -> bytes:
        """The fingerprint itself."""
        return fingerprint

    async def get(self, fingerprint: bytes) -> AdsList | None:
        """The list of a key, or None."""
        found = self.entries.get(fingerprint)
        try:
            return None if found is None else decode(found[0], fingerprint)
        except CorruptEntry:
            return None

    async def put(self, fingerprint: bytes, entry: AdsList, expire_at_ms: int) -> Written | None:
        """Write a list under a priority; None when a newer one is there."""
        existing = await self.get(fingerprint)
        if existing is not None and existing.written_at_ms > entry.written_at_ms:
            return None
        value = encode(entry, fingerprint)
        is_new = fingerprint not in self.entries
        self.entries[fingerprint] = (value, expire_at_ms)
        return Written(fingerprint, len(fingerprint) + len(value), is_new)
