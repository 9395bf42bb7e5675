"""Any Redis user: `frugalads.client.cache` and a real sidecar on a real server, no scoring service."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from eviction.sidecar import Sidecar, serving_port, sidecar
from redis_process import RedisProcess

from frugalads.client.cache import AsyncCache, Cache
from services.core.eviction.priority import priority_of

MB = 1 << 20
PREFIX = "page:"


def spare(server: RedisProcess, bytes_: int) -> None:
    """Sets maxmemory to what is used now and so much more."""
    with server.client() as client:
        used: Any = client.info("memory")
        client.config_set("maxmemory", int(used["used_memory"]) + bytes_)


def test_what_the_client_wrote_and_read_decides_what_stays(redis_server: RedisProcess) -> None:
    """Cheap entries go, dear ones stay, read ones rise; a key of somebody else is never touched."""
    spare(redis_server, 4 * MB)

    async def scenario() -> None:
        async with sidecar(redis_server.url, key_prefix=PREFIX) as it:
            with redis_server.client() as client:
                client.set("theirs", "x")

            async def value() -> bytes:
                return bytes(4_000)

            async with AsyncCache(redis_server.url, PREFIX, sidecar=it.target, timeout_s=5) as cache:
                for n in range(100):
                    await cache.get_or_compute(f"dear {n}", value, cost=1_000_000)
                for n in range(1_500):
                    await cache.get_or_compute(f"cheap {n}", value, cost=1_000)
                stats = await it.until(lambda s: s.evicted > 300 and s.used_bytes <= s.high_watermark_bytes)
                assert stats.backstop_evicted <= 0.05 * stats.evicted
                assert cache.counts | {"refused": 0, "unanswered": 0, "unreported": 0} == cache.counts
            with redis_server.client() as client:
                assert all(client.exists(f"{PREFIX}dear {n}") for n in range(100))
                assert client.exists("theirs")
                started: Any = client.pexpiretime(f"{PREFIX}cheap 1499")
                assert priority_of(started) > stats.clock > 0, "written from the clock that it was told"

    asyncio.run(scenario())


def test_kill_9_of_the_sidecar_fails_no_request(valkey_server: RedisProcess) -> None:
    spare(valkey_server, 2 * MB)
    environ = {"REDIS_URL": valkey_server.url, "KEY_PREFIX": PREFIX, "PORT": "0", "METRICS_PORT": "0"}
    process = subprocess.Popen(
        [sys.executable, "-m", "services.eviction"],
        cwd=Path(__file__).parents[2],
        env=os.environ | {f"FRUGALADS_EVICTION_{key}": value for key, value in environ.items()},
        stderr=subprocess.PIPE,
    )
    draw = random.Random(0)
    try:
        target = f"127.0.0.1:{serving_port(process)}"

        async def ready() -> None:
            async with grpc.aio.insecure_channel(target) as channel:
                await Sidecar(channel, target).until_ready()

        asyncio.run(ready())
        with Cache(valkey_server.url, PREFIX, sidecar=target, timeout_s=5) as cache:
            for n in range(2_000):
                if n == 1_000:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                size = draw.randrange(50, 5_000)
                assert len(cache.get_or_compute(f"{n}", bytes(size).__bytes__, cost=size)) == size
            assert cache.counts | {"computed": 2_000, "refused": 0, "unanswered": 0} == cache.counts
        with valkey_server.client() as client:
            stats: Any = client.info("stats")
            assert stats["evicted_keys"] > 100, "Redis itself went on in the order of the expiries"
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def test_without_a_sidecar_redis_keeps_what_is_dear(redis_server: RedisProcess) -> None:
    spare(redis_server, 2 * MB)
    with redis_server.client() as client, Cache(redis_server.url, PREFIX, timeout_s=5) as cache:
        client.config_set("maxmemory-policy", "volatile-ttl")
        client.config_set("maxmemory-samples", 10)
        for n in range(600):
            cache.get_or_compute(f"{n}", lambda: bytes(4_000), cost=1_000_000 if n % 10 == 0 else 1_000)
        kept = [n for n in range(600) if client.exists(f"{PREFIX}{n}")]
        assert len(kept) < 500
        assert sum(n % 10 == 0 for n in kept) >= 58, "of 60"


@pytest.mark.parametrize("key", ["~lease", b"~lease"])
def test_the_lease_cannot_be_overwritten_through_the_cache(
    valkey_server: RedisProcess, key: str | bytes
) -> None:
    with (
        Cache(valkey_server.url, PREFIX, timeout_s=5) as cache,
        pytest.raises(ValueError, match="sidecar's own"),
    ):
        cache.get_or_compute(key, lambda: b"")
