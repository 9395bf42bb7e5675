"""Redis connections that fail fast, and the breaker that stops asking a server that does not answer.

redis-py's defaults retry a silent server for almost a minute; inside an answer that is an outage. Here
every command has one short timeout, no retry, and a bounded pool that waits no longer than that timeout.
A command that is cancelled or times out drops its connection, so a late reply never meets another request.

A timeout of a few milliseconds measures our own event loop as much as the server: when a busy loop comes back
to a timer and a reply that are both due, asyncio lets the timer win, and under load a server that answers in
100 us looks silent. `Patience` is a timeout that lets what has arrived be read first. A connection costs no
command before its first use (RESP2, no CLIENT SETINFO), so growing the pool takes one turn of the loop.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

_TURNS = 4  # connect, wake the writer, read the reply, wake the reader


def connect(url: str, timeout_ms: int | None, max_connections: int) -> Redis:
    """A client of `url` whose commands, connects and pool waits each end within `timeout_ms`.

    None sets no limit: for a caller that waits with `Patience`. Raises ValueError for a URL that is none.
    Connects on first use.
    """
    timeout_s = None if timeout_ms is None else timeout_ms / 1000
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=max_connections,
        timeout=timeout_s,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        driver_info=None,
    )
    return Redis.from_pool(pool)


class Patience:
    """`async with Patience(0.02):` raises TimeoutError when the block takes longer than 20 ms and the event
    loop, however late it is, has since gone round four times.

    Each turn reads what has arrived on the sockets, so only a peer that is silent runs into it. On an idle
    loop the turns take microseconds.
    """

    __slots__ = ("_limit", "_seconds", "_timer")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._limit = asyncio.timeout(None)

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._late, _TURNS)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def _late(self, turns: int) -> None:
        loop = asyncio.get_running_loop()
        if turns:
            # A timer, not call_soon: timers run after what the sockets brought in the same turn.
            self._timer = loop.call_later(0, self._late, turns - 1)
        else:
            self._limit.reschedule(loop.time())


class Breaker:
    """Opens after `threshold` failures in a row; then lets one probe through every `cooldown_ms`.

    Failures within `spacing_ms` count as one: a hundred callers who wait through the same short pause of the
    server are one pause, and refusing everybody for it would cost far more than it.
    Event-loop only. Ask `allows()` before a command, then report `success()` or `failure()`.
    """

    def __init__(
        self,
        threshold: int = 3,
        cooldown_ms: int = 100,
        spacing_ms: int = 20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threshold = threshold
        self._cooldown_s = cooldown_ms / 1000
        self._spacing_s = spacing_ms / 1000
        self._clock = clock
        self._failures = 0
        self._counted_at_s = -math.inf
        self._next_probe_s = 0.0

    @property
    def is_open(self) -> bool:
        """Whether commands are being refused."""
        return self._failures >= self._threshold

    def allows(self) -> bool:
        """Whether a command may be sent now; when open, true once a cool-down."""
        if not self.is_open:
            return True
        now = self._clock()
        if now < self._next_probe_s:
            return False
        self._next_probe_s = now + self._cooldown_s
        return True

    def success(self) -> None:
        """The server answered."""
        self._failures = 0

    def failure(self) -> None:
        """The server did not answer in time, or could not be reached."""
        now = self._clock()
        if now - self._counted_at_s < self._spacing_s:
            return
        self._counted_at_s = now
        self._failures += 1
        if self._failures == self._threshold:
            self._next_probe_s = now + self._cooldown_s
