"""Tells the eviction sidecar what happens to entries, and learns from it what new priorities start from.

One thread a cache, for blocking and asyncio caches alike, so that a busy event loop delays no report. Nobody
waits for it: an event goes into a bounded queue, the oldest falls out when it is full, and reads are thinned
out while it is more than half full. A lost event costs accuracy of the order, never correctness, since every
write carries its priority itself.

The stream is opened again with a growing delay when it breaks, or is refused.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

from frugalads.client.cache.priorities import Priorities, Stamp
from frugalads.client.channels import Endpoint
from frugalads.client.errors import FrugalAdsError
from frugalads.eviction.v1 import eviction_pb2
from frugalads.eviction.v1.eviction_pb2_grpc import EvictionServiceStub

QUEUE_EVENTS = 8192
BATCH_EVENTS = 512
MAX_KEY_BYTES = 512
"""Longest key that a sidecar takes by default; a longer one is not reported, its sweep finds it."""

_INTERVAL_S = 0.05
_IDLE_S = 1.0
_FIRST_BACKOFF_S = 0.1
_LONGEST_BACKOFF_S = 5.0
_CLOSE_S = 1.0
_THINNED = 8  # one read in so many is kept when reads are thinned out

_LOG = logging.getLogger("frugalads.cache")


class Reporter:
    """Reports to one sidecar, and to nobody without an endpoint. Connects with the first event."""

    def __init__(self, endpoint: Endpoint | None, priorities: Priorities) -> None:
        self._endpoint = endpoint
        self._priorities = priorities
        self._queue: deque[eviction_pb2.Event] = deque(maxlen=QUEUE_EVENTS)
        self._arrived = threading.Event()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._call: Any = None
        self._max_events_per_s = 0
        self._hits = 0
        self.dropped = 0

    def written(self, key: bytes, size_bytes: int, cost_us: int, stamp: Stamp, is_new: bool) -> None:
        """Reports a write that took place; size_bytes: of key and value."""
        self._put(
            eviction_pb2.Event(
                kind=eviction_pb2.EVENT_KIND_ADMIT if is_new else eviction_pb2.EVENT_KIND_REFRESH,
                key=key,
                size_bytes=size_bytes,
                cost_us=cost_us,
                sequence=stamp.sequence,
                expire_at_ms=stamp.expire_at_ms,
            )
        )

    def hit(self, key: bytes) -> None:
        """Reports a read."""
        self._hits += 1
        if len(self._queue) > QUEUE_EVENTS // 2 and self._hits % _THINNED:
            self.dropped += 1
            return
        self._put(eviction_pb2.Event(kind=eviction_pb2.EVENT_KIND_HIT, key=key))

    def close(self) -> None:
        """Sends what is queued, for at most a second."""
        self._closing.set()
        self._arrived.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
            if self._thread.is_alive() and self._call is not None:
                self._call.cancel()
                self._thread.join(_CLOSE_S)

    def _put(self, event: eviction_pb2.Event) -> None:
        if self._endpoint is None:
            return
        if len(event.key) > MAX_KEY_BYTES:
            self.dropped += 1
            return
        if len(self._queue) == QUEUE_EVENTS:
            self.dropped += 1
        self._queue.append(event)
        if not self._arrived.is_set():
            self._arrived.set()
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._closing.is_set():
                    self._thread = threading.Thread(target=self._run, args=(self._endpoint,), daemon=True)
                    self._thread.start()

    def _run(self, endpoint: Endpoint) -> None:
        backoff_s, was_broken = _FIRST_BACKOFF_S, False
        with endpoint.open() as channel:
            stub = EvictionServiceStub(channel)
            while True:
                greeted, ended, reason = threading.Event(), threading.Event(), "it ended the stream"
                self._call = stub.Report(self._batches(greeted, ended))
                try:
                    for response in self._call:
                        greeted.set()
                        backoff_s, was_broken = _FIRST_BACKOFF_S, False
                        self._priorities.learn(response)
                        self._max_events_per_s = response.max_events_per_s
                except FrugalAdsError as error:
                    reason = str(error)
                ended.set()
                greeted.set()
                if not (was_broken or self._closing.is_set()):
                    _LOG.warning("no reports to the eviction sidecar, trying again: %s", reason)
                was_broken = True
                if self._closing.wait(backoff_s):
                    return
                backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)

    def _batches(
        self, greeted: threading.Event, ended: threading.Event
    ) -> Iterator[eviction_pb2.ReportRequest]:
        """The requests of one stream; runs in a thread of gRPC.

        It takes nothing before the sidecar's greeting nor after the end: that would be lost.
        """
        number = 0
        greeted.wait()
        while not ended.is_set():
            if not self._queue:
                if self._closing.is_set():
                    return
                self._arrived.clear()
                if not self._queue:
                    self._arrived.wait(_IDLE_S)
                continue
            limit, rate = BATCH_EVENTS, self._max_events_per_s
            if rate > 0:
                limit = max(1, min(limit, int(rate * _INTERVAL_S)))
            if rate > 0 or len(self._queue) < limit:
                self._closing.wait(_INTERVAL_S)
                if ended.is_set():
                    return
            events = [self._queue.popleft() for _ in range(min(limit, len(self._queue)))]
            number += 1
            yield eviction_pb2.ReportRequest(batch=number, events=events)
