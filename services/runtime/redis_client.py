"""Redis connections that fail fast, and the breaker that stops asking a server that does not answer.

redis-py's defaults retry a silent server for almost a minute; inside an answer that is an outage. Here
every command has one short timeout, no retry, and a bounded pool that waits no longer than that timeout.
A command that is cancelled or times out drops its connection, so a late reply never meets another request.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff


def connect(url: str, timeout_ms: int, max_connections: int) -> Redis:
    """A client of `url` whose commands, connects and pool waits each end within `timeout_ms`.

    Raises ValueError for a URL that is none. Connects on first use.
    """
    timeout_s = timeout_ms / 1000
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=max_connections,
        timeout=timeout_s,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
    )
    return Redis.from_pool(pool)


class Breaker:
    """Opens after `threshold` failures in a row; then lets one probe through every `cooldown_ms`.

    Event-loop only. Ask `allows()` before a command, then report `success()` or `failure()`.
    """

    def __init__(
        self, threshold: int = 3, cooldown_ms: int = 250, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._threshold = threshold
        self._cooldown_s = cooldown_ms / 1000
        self._clock = clock
        self._failures = 0
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
        """The server did not answer in time, or refused."""
        self._failures += 1
        if self._failures == self._threshold:
            self._next_probe_s = self._clock() + self._cooldown_s
