"""What the sidecar does when Redis, or the sidecar itself, goes away."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import grpc
import pytest
from eviction.sidecar import (
    LEASE,
    PREFIX,
    hit,
    key,
    managed,
    settled,
    sidecar,
    sidecar_process,
    squeeze,
    store,
    write,
)
from redis_process import RedisProcess, running, wait_until

from frugalads.eviction.v1 import eviction_pb2
from services.core.eviction.priority import priority_of
from services.runtime.errors import UserError

MB = 1 << 20


@pytest.fixture
def cache(redis_server: RedisProcess) -> RedisProcess:
    redis_server._argv += ["--maxmemory", "64mb"]  # survives a restart, as in a configuration file
    redis_server.restart()
    return redis_server


def test_the_order_survives_kill_9(cache: RedisProcess) -> None:
    """A killed process leaves its order in Redis; the next one reads every entry back and goes on."""
    draw = random.Random(7)
    writes = [write(n, 400, draw.randrange(1, 10**6), n) for n in range(3_000)]

    async def fill() -> tuple[int, list[tuple[bytes, int]]]:
        async with sidecar_process(cache.url) as (_, it):
            await it.until_ready()
            async with it.reporter() as reporter:
                with cache.client() as client:
                    store(client, writes)
                    await reporter.report([w.event() for w in writes])
                    squeeze(client)
                    stats = await it.until(settled)
                    survivors = managed(client)
                    used = [w.sequence for w in writes if w.key in survivors][:200]
                    await reporter.report([hit(n) for n in used])
                    wanted = {key(n): stats.clock + writes[n].cost_us for n in used}
                    wait_until(
                        lambda: all(priority_of(client.pexpiretime(k)) == p for k, p in wanted.items()),
                        what="uses reached Redis",
                    )
            return stats.clock, [(e.key, e.priority) for e in await it.order()]

    clock, before = asyncio.run(fill())

    async def again() -> None:
        async with sidecar(cache.url, lease_ms=200) as it:
            await it.until_ready()
            with cache.client() as client:
                stats = await it.stats()
                assert stats.rebuilt == stats.entries == len(managed(client))
                after = [(e.key, e.priority) for e in await it.order()]
                assert [p for _, p in after] == [p for _, p in before]
                below = before[-1][1]  # among equals at the end of the list, recency is not in Redis
                assert {e for e in after if e[1] < below} == {e for e in before if e[1] < below}
                assert stats.clock == clock

    asyncio.run(again())


def test_a_dead_sidecar_leaves_redis_evicting_in_nearly_the_same_order(cache: RedisProcess) -> None:
    """volatile-ttl on our expiries: few victims rank outside the exact set."""

    async def scenario() -> None:
        async with sidecar(cache.url):
            pass  # it set the policy and left

    asyncio.run(scenario())
    draw = random.Random(3)
    writes = [write(n, 500, draw.randrange(1, 10**9), n) for n in range(20_000)]
    with cache.client() as client:
        client.config_set("maxmemory", 2_000 * MB)
        store(client, writes)
        client.config_set("maxmemory", int(int(client.info("memory")["used_memory"]) * 0.82))
        client.set("frugalads:other", "1")
        assert client.exists(LEASE), "without an expiry, or it would be evicted first"
        limit = 1.01 * client.info("memory")["maxmemory"]  # the answer of INFO itself counts as used
        wait_until(lambda: client.info("memory")["used_memory"] <= limit, what="Redis evicted")
        assert client.exists(LEASE)
        survivors = managed(client)
        evicted = len(writes) - len(survivors)
        exact = {w.key for w in sorted(writes, key=lambda w: w.cost_us)[:evicted]}
        outside = len({w.key for w in writes} - survivors - exact)
        assert evicted > 2_000
        assert outside / evicted < 0.35, f"{outside} of {evicted} victims are not the cheapest"
        lost = sum(w.cost_us for w in writes if w.key not in survivors)
        least = sum(w.cost_us for w in writes if w.key in exact)
        assert lost / least < 1.35
        print(f"{evicted} victims, {outside / evicted:.1%} not the cheapest, {lost / least - 1:.1%} dearer")


def test_a_restarted_redis_is_noticed(cache: RedisProcess) -> None:
    async def scenario() -> None:
        async with sidecar(cache.url) as it, it.reporter() as reporter:
            with cache.client() as client:
                writes = [write(n, 100, 1_000, n) for n in range(500)]
                store(client, writes)
                await reporter.report([w.event() for w in writes])
            await asyncio.to_thread(cache.restart)
            await it.until(lambda s: s.entries == 0)
            await it.until_ready()
            with cache.client() as client:
                assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "volatile-ttl"
                store(client, writes[:10])
            await reporter.report([w.event() for w in writes[:10]])
            assert (await it.stats()).entries == 10

    asyncio.run(scenario())


def test_a_restart_without_maxmemory_is_not_ready_until_it_is_set(redis_server: RedisProcess) -> None:
    async def scenario() -> None:
        with redis_server.client() as client:
            client.config_set("maxmemory", 64 * MB)
        async with sidecar(redis_server.url) as it:
            assert await it.ready()
            await asyncio.to_thread(redis_server.restart)
            await it.until_ready(False)
            with redis_server.client() as client:
                client.config_set("maxmemory", 64 * MB)
            await it.until_ready()

    asyncio.run(scenario())


def test_a_flush_is_noticed(cache: RedisProcess) -> None:
    async def scenario() -> None:
        async with sidecar(cache.url) as it, it.reporter() as reporter:
            with cache.client() as client:
                writes = [write(n, 100, 1_000 + n, n) for n in range(500)]
                store(client, writes)
                await reporter.report([w.event() for w in writes])
                client.flushall()
                stats = await it.until(lambda s: s.entries == 0)
                assert stats.evicted == 0
                store(client, writes[:5])
                await reporter.report([w.event() for w in writes[:5]])
                assert [e.key for e in await it.order()] == [w.key for w in writes[:5]]

    asyncio.run(scenario())


def test_a_silent_redis_costs_readiness_and_nothing_else(cache: RedisProcess) -> None:
    """Paused for 2 s: not ready, reports still taken, everything right afterwards."""

    async def scenario() -> None:
        async with sidecar(cache.url, redis_timeout_ms=200) as it, it.reporter() as reporter:
            with cache.client() as client:
                writes = [write(n, 1_000, 1_000 + n, n) for n in range(4_000)]
                store(client, writes)
                await reporter.report([w.event() for w in writes])
                cache.pause()
                try:
                    await it.until_ready(False)
                    await reporter.report([hit(n) for n in range(100)])
                    await asyncio.sleep(2)  # the length of the outage under test
                    assert not await it.ready()
                finally:
                    cache.resume()
                await it.until_ready()
                stats = await it.stats()
                assert (stats.entries, stats.evicted, stats.rebuilt) == (4_000, 0, 0)
                squeeze(client)
                await it.until(settled)

    asyncio.run(scenario())


def test_an_absent_redis_is_waited_for(cache: RedisProcess) -> None:
    async def scenario() -> None:
        cache.stop()
        async with sidecar(cache.url) as it:
            assert not await it.ready()
            assert (await it.stats()).entries == 0
            await asyncio.to_thread(cache.start)
            await it.until_ready()

    asyncio.run(scenario())


def test_a_redis_without_maxmemory_is_refused_at_start(redis_server: RedisProcess) -> None:
    async def scenario() -> None:
        async with sidecar(redis_server.url):
            raise AssertionError("started")

    with pytest.raises(UserError, match=r"maxmemory is 0.*maxmemory 2gb"):
        asyncio.run(scenario())


def test_a_server_of_a_cluster_is_refused(tmp_path: Path) -> None:
    async def scenario(url: str) -> None:
        async with sidecar(url):
            raise AssertionError("started")

    options = ("--cluster-enabled", "yes", "--maxmemory", "64mb")
    with running("valkey", tmp_path, options) as server, pytest.raises(UserError, match="part of a cluster"):
        asyncio.run(scenario(server.url))


def test_a_user_without_config_is_told_which_setting(cache: RedisProcess) -> None:
    with cache.client() as client:
        client.acl_setuser(
            "limited", enabled=True, nopass=True, keys=["*"], categories=["+@all"], commands=["-config"]
        )
        url = cache.url.replace("redis://", "redis://limited:x@")

        async def scenario() -> None:
            async with sidecar(url):
                raise AssertionError("started")

        with pytest.raises(UserError, match=r"CONFIG maxmemory-policy was refused.*volatile-ttl"):
            asyncio.run(scenario())


def test_reports_of_other_keys_are_refused(cache: RedisProcess) -> None:
    """Outside the prefix, however a glob would read it, and the lease itself."""

    async def scenario() -> None:
        prefix = b"frugalads:l[is]t*:"
        async with sidecar(cache.url, key_prefix=prefix.decode()) as it:
            for foreign, said in ((b"frugalads:list:1", "prefix"), (prefix + b"~lease", "lease")):
                event = eviction_pb2.Event(kind=eviction_pb2.EVENT_KIND_HIT, key=foreign)
                async with it.reporter() as reporter:
                    with pytest.raises(
                        grpc.aio.AioRpcError, match=r"INVALID_ARGUMENT.*events\[0\]\.key.*" + said
                    ):
                        await reporter.report([event])

    asyncio.run(scenario())


def test_keys_without_an_expiry_are_given_one(cache: RedisProcess) -> None:
    """At start, and when a plain SET drops the expiry of an entry later."""

    async def scenario() -> None:
        with cache.client() as client:
            for n in range(20):
                client.set(PREFIX + b"immortal%d" % n, "x")
            store(client, [write(n, 10, 5_000 + n, n) for n in range(100)])
            async with sidecar(cache.url) as it:
                stats = await it.stats()
                assert (stats.entries, stats.rebuilt, stats.clock) == (120, 120, 5_000)
                assert {priority_of(client.pexpiretime(PREFIX + b"immortal%d" % n)) for n in range(20)} == {
                    5_000
                }
                client.set(PREFIX + b"late", "x")
                await it.until(lambda s: s.entries == 121)
                assert client.pexpiretime(PREFIX + b"late") > 0

    asyncio.run(scenario())
