"""What `frugalads.client.cache` tells a sidecar, and what it does with the answers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from redis_process import RedisProcess, free_port, wait_until

from frugalads.client.cache import AsyncCache, Cache, reports
from frugalads.eviction.v1 import eviction_pb2
from frugalads.eviction.v1.eviction_pb2_grpc import (
    EvictionServiceServicer,
    add_EvictionServiceServicer_to_server,
)
from services.core.eviction.priority import priority_of

ADMIT, HIT = eviction_pb2.EVENT_KIND_ADMIT, eviction_pb2.EVENT_KIND_HIT
REFRESH = eviction_pb2.EVENT_KIND_REFRESH


class ScriptedSidecar(EvictionServiceServicer):
    """Keeps every batch, a list a stream; greets with `greeting`.

    Refuses the first `refusals` streams, each once `refuse` is set.
    """

    def __init__(self) -> None:
        self.streams: list[list[eviction_pb2.ReportRequest]] = []
        self.greeting = eviction_pb2.ReportResponse()
        self.refusals = 0
        self.refuse = threading.Event()

    def Report(self, request_iterator: Any, context: Any) -> Iterator[eviction_pb2.ReportResponse]:
        if self.refusals:
            self.refusals -= 1
            assert self.refuse.wait(20)
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "events[0].key: not under the prefix")
        batches: list[eviction_pb2.ReportRequest] = []
        self.streams.append(batches)
        yield self.greeting
        for request in request_iterator:
            batches.append(request)
            answer = eviction_pb2.ReportResponse(acknowledged_batch=request.batch)
            answer.MergeFrom(self.greeting)
            yield answer

    def GetStats(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    def GetOrder(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    @property
    def events(self) -> list[eviction_pb2.Event]:
        return [event for stream in list(self.streams) for batch in list(stream) for event in batch.events]


@contextlib.contextmanager
def serving(sidecar: ScriptedSidecar, port: int = 0) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(4))
    add_EvictionServiceServicer_to_server(sidecar, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield f"127.0.0.1:{bound}"
    finally:
        server.stop(None).wait()


def value() -> bytes:
    return b"x" * 100


def test_writes_and_reads_are_told_with_what_redis_holds(redis_server: RedisProcess) -> None:
    sidecar = ScriptedSidecar()
    with serving(sidecar) as target:
        with Cache(redis_server.url, "p:", sidecar=target, timeout_s=5) as cache:
            for _ in range(3):
                cache.get_or_compute("k", value, cost=500)
        with Cache(redis_server.url, "p:", sidecar=target, timeout_s=5, ttl_s=1e-9) as cache:
            cache.get_or_compute("k", value, cost=600)
    admit, *hits, refresh = sidecar.events  # closing sends what is queued
    assert [(event.kind, event.key) for event in hits] == [(HIT, b"p:k")] * 2
    assert (admit.kind, admit.key, admit.cost_us, admit.size_bytes) == (ADMIT, b"p:k", 500, 3 + 40 + 100)
    assert (refresh.kind, refresh.cost_us) == (REFRESH, 600)
    with redis_server.client() as client:
        expiry: Any = client.pexpiretime("p:k")
    assert expiry == refresh.expire_at_ms


def test_priorities_start_from_the_clock_that_the_sidecar_tells(valkey_server: RedisProcess) -> None:
    sidecar = ScriptedSidecar()
    rule = eviction_pb2.PriorityRule(scale=1, cost_power=1)
    sidecar.greeting = eviction_pb2.ReportResponse(clock=1_000_000, rule=rule)
    with (
        serving(sidecar) as target,
        Cache(valkey_server.url, "p:", sidecar=target, timeout_s=5) as cache,
    ):
        numbers = itertools.count()

        def heard() -> bool:
            cache.get_or_compute(f"{next(numbers)}", value, cost=7)
            return any(priority_of(event.expire_at_ms) == 1_000_007 for event in sidecar.events)

        wait_until(heard)


def test_a_limit_on_events_is_kept(valkey_server: RedisProcess) -> None:
    sidecar = ScriptedSidecar()
    sidecar.greeting = eviction_pb2.ReportResponse(max_events_per_s=40)
    with (
        serving(sidecar) as target,
        Cache(valkey_server.url, "p:", sidecar=target, timeout_s=5) as cache,
    ):
        cache.get_or_compute("k", value)
        wait_until(lambda: bool(sidecar.events))
        for _ in range(50):
            cache.get_or_compute("k", value)
        wait_until(lambda: len(sidecar.events) >= 8)
        assert max(len(batch.events) for batch in sidecar.streams[0][1:]) == 2, "40 a second, each 50 ms"


def test_a_sidecar_that_comes_late_is_found_and_nobody_waits_for_it(
    valkey_server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "QUEUE_EVENTS", 1200)
    sidecar, port = ScriptedSidecar(), free_port()
    with Cache(valkey_server.url, "p:", sidecar=f"127.0.0.1:{port}", timeout_s=5) as cache:
        assert cache.get_or_compute("k", value) == value()
        for _ in range(1200):
            cache.get_or_compute("k", value)
        assert 0 < cache.counts["unreported"] < 1200, "reads are thinned out"
        with serving(sidecar, port):
            wait_until(lambda: len(sidecar.events) > reports.BATCH_EVENTS)
            assert sidecar.events[0].kind == ADMIT, "in the order in which they happened"
            assert all(len(batch.events) <= reports.BATCH_EVENTS for batch in sidecar.streams[0])


def test_a_refused_stream_is_opened_again(valkey_server: RedisProcess) -> None:
    """And takes along what happened meanwhile: nothing is sent before the sidecar's greeting."""
    sidecar = ScriptedSidecar()
    sidecar.refusals = 2
    with (
        serving(sidecar) as target,
        Cache(valkey_server.url, "p:", sidecar=target, timeout_s=5) as cache,
    ):
        for _ in range(1_000):
            cache.get_or_compute("k", value)
        sidecar.refuse.set()

        def heard() -> bool:
            cache.get_or_compute("k", value)
            return bool(sidecar.events)

        wait_until(heard)
        assert sidecar.streams[0][0].batch == 1
        assert sidecar.events[0].kind == ADMIT


def test_the_asyncio_cache_reports_the_same(valkey_server: RedisProcess) -> None:
    sidecar = ScriptedSidecar()

    async def scenario(target: str) -> None:
        async def compute() -> bytes:
            return value()

        async with AsyncCache(valkey_server.url, "p:", sidecar=target, timeout_s=5) as cache:
            for _ in range(2):
                await cache.get_or_compute("k", compute, cost=500)
            await cache.get_or_compute("long" * 200, compute)

    with serving(sidecar) as target:
        asyncio.run(scenario(target))
    assert [event.kind for event in sidecar.events] == [ADMIT, HIT]
