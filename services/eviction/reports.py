"""Report streams: batches queue here, are applied in slices, and every batch is acknowledged with the clock.

Bounds: at most 64 streams, four unapplied or unacknowledged batches each; beyond that a stream is not
read, and gRPC's flow control holds its client back. Between slices the event loop serves everything else.

Back-pressure before that: while more events wait than two full batches hold, every stream is told its
share of four fifths of the rate that events are being applied at; once the queue has been short for a
second, the limit is lifted.

Nothing is applied while there is no order to apply it to: while another sidecar leads, and while the order is
being learnt from Redis. Streams then wait in the same bounds.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from services.eviction.counters import Counters
from services.eviction.events import Event
from services.eviction.ledger import Ledger
from services.runtime.errors import ResourceExhausted

MAX_STREAMS = 64
BATCHES_PER_STREAM = 4
_RATE_WINDOW_S = 1.0
_RELIEF = 0.8


class Acknowledgement(NamedTuple):
    """An applied batch, and frequencies (key, uses) that its client should know."""

    batch: int
    hints: list[tuple[bytes, int]]


class ReportStream:
    """One client's stream: batches on their way in, acknowledgements on their way out."""

    def __init__(self) -> None:
        self.room = asyncio.Semaphore(BATCHES_PER_STREAM)
        self.acknowledgements: deque[Acknowledgement] = deque()
        self.acknowledged = 0
        self.received = 0
        self.changed = asyncio.Event()


class Reports:
    """The queue between streams and ledger. Event-loop only; `run` applies until cancelled."""

    def __init__(
        self, ledger: Ledger, counters: Counters, max_events: int, applied: Callable[[], None]
    ) -> None:
        self._ledger = ledger
        self._counters = counters
        self._long = 2 * max_events
        self._applied = applied
        self._streams: set[ReportStream] = set()
        self._queue: deque[tuple[ReportStream, int, Sequence[Event]]] = deque()
        self._waiting = asyncio.Event()
        self._released = asyncio.Event()
        self._queued = 0
        self._window: deque[tuple[float, int]] = deque()
        self._long_at_s = -_RATE_WINDOW_S
        self.max_events_per_s = 0

    def open(self) -> ReportStream:
        """A new stream; raises ResourceExhausted when there are 64."""
        if len(self._streams) >= MAX_STREAMS:
            raise ResourceExhausted("TOO_MANY_STREAMS", f"{MAX_STREAMS} report streams are open", 1_000)
        stream = ReportStream()
        self._streams.add(stream)
        self._counters.streams.set(len(self._streams))
        return stream

    def close(self, stream: ReportStream) -> None:
        """Ends a stream; what it queued is still applied."""
        self._streams.discard(stream)
        self._counters.streams.set(len(self._streams))

    def put(self, stream: ReportStream, batch: int, events: Sequence[Event]) -> None:
        """Queues a checked batch; the caller holds a place of `stream.room`."""
        stream.received = batch
        self._queued += len(events)
        self._counters.queued.set(self._queued)
        self._queue.append((stream, batch, events))
        self._waiting.set()

    def hold(self) -> None:
        """Applies nothing until released; this is how it begins."""
        self._released.clear()

    def release(self) -> None:
        """Applies what waits, and goes on."""
        self._released.set()
        self.clock_moved()

    def clock_moved(self) -> None:
        """Has every stream told the clock."""
        for stream in self._streams:
            stream.changed.set()

    async def run(self) -> None:
        """Applies batches in the order of their arrival."""
        while True:
            await self._waiting.wait()
            while self._queue:
                await self._released.wait()
                stream, batch, events = self._queue.popleft()
                hints, dropped = self._ledger.apply(events)
                self._counters.events.inc(len(events))
                self._counters.dropped.inc(dropped)
                self._queued -= len(events)
                self._counters.queued.set(self._queued)
                stream.acknowledged = batch
                stream.acknowledgements.append(Acknowledgement(batch, hints))
                stream.changed.set()
                self._regulate(len(events))
                self._applied()
                await asyncio.sleep(0)
            self._waiting.clear()

    def _regulate(self, applied: int) -> None:
        now_s = time.monotonic()
        window = self._window
        window.append((now_s, applied))
        while window[0][0] < now_s - _RATE_WINDOW_S:
            window.popleft()
        if self._queued > self._long:
            self._long_at_s = now_s
            passed_s = max(now_s - window[0][0], 0.05)
            rate = sum(count for _, count in window) / passed_s
            self.max_events_per_s = max(int(_RELIEF * rate / max(len(self._streams), 1)), 1)
        elif now_s - self._long_at_s > _RATE_WINDOW_S:
            self.max_events_per_s = 0
