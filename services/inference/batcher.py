"""The shell of `services.core.batching`: callers on the event loop, one worker thread that runs the encoder.

A caller waits for its own answer and no longer than its own deadline, whatever the worker is doing
(triton#7512: there a queue timeout fires only when the running batch ends). A caller that leaves takes
its queued rows along. The worker survives every failure of a run: `run_isolated` finds the row that
caused it and the others get their answers. Should the worker itself die, everyone who waits is told so,
later callers are refused, and `on_death` is called, so that health can turn red instead of staying green
over a service that answers nobody (infinity#242).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from services.core.batching import Batch, BatchQueue, QueueFull, Request, Row, run_isolated
from services.runtime.deadlines import Deadline
from services.runtime.errors import DeadlineExceeded, Internal, ResourceExhausted, Unavailable

Tokens = Sequence[int]
Vectors = NDArray[np.float32]
Forward = Callable[[Sequence[Tokens]], Vectors]

_STOPPED = "the encoder has stopped"
_MIN_RETRY_MS = 5
_MAX_RETRY_MS = 10_000


@dataclass(frozen=True, slots=True)
class Answer:
    """Vectors of a request, float32 [n, dimension], and where its time went.

    queue_us: until its first row ran. compute_us: from then until its last row was done. batch_rows: of
    the largest batch that carried it.
    """

    vectors: Vectors
    queue_us: int
    compute_us: int
    batch_rows: int


class Observer(Protocol):
    """Told what the batcher does; called from both threads."""

    def batch(self, batch: Batch[Tokens], seconds: float) -> None:
        """A batch ran."""

    def queued(self, rows: int) -> None:
        """So many rows wait, after a request came or a batch left."""

    def waited(self, seconds: float) -> None:
        """A request waited this long for its first row to run."""

    def dropped(self, why: str) -> None:
        """A request left the queue unanswered, "expired" or "cancelled", or found it full, "refused"."""

    def failed(self, error: Exception) -> None:
        """A row failed by itself."""


@dataclass(eq=False, slots=True)
class _Call:
    """A request under way. The worker alone touches it between admission and delivery."""

    request: Request[Tokens]
    future: asyncio.Future[Answer]
    queued_s: float
    results: list[Vectors | None]
    first_run_s: float = math.inf
    batch_rows: int = 0
    error: Exception | None = None
    missing: int = field(init=False)

    def __post_init__(self) -> None:
        self.missing = len(self.results)


class Batcher:
    """Runs texts in batches that form by themselves. Create it on the event loop it serves."""

    def __init__(
        self,
        forward: Forward,
        queue: BatchQueue[Tokens],
        observer: Observer,
        on_death: Callable[[str], None],
    ) -> None:
        self._forward = forward
        self._queue = queue
        self._observer = observer
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()  # guards _queue, _calls, _closing, _dead
        self._calls: dict[Request[Tokens], _Call] = {}
        self._closing = False
        self._dead = False
        self._token_s = 1e-4  # running mean of seconds a padded token
        self._thread = threading.Thread(target=self._work, name="encoder", daemon=True)
        self._thread.start()

    async def run(self, rows: Sequence[Tokens], widths: Sequence[int], deadline: Deadline) -> Answer:
        """Vectors of the rows (token ids; `widths` are their padded lengths).

        Raises ResourceExhausted when the queue is full, DeadlineExceeded when the deadline passes first,
        Internal when a row cannot be computed, Unavailable when the worker is gone.
        """
        deadline.check("queueing for the encoder")
        remaining_s = deadline.remaining_s()
        now_s = time.monotonic()
        request = Request(rows, widths, now_s + remaining_s)
        call = _Call(request, self._loop.create_future(), now_s, [None] * len(rows))
        with self._changed:
            if self._dead or self._closing:
                raise Unavailable("ENCODER_STOPPED", _STOPPED)
            try:
                self._queue.admit(request)
            except QueueFull as error:
                self._observer.dropped("refused")
                raise self._refusal(error) from None
            self._calls[request] = call
            self._observer.queued(self._queue.rows)
            self._changed.notify()
        try:
            async with asyncio.timeout(None if math.isinf(remaining_s) else remaining_s):
                return await call.future
        except TimeoutError:
            self._leave(request, "expired")
            raise DeadlineExceeded("the encoder finished") from None
        except asyncio.CancelledError:
            self._leave(request, "cancelled")
            raise

    def close(self) -> None:
        """Refuses new work, finishes what has queued and joins the worker. Blocks: call it in a thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _refusal(self, error: QueueFull) -> ResourceExhausted:
        drained_ms = math.ceil(self._queue.tokens * self._token_s * 1000)
        retry_ms = min(max(drained_ms, _MIN_RETRY_MS), _MAX_RETRY_MS)
        return ResourceExhausted("ENCODER_QUEUE_FULL", f"the encoder's queue is full: {error}", retry_ms)

    def _leave(self, request: Request[Tokens], why: str) -> None:
        with self._changed:
            if self._calls.pop(request, None) is None:
                return  # the worker has dropped it, or just answered
            self._queue.withdraw(request)
        self._observer.dropped(why)

    def _work(self) -> None:
        try:
            while True:
                with self._changed:
                    batch, expired = self._queue.take(time.monotonic())
                    while batch is None and not expired and not self._closing:
                        self._changed.wait()
                        batch, expired = self._queue.take(time.monotonic())
                    self._observer.queued(self._queue.rows)
                    gone = [self._calls.pop(request) for request in expired if request in self._calls]
                for call in gone:
                    call.error = DeadlineExceeded("the encoder started")
                    self._observer.dropped("expired")
                self._deliver(gone)
                if batch is not None:
                    self._compute(batch)
                elif self._closing and not expired:
                    return
        except BaseException as error:
            self._die(f"the encoder's worker died: {type(error).__name__}: {error}")

    def _compute(self, batch: Batch[Tokens]) -> None:
        started_s = time.monotonic()
        results = run_isolated(batch.rows, lambda rows: list(self._forward([row.payload for row in rows])))
        seconds = time.monotonic() - started_s
        per_token_s = seconds / (batch.width * len(batch.rows))
        self._token_s += 0.1 * (per_token_s - self._token_s)
        self._observer.batch(batch, seconds)
        done: list[_Call] = []
        with self._changed:
            for row, result in zip(batch.rows, results, strict=True):
                call = self._calls.get(row.request)
                if call is not None and self._settle(call, row, result, started_s, len(batch.rows)):
                    del self._calls[row.request]
                    done.append(call)
        self._deliver(done)

    def _settle(
        self, call: _Call, row: Row[Tokens], result: Vectors | Exception, started_s: float, batch_rows: int
    ) -> bool:
        """Notes the result of one row; whether the call is over."""
        if math.isinf(call.first_run_s):
            call.first_run_s = started_s
            self._observer.waited(started_s - call.queued_s)
        call.batch_rows = max(call.batch_rows, batch_rows)
        if isinstance(result, Exception):
            self._observer.failed(result)
            self._queue.withdraw(call.request)
            call.error = Internal("ENCODER_FAILED", f"text {row.index} could not be encoded", index=row.index)
            return True
        call.results[row.index] = result
        call.missing -= 1
        return call.missing == 0

    def _deliver(self, calls: Sequence[_Call]) -> None:
        if calls:
            ended_s = time.monotonic()
            self._post(lambda: _resolve(calls, ended_s))

    def _post(self, action: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
            self._loop.call_soon_threadsafe(action)

    def _die(self, reason: str) -> None:
        with self._changed:
            self._dead = True
            calls = list(self._calls.values())
            self._calls.clear()
        for call in calls:
            call.error = Unavailable("ENCODER_STOPPED", _STOPPED)
        self._deliver(calls)
        self._post(lambda: self._on_death(reason))


def _resolve(calls: Sequence[_Call], ended_s: float) -> None:
    """On the event loop: hands finished calls their answers or errors, unless their callers have gone."""
    for call in calls:
        if call.future.done():
            continue
        if call.error is not None:
            call.future.set_exception(call.error)
            continue
        vectors = np.stack([result for result in call.results if result is not None])
        queue_us = round((call.first_run_s - call.queued_s) * 1e6)
        compute_us = round((ended_s - call.first_run_s) * 1e6)
        call.future.set_result(Answer(vectors, queue_us, compute_us, call.batch_rows))
