"""One contract, kept by the cache over real servers and by its twin in memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis_process import FLAVOURS, running

from services.core.ads_list import AdsList, Versions
from services.core.eviction.priority import BASE_MS, expire_at_ms
from services.core.query import fingerprint
from services.runtime.metrics import Metrics
from services.runtime.redis_client import Breaker, connect
from services.scoring.cache import CacheUnavailable, ListCache, MemoryCache, RedisCache

KEY, OTHER = fingerprint("a"), fingerprint("b")


def entry(*ids: int, at_ms: int = 1000) -> AdsList:
    return AdsList(ids, (0.5,) * len(ids), at_ms, 900, Versions("i", "e", "s"))


@pytest.fixture(params=["memory", *FLAVOURS])
def open_cache(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":

        @asynccontextmanager
        async def memory() -> AsyncIterator[ListCache]:
            yield MemoryCache()

        yield memory
        return
    with running(request.param, tmp_path) as server:

        @asynccontextmanager
        async def real() -> AsyncIterator[ListCache]:
            cache = RedisCache(connect(server.url, 500, 4), "frugalads:list:", Metrics("scoring"))
            yield cache
            await cache.close()

        yield real


def check(open_cache: Any, scenario: Any) -> None:
    async def inside() -> None:
        async with open_cache() as cache:
            await scenario(cache)

    asyncio.run(inside())


def test_what_is_put_is_got(open_cache: Any) -> None:
    async def scenario(cache: ListCache) -> None:
        assert await cache.get(KEY) is None
        written = await cache.put(KEY, entry(1, 2), BASE_MS + 7)
        assert written is not None
        assert written.is_new
        assert written.key == cache.key(KEY)
        assert await cache.get(KEY) == entry(1, 2)
        assert await cache.get(OTHER) is None

    check(open_cache, scenario)


def test_empty_lists_are_lists(open_cache: Any) -> None:
    async def scenario(cache: ListCache) -> None:
        await cache.put(KEY, entry(), BASE_MS)
        assert await cache.get(KEY) == entry()

    check(open_cache, scenario)


def test_a_newer_list_replaces_an_older_one(open_cache: Any) -> None:
    async def scenario(cache: ListCache) -> None:
        await cache.put(KEY, entry(1, at_ms=1000), BASE_MS)
        for at_ms in (1000, 1001):
            written = await cache.put(KEY, entry(2, at_ms=at_ms), BASE_MS)
            assert written is not None
            assert not written.is_new
        assert await cache.get(KEY) == entry(2, at_ms=1001)

    check(open_cache, scenario)


def test_a_late_writer_does_not_replace_a_newer_list(open_cache: Any) -> None:
    async def scenario(cache: ListCache) -> None:
        await cache.put(KEY, entry(2, at_ms=1_790_000_000_001), BASE_MS)
        assert await cache.put(KEY, entry(1, at_ms=1_790_000_000_000), BASE_MS) is None
        assert await cache.get(KEY) == entry(2, at_ms=1_790_000_000_001)

    check(open_cache, scenario)


def test_sizes_count_key_and_value(open_cache: Any) -> None:
    async def scenario(cache: ListCache) -> None:
        small = await cache.put(KEY, entry(), BASE_MS)
        large = await cache.put(OTHER, entry(*range(64)), BASE_MS)
        assert small is not None
        assert large is not None
        assert large.size_bytes - small.size_bytes == 64 * 12

    check(open_cache, scenario)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_every_write_carries_its_priority_as_expiry(flavour: str, tmp_path: Path) -> None:
    with running(flavour, tmp_path) as server:

        async def scenario() -> None:
            client: Any = server.client()
            cache = RedisCache(connect(server.url, 500, 4), "frugalads:list:", Metrics("scoring"))
            for at_ms, priority in ((1, 900), (2, 5_000), (3, 100)):
                expiry = expire_at_ms(priority, at_ms)
                await cache.put(KEY, entry(1, at_ms=at_ms), expiry)
                assert client.pexpiretime(cache.key(KEY)) == expiry
            await cache.put(KEY, entry(1, at_ms=2), expire_at_ms(9_000, 9))
            assert client.pexpiretime(cache.key(KEY)) == expire_at_ms(100, 3)
            await cache.close()

        asyncio.run(scenario())


@pytest.mark.parametrize("foreign", [b"", b"x", b"FADL", b"y" * 500])
def test_foreign_values_are_misses_and_are_replaced(tmp_path: Path, foreign: bytes) -> None:
    with running("valkey", tmp_path) as server:

        async def scenario() -> None:
            metrics = Metrics("scoring")
            cache = RedisCache(connect(server.url, 500, 4), "frugalads:list:", metrics)
            server.client().set(cache.key(KEY), foreign)
            assert await cache.get(KEY) is None
            sample = metrics.registry.get_sample_value(
                "frugalads_scoring_corrupt_entries_total",
                {"reason": "format" if len(foreign) >= 48 else "length"},
            )
            assert sample == 1
            await cache.put(KEY, entry(1), BASE_MS)
            assert await cache.get(KEY) == entry(1)
            await cache.close()

        asyncio.run(scenario())


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_key_of_another_type_is_a_miss_and_is_replaced(flavour: str, tmp_path: Path) -> None:
    with running(flavour, tmp_path) as server:

        async def scenario() -> None:
            cache = RedisCache(connect(server.url, 500, 4), "frugalads:list:", Metrics("scoring"))
            client: Any = server.client()
            client.rpush(cache.key(KEY), "a", "b")
            await cache.put(OTHER, entry(2), BASE_MS)
            for _ in range(5):
                assert await cache.get(KEY) is None
            assert await cache.get(OTHER) == entry(2)  # one poisoned key harms no other
            written = await cache.put(KEY, entry(1), BASE_MS)
            assert written is not None
            assert not written.is_new
            assert await cache.get(KEY) == entry(1)
            assert client.pexpiretime(cache.key(KEY)) == BASE_MS
            await cache.close()

        asyncio.run(scenario())


@pytest.mark.parametrize(
    "refuse",
    [
        ["CONFIG", "SET", "maxmemory", "1mb", "maxmemory-policy", "noeviction"],
        ["REPLICAOF", "127.0.0.1", "1"],
    ],
)
def test_a_cache_that_takes_no_writes_is_still_read(tmp_path: Path, refuse: list[str]) -> None:
    with running("valkey", tmp_path) as server:

        async def scenario() -> None:
            now_s = 0.0
            breaker = Breaker(clock=lambda: now_s)
            cache = RedisCache(connect(server.url, 500, 4), "p:", Metrics("scoring"), breaker)
            await cache.put(KEY, entry(1), BASE_MS)
            client: Any = server.client()
            client.execute_command(*refuse)
            for _ in range(5):
                now_s += 1
                with pytest.raises(CacheUnavailable):
                    await cache.put(OTHER, entry(2), BASE_MS)
            assert await cache.get(KEY) == entry(1)
            await cache.close()

        asyncio.run(scenario())
