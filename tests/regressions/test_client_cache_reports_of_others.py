"""Public reports of caches and Redis clients, tried on `frugalads.client.cache`."""

from __future__ import annotations

import asyncio
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from e2e.slow_proxy import SlowProxy, slow_proxy
from redis_process import RedisProcess

from frugalads.client.cache import AsyncCache, Cache
from frugalads.client.cache.entries import Entry, encode
from frugalads.client.cache.guards import Breaker, CoolDowns
from frugalads.client.cache.priorities import BASE_MS

TTL_S = 100_000


def put_due(server: RedisProcess, key: bytes = b"p:k") -> None:
    """A fresh value so dear that any draw refreshes it early."""
    entry = Entry(b"old", round((time.time() - 10) * 1000), 7, 10**18)
    with server.client() as client:
        client.set(key, encode(entry, key), pxat=BASE_MS)


class Failing:
    """An upstream that counts its calls and fails while `fails`."""

    def __init__(self) -> None:
        self.calls = 0
        self.fails = True

    def __call__(self) -> bytes:
        self.calls += 1
        if self.fails:
            raise ConnectionError("upstream")
        return b"new"

    async def awaited(self) -> bytes:
        return self()


def test_redis_py_2624_2665_a_cancelled_read_never_gives_its_value_to_another_key(
    valkey_server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """250 reads are cut off in flight by their timeout; who reads next gets the value of its own key."""
    monkeypatch.setattr(Breaker, "COOL_DOWN_S", 0.0)

    async def scenario(proxy: SlowProxy) -> None:
        async with AsyncCache(f"redis://127.0.0.1:{proxy.port}", "p:", timeout_s=0.1) as cache:

            async def is_own(key: str) -> bool:
                async def own() -> bytes:
                    return key.encode()

                return await cache.get_or_compute(key, own) == key.encode()

            for burst in range(1, 6):
                proxy.delay_s = 0.15
                assert all(await asyncio.gather(*(is_own(f"{burst} {n}") for n in range(50))))
                proxy.delay_s = 0.0
                while cache.counts["hits"] < 5 * burst:  # on the connections that the burst left
                    assert await is_own("key")
            assert cache.counts["unanswered"] >= 250

    with slow_proxy(valkey_server.port) as proxy:
        asyncio.run(scenario(proxy))


def test_yiisoft_cache_123_laravel_61289_a_cold_key_is_computed_once(valkey_server: RedisProcess) -> None:
    async def scenario() -> None:
        calls = 0

        async def compute() -> bytes:
            nonlocal calls
            calls += 1
            await asyncio.sleep(0)
            return b"value"

        async with AsyncCache(valkey_server.url, "p:", timeout_s=5) as cache:
            values = await asyncio.gather(*(cache.get_or_compute("cold", compute) for _ in range(1000)))
        assert values == [b"value"] * 1000
        assert calls == 1

    asyncio.run(scenario())
    begun, calls = Event(), []

    def compute() -> bytes:
        calls.append(1)
        assert begun.wait(10)
        return b"value"

    with Cache(valkey_server.url, "p:", timeout_s=5) as cache, ThreadPoolExecutor(40) as pool:
        asked = [pool.submit(cache.get_or_compute, "cold too", compute) for _ in range(200)]
        begun.set()
        assert {call.result(20) for call in asked} == {b"value"}
    assert len(calls) == 1


@pytest.mark.parametrize("order", [*itertools.permutations(range(3), 2), (0,), (2,)])
def test_aiocache_393_1041_cancelled_callers_do_not_cancel_the_others(
    valkey_server: RedisProcess, order: tuple[int, ...]
) -> None:
    """Also cashews' `thunder_protection`: any callers may go, the first included."""

    async def scenario() -> None:
        opened, calls = asyncio.Event(), []

        async def compute() -> bytes:
            calls.append(1)
            await opened.wait()
            return b"value"

        async with AsyncCache(valkey_server.url, "p:", timeout_s=5) as cache:
            callers = [asyncio.create_task(cache.get_or_compute("k", compute)) for _ in range(3)]
            while not calls:  # noqa: ASYNC110
                await asyncio.sleep(0)
            for n in order:
                callers[n].cancel()
                await asyncio.sleep(0)
            opened.set()
            outcomes = await asyncio.gather(*callers, return_exceptions=True)
        for n, outcome in enumerate(outcomes):
            assert isinstance(outcome, asyncio.CancelledError) if n in order else outcome == b"value"
        assert len(calls) == 1

    asyncio.run(scenario())


def test_caffeine_711_a_key_is_refreshed_again_after_a_failed_refresh(
    valkey_server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CoolDowns, "FIRST_S", 0.0)
    upstream = Failing()
    put_due(valkey_server)
    with Cache(valkey_server.url, "p:", ttl_s=TTL_S, timeout_s=5) as cache:
        assert [cache.get_or_compute("k", upstream) for _ in range(3)] == [b"old"] * 3
        assert upstream.calls == 3
        upstream.fails = False
        assert cache.get_or_compute("k", upstream) == b"new"


def test_streamlit_14690_hits_do_not_each_try_a_failing_upstream(valkey_server: RedisProcess) -> None:
    async def scenario() -> None:
        async with AsyncCache(valkey_server.url, "p:", ttl_s=TTL_S, timeout_s=5) as cache:
            for _ in range(200):
                assert await cache.get_or_compute("other", upstream.awaited) == b"old"

    upstream = Failing()
    put_due(valkey_server)
    put_due(valkey_server, b"p:other")
    with Cache(valkey_server.url, "p:", ttl_s=TTL_S, timeout_s=5) as cache:
        assert [cache.get_or_compute("k", upstream) for _ in range(200)] == [b"old"] * 200
        assert upstream.calls <= 3, "once a second, then less and less"
    upstream.calls = 0
    asyncio.run(scenario())
    assert upstream.calls <= 3


def test_django_redis_27_while_a_refresh_runs_others_get_the_value_at_hand(
    valkey_server: RedisProcess,
) -> None:
    async def scenario() -> None:
        opened = asyncio.Event()

        async def compute() -> bytes:
            await opened.wait()
            return b"new"

        put_due(valkey_server)
        async with AsyncCache(valkey_server.url, "p:", ttl_s=TTL_S, timeout_s=5) as cache:
            assert [await cache.get_or_compute("k", compute) for _ in range(20)] == [b"old"] * 20
            assert cache.counts["refreshed"] == 0
            opened.set()
            while await cache.get_or_compute("k", compute) == b"old":
                pass
            assert cache.counts | {"refreshed": 1, "computed": 0} == cache.counts

    asyncio.run(scenario())


def test_dogpile_cache_122_a_miss_is_one_get_and_one_set(redis_server: RedisProcess) -> None:
    with redis_server.client() as client, Cache(redis_server.url, "p:", timeout_s=5) as cache:
        for n in range(10):
            for _ in range(3):
                cache.get_or_compute(f"{n}", lambda: b"x")
        commands: Any = client.info("commandstats")
    assert (commands["cmdstat_get"]["calls"], commands["cmdstat_set"]["calls"]) == (30, 10)


def test_redis_py_2517_2995_3259_a_burst_waits_for_connections_and_leaks_none(
    valkey_server: RedisProcess,
) -> None:
    async def scenario() -> None:
        async def compute() -> bytes:
            return b"value"

        async with AsyncCache(valkey_server.url, "p:", timeout_s=10) as cache:
            for _ in range(2):
                await asyncio.gather(*(cache.get_or_compute(f"{n}", compute) for n in range(500)))
            assert cache.counts | {"computed": 500, "hits": 500, "unanswered": 0} == cache.counts
            connected: Any = valkey_server.client().info("clients")
            assert connected["connected_clients"] <= 64 + 1

    asyncio.run(scenario())


def test_opencollective_api_10005_no_key_is_without_an_expiry(redis_server: RedisProcess) -> None:
    put_due(redis_server)
    with Cache(redis_server.url, "p:", ttl_s=TTL_S, timeout_s=5) as cache:
        for key in ("k", "new", "other"):
            cache.get_or_compute(key, lambda: b"value")
    with redis_server.client() as client:
        keys: Any = client.keys("*")
        assert len(keys) == 3
        assert all(client.pexpiretime(key) >= BASE_MS for key in keys)
