"""The eviction sidecar as a gRPC service."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
from redis.exceptions import RedisError

from frugalads.eviction.v1 import eviction_pb2, eviction_pb2_grpc
from services.core.eviction.keyed import Entry, KeyedOrder
from services.eviction.config import EvictionConfig, checked
from services.eviction.counters import Counters, total
from services.eviction.discovery import Discovery
from services.eviction.enforcement import Enforcer
from services.eviction.events import Checker
from services.eviction.key_classes import KeyClasses
from services.eviction.lease import Lease
from services.eviction.ledger import Ledger
from services.eviction.reports import Acknowledgement, Reports, ReportStream
from services.eviction.store import Store
from services.runtime.errors import InvalidArgument
from services.runtime.server import Runtime

NAME = "frugalads.eviction.v1.EvictionService"
_TYPICAL = 1_024
"""Cost (microseconds) and size (bytes) of an entry of typical worth. A constant, since priorities outlive the
process: with 1 us a byte as unit, ours tells .01 from 100,000 us a byte apart."""
MAX_ORDER = 1_000
"""Most victims that GetOrder lists."""


class EvictionService(eviction_pb2_grpc.EvictionServiceServicer):
    """Report, GetStats and GetOrder over one ledger, and the loop that enforces it."""

    name = "eviction"

    def __init__(self, config: EvictionConfig, runtime: Runtime[EvictionConfig]) -> None:
        prefix = config.key_prefix.encode()
        self._config = config
        self._runtime = runtime
        self._counters = Counters(runtime.metrics)
        order = KeyedOrder(config.order, typical_cost=_TYPICAL, typical_size=_TYPICAL)
        order.restore(
            [Entry(b"first", 0, 0, 0)]
        )  # compiles or loads the kernels before anybody waits for them
        order.pop()
        self._store = Store(config.redis_url, config.redis_timeout_ms, prefix, config.cost_field)
        lease_key = self._store.lease_key
        self._ledger = Ledger(prefix, order, KeyClasses(prefix, config.key_classes), lease_key)
        self._reports = Reports(self._ledger, self._counters, config.max_events, self._on_applied)
        self._checker = Checker(prefix, lease_key, config.max_events, config.max_key_bytes)
        lease = Lease(self._store, config.lease_ms)
        discovery = Discovery(self._ledger, self._store, lease, self._counters, runtime.log)
        redis = runtime.health.dependency("redis", required=True)
        self._enforcer = Enforcer(
            config,
            self._ledger,
            self._store,
            discovery,
            lease,
            redis,
            self._reports,
            self._counters,
            runtime.log,
        )
        self._tasks: list[asyncio.Task[None]] = []

    def register(self, server: Any, admin: Any) -> list[str]:
        """Adds the servicer to the public server."""
        eviction_pb2_grpc.add_EvictionServiceServicer_to_server(self, server)
        return [NAME]

    async def start(self) -> None:
        """Verifies Redis and rebuilds the order; raises UserError when the server cannot be managed.

        A Redis that does not answer is no error: the sidecar starts, is not ready, and keeps trying.
        """
        try:
            await self._enforcer.connect()
        except (RedisError, OSError, TimeoutError) as error:
            self._enforcer.lost(error)
        for name, work in (("enforcement", self._enforcer.run()), ("reports", self._reports.run())):
            task = asyncio.create_task(work, name=name)
            task.add_done_callback(self._on_worker_end)
            self._tasks.append(task)

    async def stop(self) -> None:
        """Ends both loops and closes the connections; the order stays in Redis.

        The command in flight may end first, so that no eviction is left undecided; it has its time limit.
        """
        self._enforcer.stop()
        if self._tasks:
            await asyncio.wait(self._tasks[:1], timeout=2 * self._config.redis_timeout_ms / 1000)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            await self._enforcer.lease.give_up(self._ledger.order.clock)
        await self._store.close()

    async def Report(
        self,
        request_iterator: AsyncIterator[eviction_pb2.ReportRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[eviction_pb2.ReportResponse]:
        """Takes batches; answers with the clock at once, for every batch, and when the clock moves."""
        stream = self._reports.open()
        reader = asyncio.create_task(self._read(stream, request_iterator))
        reader.add_done_callback(lambda _: stream.changed.set())
        try:
            yield self._response(Acknowledgement(stream.acknowledged, []))
            while True:
                await stream.changed.wait()
                stream.changed.clear()
                if not stream.acknowledgements and not reader.done():
                    yield self._response(Acknowledgement(stream.acknowledged, []))
                while stream.acknowledgements:
                    yield self._response(stream.acknowledgements.popleft())
                    stream.room.release()
                if reader.done():
                    reader.result()  # raises what is wrong with the report
                    if stream.acknowledged == stream.received:
                        return
        finally:
            self._reports.close(stream)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read(self, stream: ReportStream, requests: AsyncIterator[eviction_pb2.ReportRequest]) -> None:
        async for request in requests:
            events = self._checker.check(request, stream.received)
            await stream.room.acquire()
            self._reports.put(stream, request.batch, events)

    def _response(self, acknowledged: Acknowledgement) -> eviction_pb2.ReportResponse:
        order = self._ledger.order
        rule = eviction_pb2.PriorityRule(
            **order.rule._asdict(), overhead_bytes=int(self._ledger.overhead_bytes)
        )
        return eviction_pb2.ReportResponse(
            acknowledged_batch=acknowledged.batch,
            clock=order.clock,
            frequency_hints=[
                eviction_pb2.FrequencyHint(key=key, frequency=frequency)
                for key, frequency in acknowledged.hints
            ],
            max_events_per_s=self._reports.max_events_per_s,
            rule=rule,
        )

    async def GetStats(
        self, request: eviction_pb2.GetStatsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> eviction_pb2.GetStatsResponse:
        """Counters since the start, and memory as of the last tick."""
        order, counters, enforcer = self._ledger.order, self._counters, self._enforcer
        return eviction_pb2.GetStatsResponse(
            order=order.name,
            clock=order.clock,
            entries=len(order),
            entry_bytes=order.total_bytes,
            used_bytes=enforcer.used_bytes,
            high_watermark_bytes=enforcer.high_bytes,
            low_watermark_bytes=enforcer.low_bytes,
            max_bytes=enforcer.memory.max_bytes,
            evicted=total(counters.evicted),
            skipped=total(counters.skipped),
            backstop_evicted=total(counters.backstop),
            events=total(counters.events),
            rebuilt=counters.last_rebuilt,
            leading=enforcer.lease.leads,
            epoch=enforcer.lease.epoch,
        )

    async def GetOrder(
        self, request: eviction_pb2.GetOrderRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> eviction_pb2.GetOrderResponse:
        """The next victims, first to go first."""
        if not 1 <= request.limit <= MAX_ORDER:
            raise InvalidArgument("limit", request.limit, f"in 1..{MAX_ORDER}")
        return eviction_pb2.GetOrderResponse(
            entries=[
                eviction_pb2.Entry(
                    key=entry.key, priority=entry.priority, size_bytes=entry.size_bytes, cost_us=entry.cost
                )
                for entry in self._ledger.order.head(request.limit)
            ]
        )

    def _on_applied(self) -> None:
        self._enforcer.reported()

    def _on_worker_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._runtime.log.error("worker_died", worker=task.get_name(), exc_info=task.exception())
            self._runtime.health.failed(f"the {task.get_name()} loop died")


def build(config: EvictionConfig, runtime: Runtime[EvictionConfig]) -> EvictionService:
    """The sidecar from its configuration; raises ConfigError when options do not fit each other."""
    return EvictionService(checked(config), runtime)
