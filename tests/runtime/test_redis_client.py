from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
import redis
from redis_process import RedisProcess

from services.runtime.redis_client import Breaker, Patience, connect


def test_a_silent_server_costs_one_timeout(redis_server: RedisProcess) -> None:
    async def scenario() -> float:
        client = connect(redis_server.url, timeout_ms=50, max_connections=4)
        await client.set("a", b"1")
        redis_server.pause()
        start = time.monotonic()
        with pytest.raises((redis.TimeoutError, redis.ConnectionError)):
            await client.get("a")
        spent = time.monotonic() - start
        redis_server.resume()
        assert await client.get("a") == b"1"
        await client.aclose()
        return spent

    assert asyncio.run(scenario()) < 0.5


def test_a_busy_pool_waits_instead_of_failing(valkey_server: RedisProcess) -> None:
    async def scenario() -> None:
        client = connect(valkey_server.url, timeout_ms=2000, max_connections=2)
        await client.set("a", b"1")
        assert await asyncio.gather(*[client.get("a") for _ in range(100)]) == [b"1"] * 100
        await client.aclose()

    asyncio.run(scenario())


def test_the_breaker_opens_after_failures_and_probes() -> None:
    now = 0.0
    breaker = Breaker(threshold=2, cooldown_ms=100, spacing_ms=10, clock=lambda: now)
    breaker.failure()
    breaker.success()
    now = 0.01
    breaker.failure()
    assert breaker.allows()
    now = 0.02
    breaker.failure()
    assert not breaker.allows()
    now = 0.13
    assert breaker.allows()
    assert not breaker.allows()
    breaker.success()
    assert breaker.allows()
    assert not breaker.is_open


def test_one_pause_seen_by_many_callers_does_not_open_the_breaker() -> None:
    now = 0.0
    breaker = Breaker(threshold=3, spacing_ms=20, clock=lambda: now)
    for _ in range(200):
        now += 0.0001
        breaker.failure()
    assert breaker.allows()
    for _ in range(200):
        now += 0.0002
        breaker.failure()
    assert breaker.is_open


def test_a_busy_event_loop_is_not_a_silent_server() -> None:
    """The reply lies in the socket and the timeout is long over when the loop comes back to both."""

    async def scenario(limit: Callable[[float], AbstractAsyncContextManager[object]]) -> bytes:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            reader, writer = await asyncio.open_connection(sock=ours)

            def be_busy() -> None:
                theirs.sendall(b"+PONG")
                time.sleep(0.05)

            try:
                async with limit(0.02):
                    loop.call_soon(be_busy)
                    return await reader.readexactly(5)
            finally:
                writer.close()
                await writer.wait_closed()

    assert asyncio.run(scenario(Patience)) == b"+PONG"
    with pytest.raises(TimeoutError):  # what asyncio does when a timer and a reply are both due
        asyncio.run(scenario(asyncio.timeout))


def test_patience_ends_with_a_silent_server_and_leaves_no_reply_behind(redis_server: RedisProcess) -> None:
    async def scenario() -> float:
        client = connect(redis_server.url, None, max_connections=4)
        await client.mset({"a": b"1", "b": b"2"})
        redis_server.pause()
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            async with Patience(0.05):
                await client.get("a")
        spent = time.monotonic() - start
        redis_server.resume()
        assert await client.get("b") == b"2"
        await client.aclose()
        return spent

    assert 0.05 <= asyncio.run(scenario()) < 0.5


def test_patience_passes_cancellation_and_errors_on() -> None:
    async def scenario() -> None:
        async def wait() -> None:
            async with Patience(10):
                await asyncio.Event().wait()

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(KeyError):
            async with Patience(10):
                raise KeyError
        async with Patience(0):
            pass

    asyncio.run(scenario())
