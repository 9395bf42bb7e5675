"""The asyncio cache."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

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

_Compute = Callable[[], Awaitable[bytes]]


class AsyncCache(CacheBase):
    """`Cache` for asyncio: `compute` is awaited. One serves all tasks of an event loop.

        async with AsyncCache("redis://127.0.0.1:6379", "page:", sidecar="127.0.0.1:7403") as cache:
            page = await cache.get_or_compute("home", render_home)

    A key is computed in a task of its own, which belongs to nobody: cancelling a caller, the first included,
    cancels neither it nor the others. An early refresh runs in the background; all callers get the value at
    hand meanwhile. The time measured is that from start to end, waits included.
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
        """As `Cache`; needs no running event loop."""
        super().__init__(prefix, sidecar, ttl_s, timeout_s, options)
        pool = BlockingConnectionPool.from_url(
            redis_url,
            max_connections=MAX_CONNECTIONS,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )
        self._redis: Any = Redis.from_pool(pool)
        self._flights: dict[bytes, asyncio.Task[bytes]] = {}
        self._refreshes: dict[bytes, asyncio.Task[bytes]] = {}

    async def get_or_compute(self, key: str | bytes, compute: _Compute, *, cost: Cost = None) -> bytes:
        """See `Cache.get_or_compute`."""
        name = self._name(key)
        flight = self._flights.get(name)
        if flight is None:
            flight = self._start(self._flights, name, self._fetch(name, compute, cost))
        elif flight is asyncio.current_task():
            raise RuntimeError(f"the computation of {name!r} asks for itself")
        return await asyncio.shield(flight)

    async def close(self) -> None:
        """Ends computations, sends the last reports and closes the connections. May be called again."""
        self._closed = True
        tasks = [*self._flights.values(), *self._refreshes.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._reporter.close)
        await self._redis.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @staticmethod
    def _start(
        tasks: dict[bytes, asyncio.Task[bytes]], name: bytes, work: Coroutine[Any, Any, bytes]
    ) -> asyncio.Task[bytes]:
        """A task that is in `tasks` for as long as it runs."""

        def end(task: asyncio.Task[bytes]) -> None:
            del tasks[name]
            if not task.cancelled():
                task.exception()  # seen: when all callers have gone, nobody else looks

        task = tasks[name] = asyncio.create_task(work)
        task.add_done_callback(end)
        return task

    async def _fetch(self, name: bytes, compute: _Compute, cost: Cost) -> bytes:
        entry = await self._read(name)
        refresh = self._refreshes.get(name)
        if entry is None or not self._is_fresh(entry):
            if refresh is not None:
                return await asyncio.shield(refresh)
            self._count("computed")
            return await self._compute(name, compute, cost, is_new=entry is None)
        self._hit(name)
        if refresh is None and self._is_due(name, entry):
            self._start(self._refreshes, name, self._refresh(name, compute, cost))
        return entry.value

    async def _refresh(self, name: bytes, compute: _Compute, cost: Cost) -> bytes:
        try:
            value = await self._compute(name, compute, cost, is_new=False)
        except Exception as error:
            self._refresh_failed(name, error)
            raise
        self._count("refreshed")
        return value

    async def _compute(self, name: bytes, compute: _Compute, cost: Cost, is_new: bool) -> bytes:
        began_s = time.perf_counter()
        value = checked(await compute(), name)
        compute_us = round((time.perf_counter() - began_s) * 1e6)
        if isinstance(cost, HashField):
            cost = number(await self._ask("hget", cost.hash, cost.field))
        write = self._prepared(name, value, compute_us, cost)
        if await self._ask("set", name, write.data, pxat=write.stamp.expire_at_ms):
            self._written(name, write, is_new)
        return value

    async def _read(self, name: bytes) -> Entry | None:
        return decode(await self._ask("get", name), name)

    async def _ask(self, command: str, *arguments: Any, **keywords: Any) -> Any:
        """The answer of Redis, None where there is none."""
        if not self._allowed():
            return None
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await getattr(self._redis, command)(*arguments, **keywords)
        except ResponseError as error:
            self._refused(error)
            return None
        except (RedisError, OSError) as error:
            self._unanswered(error)
            return None
        self._answered()
        return answer
