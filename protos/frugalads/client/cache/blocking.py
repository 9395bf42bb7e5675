"""The blocking cache, for threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from frugalads.client.cache.base import (
    MAX_CONNECTIONS,
    CacheBase,
    Cost,
    HashField,
    checked,
    number,
)
from frugalads.client.cache.entries import Entry, decode
from frugalads.client.options import Options


class _Flight(Future[bytes]):
    """The value of a key on its way; cancelled when the thread that fetched it was interrupted."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()


class Cache(CacheBase):
    """Values in Redis, each with what it cost to compute. One serves all threads of a process.

        cache = Cache("redis://127.0.0.1:6379", "page:", sidecar="127.0.0.1:7403", ttl_s=300)
        page = cache.get_or_compute("home", lambda: render("home"))

    A key is computed by one thread of the process at a time, the others wait for it and share its value, or
    its exception. An early refresh runs in the thread that drew it; the others go on with the value at hand,
    and so does that thread when it fails.

    Neither Redis nor the sidecar can make a call fail: what does not answer within `timeout_s`, or refuses,
    is passed by and the value computed. Make it before a fork, call it after.
    """

    def __init__(
        self,
        redis_url: str,
        prefix: str,
        *,
        sidecar: str | None = None,
        ttl_s: float | None = None,
        timeout_s: float = 0.05,
        options: Options | None = None,
    ) -> None:
        """Connects on the first call.

        prefix: of all keys; the one that the sidecar manages. sidecar: its address, as of `Client`; None
        reports to nobody. ttl_s: how long a value is fresh; None for ever. timeout_s: what Redis has to
        answer a command. options: TLS of the sidecar. Raises ValueError for a value out of bounds.
        """
        super().__init__(prefix, sidecar, ttl_s, timeout_s, options)
        pool = redis.BlockingConnectionPool.from_url(
            redis_url,
            max_connections=MAX_CONNECTIONS,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )
        self._redis: Any = redis.Redis.from_pool(pool)
        self._flights: dict[bytes, _Flight] = {}
        self._refreshes: dict[bytes, _Flight] = {}

    def get_or_compute(self, key: str | bytes, compute: Callable[[], bytes], *, cost: Cost = None) -> bytes:
        """The value of a key, computed where it is absent or older than `ttl_s`.

        cost: what the eviction order counts, instead of the time that `compute` takes. Raises what `compute`
        raises, TypeError when that returns no bytes, RuntimeError when it asks for its own key.
        """
        name = self._name(key)
        while True:
            with self._lock:
                flight = self._flights.get(name)
                if flight is None:
                    flight = self._flights[name] = _Flight()
                    break
            if flight.thread == threading.get_ident():
                raise RuntimeError(f"the computation of {name!r} asks for itself")
            try:
                return flight.result()
            except CancelledError:
                continue
        return self._land(self._flights, name, lambda: self._fetch(name, flight, compute, cost))

    def close(self) -> None:
        """Sends the last reports and closes the connections. May be called again."""
        self._closed = True
        self._reporter.close()
        self._redis.connection_pool.disconnect()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _land(self, flights: dict[bytes, _Flight], name: bytes, work: Callable[[], bytes]) -> bytes:
        """Does the work of a flight and hands its end to all who wait."""
        flight = flights[name]
        try:
            value = work()
        except Exception as error:
            self._end(flights, name, flight)
            if not flight.done():
                flight.set_exception(error)
            raise
        except BaseException:  # this thread's own interruption
            self._end(flights, name, flight)
            flight.cancel()
            raise
        self._end(flights, name, flight)
        if not flight.done():
            flight.set_result(value)
        return value

    def _end(self, flights: dict[bytes, _Flight], name: bytes, flight: _Flight) -> None:
        with self._lock:
            if flights.get(name) is flight:
                del flights[name]

    def _fetch(self, name: bytes, flight: _Flight, compute: Callable[[], bytes], cost: Cost) -> bytes:
        entry = self._read(name)
        if entry is None or not self._is_fresh(entry):
            with self._lock:
                refresh = self._refreshes.get(name)
            if refresh is not None and refresh.thread != threading.get_ident():
                try:
                    return refresh.result()
                except CancelledError:
                    pass
            self._count("computed")
            return self._compute(name, compute, cost, is_new=entry is None)
        self._hit(name)
        if self._is_due(name, entry):
            with self._lock:
                if name in self._refreshes:
                    return entry.value
                self._refreshes[name] = _Flight()
            self._end(self._flights, name, flight)
            flight.set_result(entry.value)  # the others need not wait
            try:
                value = self._land(
                    self._refreshes, name, lambda: self._compute(name, compute, cost, is_new=False)
                )
            except Exception as error:
                self._refresh_failed(name, error)
                return entry.value
            self._count("refreshed")
            return value
        return entry.value

    def _compute(self, name: bytes, compute: Callable[[], bytes], cost: Cost, is_new: bool) -> bytes:
        began_s = time.perf_counter()
        value = checked(compute(), name)
        compute_us = round((time.perf_counter() - began_s) * 1e6)
        if isinstance(cost, HashField):
            cost = number(self._ask("hget", cost.hash, cost.field))
        write = self._prepared(name, value, compute_us, cost)
        if self._ask("set", name, write.data, pxat=write.stamp.expire_at_ms):
            self._written(name, write, is_new)
        return value

    def _read(self, name: bytes) -> Entry | None:
        return decode(self._ask("get", name), name)

    def _ask(self, command: str, *arguments: Any, **keywords: Any) -> Any:
        """The answer of Redis, None where there is none."""
        if not self._allowed():
            return None
        try:
            answer = getattr(self._redis, command)(*arguments, **keywords)
        except ResponseError as error:
            self._refused(error)
            return None
        except (RedisError, OSError) as error:
            self._unanswered(error)
            return None
        self._answered()
        return answer
