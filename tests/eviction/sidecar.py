"""A sidecar on real sockets, and a client that writes and reports as scoring does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import redis
from grpc_health.v1 import health_pb2, health_pb2_grpc

from frugalads.eviction.v1 import eviction_pb2, eviction_pb2_grpc
from services.core.eviction.priority import expire_at_ms
from services.eviction.config import EvictionConfig
from services.eviction.server import NAME, build
from services.runtime.server import start_server

PREFIX = b"frugalads:list:"
LEASE = PREFIX + b"~lease"
_QUICK: dict[str, Any] = {"tick_ms": 20, "order": "greedydual"}


def key(number: int | str) -> bytes:
    return PREFIX + str(number).encode()


@dataclass(frozen=True)
class Write:
    """One entry as a client writes and reports it."""

    key: bytes
    value: bytes
    cost_us: int
    sequence: int
    expire_at_ms: int

    def event(
        self, kind: eviction_pb2.EventKind.ValueType = eviction_pb2.EVENT_KIND_ADMIT
    ) -> eviction_pb2.Event:
        return eviction_pb2.Event(
            kind=kind,
            key=self.key,
            size_bytes=len(self.key) + len(self.value),
            cost_us=self.cost_us,
            sequence=self.sequence,
            expire_at_ms=self.expire_at_ms,
        )


def write(name: int | str, size: int, cost_us: int, sequence: int, clock: int = 0) -> Write:
    """An entry whose priority starts from `clock`."""
    return Write(key(name), b"x" * size, cost_us, sequence, expire_at_ms(clock + cost_us, sequence))


def store(client: redis.Redis, writes: Iterable[Write]) -> None:
    """SET ... PXAT, as scoring writes."""
    pipe = client.pipeline(transaction=False)
    for w in writes:
        pipe.set(w.key, w.value, pxat=w.expire_at_ms)
    pipe.execute()


def hit(name: int | str) -> eviction_pb2.Event:
    return eviction_pb2.Event(kind=eviction_pb2.EVENT_KIND_HIT, key=key(name))


def managed(client: redis.Redis) -> set[bytes]:
    """The entries: keys under the prefix, but for the lease."""
    return set(client.scan_iter(match=PREFIX + b"*", count=10_000)) - {LEASE}


def squeeze(client: redis.Redis, share: float = 0.95) -> None:
    """Sets maxmemory so that `share` of it is used: above the high watermark, below Redis' own limit."""
    client.config_set("maxmemory", int(int(client.info("memory")["used_memory"]) / share))


def settled(stats: eviction_pb2.GetStatsResponse) -> bool:
    """Evicted down to the low watermark."""
    return stats.evicted > 0 and stats.used_bytes <= stats.low_watermark_bytes


class Reporter:
    """One Report stream."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._batch = 0
        self.clock = 0
        self.acknowledged = -1
        self.max_events_per_s = 0
        self.frequencies: dict[bytes, int] = {}

    async def read(self) -> eviction_pb2.ReportResponse:
        answer = await self._call.read()
        if answer is grpc.aio.EOF:
            code, details = await self._call.code(), await self._call.details()
            raise AssertionError(f"the stream ended: {code} {details}")
        self.clock, self.acknowledged = answer.clock, answer.acknowledged_batch
        self.max_events_per_s = answer.max_events_per_s
        self.frequencies |= {hint.key: hint.frequency for hint in answer.frequency_hints}
        response: eviction_pb2.ReportResponse = answer
        return response

    async def send(self, events: Sequence[eviction_pb2.Event]) -> int:
        """One batch, not waited for; its number."""
        self._batch += 1
        await self._call.write(eviction_pb2.ReportRequest(batch=self._batch, events=events))
        return self._batch

    async def report(self, events: Sequence[eviction_pb2.Event]) -> None:
        """All events in batches of 1,000; returns when they are applied."""
        for first in range(0, len(events), 1000):
            batch = await self.send(events[first : first + 1000])
            while self.acknowledged < batch:
                await self.read()


class Sidecar:
    """A running sidecar and a channel to it."""

    def __init__(self, channel: grpc.aio.Channel, target: str) -> None:
        self.target = target
        self.channel = channel
        self.stub = eviction_pb2_grpc.EvictionServiceStub(channel)

    async def stats(self) -> eviction_pb2.GetStatsResponse:
        return await self.stub.GetStats(eviction_pb2.GetStatsRequest(), timeout=10)

    async def order(self, limit: int = 1000) -> list[eviction_pb2.Entry]:
        answer = await self.stub.GetOrder(eviction_pb2.GetOrderRequest(limit=limit), timeout=10)
        return list(answer.entries)

    async def ready(self) -> bool:
        stub = health_pb2_grpc.HealthStub(self.channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=NAME), timeout=10)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    @contextlib.asynccontextmanager
    async def reporter(self) -> AsyncIterator[Reporter]:
        call = self.stub.Report()
        reporter = Reporter(call)
        await reporter.read()
        yield reporter
        await call.done_writing()
        call.cancel()

    async def until(
        self, condition: Callable[[eviction_pb2.GetStatsResponse], bool], timeout_s: float = 20.0
    ) -> eviction_pb2.GetStatsResponse:
        """Polls the stats until a condition holds."""
        end = time.monotonic() + timeout_s
        while not condition(stats := await self.stats()):
            assert time.monotonic() < end, f"did not hold within {timeout_s} s: {stats}"
            await asyncio.sleep(0.01)
        return stats

    async def until_ready(self, wanted: bool = True, timeout_s: float = 20.0) -> None:
        end = time.monotonic() + timeout_s
        while await self.ready() is not wanted:
            assert time.monotonic() < end, f"readiness did not become {wanted} within {timeout_s} s"
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def sidecar(url: str, **options: Any) -> AsyncIterator[Sidecar]:
    """The sidecar on a Redis, with short ticks, and GreedyDual, whose victims a test can name."""
    config = EvictionConfig(redis_url=url, **_QUICK | options)
    async with (
        start_server("eviction", config, build) as running,
        grpc.aio.insecure_channel(target := f"127.0.0.1:{running.port}") as channel,
    ):
        yield Sidecar(channel, target)


def serving_port(process: subprocess.Popen[bytes]) -> int:
    """The port that a sidecar process logs when it serves; its standard error is a pipe."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith(b"{") and (said := json.loads(line))["event"] == "serving":
            return int(said["port"])
    raise AssertionError(f"it ended: {b''.join(lines)!r}")


def _start(url: str, options: dict[str, Any]) -> subprocess.Popen[bytes]:
    settings = {"redis_url": url} | _QUICK | options
    return subprocess.Popen(
        [sys.executable, "-m", "services.eviction"],
        env=os.environ | {f"FRUGALADS_EVICTION_{k.upper()}": str(v) for k, v in settings.items()},
        cwd=Path(__file__).parents[2],
        stderr=subprocess.PIPE,
    )


@contextlib.asynccontextmanager
async def sidecar_process(url: str, **options: Any) -> AsyncIterator[tuple[subprocess.Popen[bytes], Sidecar]]:
    """The same in a process of its own, killed (-9) at the end."""
    process = _start(url, options)
    try:
        async with grpc.aio.insecure_channel(target := f"127.0.0.1:{serving_port(process)}") as channel:
            yield process, Sidecar(channel, target)
    finally:
        process.kill()
        process.communicate()
