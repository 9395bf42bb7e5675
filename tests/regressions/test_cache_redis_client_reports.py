"""Public reports of Redis clients that mix up, leak or lose connections, tried on the ads cache."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

from redis_process import RedisProcess
from scoring_stand_ins import ENCODER, INDEX, SCORER, urls, world

from frugalads.scoring.v1 import scoring_pb2
from services.core.ads_list import AdsList, Versions
from services.core.eviction.priority import BASE_MS
from services.core.query import fingerprint
from services.runtime.metrics import Metrics
from services.runtime.redis_client import connect
from services.scoring.cache import CacheUnavailable, RedisCache


@contextlib.asynccontextmanager
async def delaying_proxy(port: int, longest_s: float) -> AsyncIterator[int]:
    """A port that passes everything on, replies late by up to `longest_s`."""
    delays = random.Random(1)
    writers: list[asyncio.StreamWriter] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, late: bool) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if late:
                    await asyncio.sleep(delays.random() * longest_s)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", port)
        writers.extend((writer, upstream_writer))
        await asyncio.gather(
            pump(reader, upstream_writer, late=False), pump(upstream_reader, writer, late=True)
        )

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await asyncio.sleep(0.05)


def test_redis_py_2624_a_cancelled_get_never_gives_its_reply_to_another_key(
    valkey_server: RedisProcess,
) -> None:
    async def scenario() -> None:
        keys = [fingerprint(f"key {i}") for i in range(50)]
        straight = RedisCache(connect(valkey_server.url, 500, 4), "p:", Metrics("scoring"))
        for i, key in enumerate(keys):
            await straight.put(key, AdsList((i,), (0.5,), 1, 1, Versions(INDEX, ENCODER, SCORER)), BASE_MS)
        await straight.close()
        chance = random.Random(2)
        async with delaying_proxy(valkey_server.port, 0.01) as port:
            metrics = Metrics("scoring")
            cache = RedisCache(connect(f"redis://127.0.0.1:{port}/0", 1000, 8), "p:", metrics)
            served = cancelled = 0

            async def get(i: int) -> None:
                nonlocal served
                entry = await cache.get(keys[i])
                assert entry is not None
                assert entry.ad_ids == (i,)
                served += 1

            for _ in range(100):
                wave = [asyncio.create_task(get(chance.randrange(50))) for _ in range(10)]
                await asyncio.sleep(chance.random() * 0.01)
                for task in wave[::2]:
                    cancelled += task.cancel()
                results = await asyncio.gather(*wave, return_exceptions=True)
                for result in results:
                    if not isinstance(result, (asyncio.CancelledError, CacheUnavailable)):
                        assert result is None, result
            assert served > 300
            assert cancelled > 100
            for reason in ("length", "format", "crc", "fingerprint", "versions"):
                labels = {"reason": reason}
                name = "frugalads_scoring_corrupt_entries_total"
                assert not metrics.registry.get_sample_value(name, labels)
            await cache.close()

    asyncio.run(scenario())


def test_redis_py_2624_even_a_foreign_value_under_a_key_is_a_miss(valkey_server: RedisProcess) -> None:
    async def scenario() -> None:
        async with world(*urls(valkey_server)) as made:
            for query in ("one", "two"):
                await made.rank(query)
            client = valkey_server.client()
            one, two = (b"frugalads:list:" + fingerprint(q).hex().encode() for q in ("one", "two"))
            value = client.get(two)
            assert isinstance(value, bytes)
            client.set(one, value, pxat=BASE_MS + 1)
            assert (await made.rank("one")).cache_state == scoring_pb2.CACHE_STATE_MISS
            assert (await made.rank("one")).cache_state == scoring_pb2.CACHE_STATE_HIT

    asyncio.run(scenario())


def test_redis_py_2517_2995_3259_a_burst_waits_for_connections_and_leaks_none(
    valkey_server: RedisProcess,
) -> None:
    async def scenario() -> None:
        client = connect(valkey_server.url, 2000, 4)
        cache = RedisCache(client, "p:", Metrics("scoring"))
        key = fingerprint("k")
        await cache.put(key, AdsList((1,), (0.5,), 1, 1, Versions()), BASE_MS)
        for _ in range(3):
            entries = await asyncio.gather(*(cache.get(key) for _ in range(300)))
            assert all(entry is not None for entry in entries)
            tasks = [asyncio.create_task(cache.get(key)) for _ in range(40)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        connected: Any = valkey_server.client().info("clients")
        assert connected["connected_clients"] <= 4 + 2
        assert await cache.get(key) is not None
        await cache.close()

    asyncio.run(scenario())


def test_opencollective_api_10005_no_key_of_the_cache_is_immortal(valkey_server: RedisProcess) -> None:
    async def scenario() -> None:
        async with world(*urls(valkey_server), refresh_every=2) as made:
            for i in range(40):
                await made.rank(f"query {i % 10}")
            client: Any = valkey_server.client()
            keys = client.keys("*")
            assert len(keys) == 10
            assert all(client.pexpiretime(key) >= BASE_MS for key in keys)

    asyncio.run(scenario())
