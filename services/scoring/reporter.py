"""Tells the eviction sidecar what happens to entries, and learns from it how to compute their priorities.

No answer waits for this: an event is appended to a bounded queue, the oldest falls out when it is full, and
hits are thinned out while it is more than half full or the sidecar has set a rate. A lost event costs
accuracy of the order, never correctness (see services/core/eviction/priority.py: writes carry their priority
themselves).

The stream is opened again with a back-off when it breaks; meanwhile priorities start from the last clock.

A priority is computed before its write, when the size of the value is not known yet: the mean of the last
writes stands for it. Lists are much alike, and the sidecar raises what was written too low.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from itertools import islice
from typing import NamedTuple

import grpc
import structlog

from frugalads.eviction.v1 import eviction_pb2, eviction_pb2_grpc
from services.core.eviction.priority import expire_at_ms
from services.core.eviction.rules import DEFAULT, Rule
from services.runtime.metrics import Metrics
from services.scoring.cache import Written
from services.scoring.tasks import end

QUEUE_EVENTS = 8192
BATCH_EVENTS = 512

_INTERVAL_S = 0.05
_FIRST_BACKOFF_S = 0.1
_LONGEST_BACKOFF_S = 5.0
_THINNED = 8  # one hit in so many is kept when hits are thinned out
_HINTED_KEYS = 65_536
_FIRST_SIZE_BYTES = 1_024.0
_SIZE_SHARE = 1 / 64  # of a new size in the mean

ReportCall = grpc.aio.StreamStreamCall[eviction_pb2.ReportRequest, eviction_pb2.ReportResponse]


class _Event(NamedTuple):
    kind: eviction_pb2.EventKind.ValueType
    key: bytes
    size_bytes: int = 0
    cost_us: int = 0
    sequence: int = 0
    expire_at_ms: int = 0


class Priority(NamedTuple):
    """The priority of a write: its sequence and the PXAT that stores both."""

    sequence: int
    expire_at_ms: int


class Reporter:
    """Reports to one sidecar; without a channel it only gives priorities. Event-loop only."""

    def __init__(
        self, channel: grpc.aio.Channel | None, metrics: Metrics, log: structlog.stdlib.BoundLogger
    ) -> None:
        self._stub = None if channel is None else eviction_pb2_grpc.EvictionServiceStub(channel)
        self._log = log
        self._queue: deque[_Event] = deque(maxlen=QUEUE_EVENTS)
        self._arrived = asyncio.Event()
        self._clock = 0
        self._rule = DEFAULT
        self._overhead_bytes = 0
        self._size_bytes = _FIRST_SIZE_BYTES
        self._frequencies: dict[bytes, int] = {}
        # Two processes, or one before and after a restart, should not use equal sequences at the same time.
        self._sequence = time.time_ns() // 1_000_000
        self._max_events_per_s = 0
        self._hits = 0
        self._task: asyncio.Task[None] | None = None
        self._dropped = metrics.counter("events_dropped_total", "Cache events that were not reported.")
        metrics.gauge("queued_events", "Cache events that wait for the sidecar.").set_function(
            lambda: len(self._queue)
        )
        self._sent = metrics.counter("events_sent_total", "Cache events reported to the eviction sidecar.")
        metrics.gauge(
            "priority_clock_units", "Priority clock L as the sidecar last told it, priority units."
        ).set_function(lambda: self._clock)

    @property
    def clock(self) -> int:
        """Priority clock L as last told by the sidecar; 0 before."""
        return self._clock

    def priority(self, key: bytes, cost_us: int) -> Priority:
        """Priority of the next write of a key, by the sidecar's clock, rule and hint for the key."""
        self._sequence += 1
        size_bytes = int(self._size_bytes) + self._overhead_bytes
        priority = self._rule.priority(self._clock, cost_us, size_bytes, self._frequencies.get(key, 1))
        return Priority(self._sequence, expire_at_ms(priority, self._sequence))

    def written(self, written: Written, cost_us: int, priority: Priority) -> None:
        """Report a write that took place."""
        self._size_bytes += (written.size_bytes - self._size_bytes) * _SIZE_SHARE
        kind = eviction_pb2.EVENT_KIND_ADMIT if written.is_new else eviction_pb2.EVENT_KIND_REFRESH
        self._put(
            _Event(kind, written.key, written.size_bytes, cost_us, priority.sequence, priority.expire_at_ms)
        )

    def hit(self, key: bytes) -> None:
        """Report a read."""
        self._hits += 1
        if self._is_crowded() and self._hits % _THINNED:
            self._dropped.inc()
            return
        self._put(_Event(eviction_pb2.EVENT_KIND_HIT, key))

    async def start(self) -> None:
        """Begin reporting."""
        if self._stub is not None:
            self._task = asyncio.create_task(self._run(self._stub))

    async def stop(self) -> None:
        """Stop; what is queued is lost."""
        if self._task is not None:
            await end(self._task)

    def _is_crowded(self) -> bool:
        return len(self._queue) > QUEUE_EVENTS // 2

    def _put(self, event: _Event) -> None:
        if self._stub is None:
            return
        if len(self._queue) == QUEUE_EVENTS:
            self._dropped.inc()
        if not self._queue:
            self._arrived.set()
        self._queue.append(event)

    async def _run(self, stub: eviction_pb2_grpc.EvictionServiceAsyncStub) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while True:
            call = stub.Report()
            writer = asyncio.create_task(self._write_batches(call))
            try:
                async for response in call:
                    backoff_s = _FIRST_BACKOFF_S
                    self._learn(response)
            except grpc.aio.AioRpcError as error:
                self._log.warning("eviction_stream_broken", code=error.code().name, retry_s=backoff_s)
            finally:
                # A writer left behind would take a batch from the queue for a stream that is gone.
                writer.cancel()
                call.cancel()
                await asyncio.gather(writer, return_exceptions=True)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)

    def _learn(self, response: eviction_pb2.ReportResponse) -> None:
        self._clock = max(self._clock, response.clock)
        self._max_events_per_s = response.max_events_per_s
        if response.HasField("rule"):
            told = response.rule
            self._rule = Rule(told.scale, told.cost_power, told.size_power, told.frequency_power)
            self._overhead_bytes = told.overhead_bytes
        for hint in response.frequency_hints:
            self._frequencies[hint.key] = hint.frequency
        for key in list(islice(self._frequencies, max(len(self._frequencies) - _HINTED_KEYS, 0))):
            del self._frequencies[key]  # the oldest

    async def _write_batches(self, call: ReportCall) -> None:
        batch = 0
        while True:
            while not self._queue:
                self._arrived.clear()
                await self._arrived.wait()
            limit = BATCH_EVENTS
            if self._max_events_per_s > 0:
                limit = max(1, min(limit, int(self._max_events_per_s * _INTERVAL_S)))
            taken = [self._queue.popleft() for _ in range(min(limit, len(self._queue)))]
            batch += 1
            events = [eviction_pb2.Event(**event._asdict()) for event in taken]
            await call.write(eviction_pb2.ReportRequest(batch=batch, events=events))
            self._sent.inc(len(events))
            if len(self._queue) < BATCH_EVENTS or self._max_events_per_s > 0:
                await asyncio.sleep(_INTERVAL_S)
