from __future__ import annotations

import asyncio
import time

import pytest
import redis
from redis_process import RedisProcess

from services.runtime.redis_client import Breaker, connect


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
    breaker = Breaker(threshold=2, cooldown_ms=100, clock=lambda: now)
    breaker.failure()
    breaker.success()
    breaker.failure()
    assert breaker.allows()
    breaker.failure()
    assert not breaker.allows()
    now = 0.1
    assert breaker.allows()
    assert not breaker.allows()
    breaker.success()
    assert breaker.allows()
    assert not breaker.is_open
