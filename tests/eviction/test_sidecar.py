"""The sidecar end to end: reports in, evictions out, over a real server."""

from __future__ import annotations

import asyncio
import random

from eviction.sidecar import Write, hit, key, managed, settled, sidecar, squeeze, store, write
from redis_process import RedisProcess

from frugalads.eviction.v1 import eviction_pb2
from services.core.eviction.priority import BASE_MS, priority_of
from services.core.eviction.rules import DEFAULT, Rule

MB = 1 << 20


def room(server: RedisProcess, max_bytes: int) -> None:
    with server.client() as client:
        client.config_set("maxmemory", max_bytes)


def mixed(count: int, seed: int) -> list[Write]:
    draw = random.Random(seed)
    return [write(n, draw.randrange(50, 2_000), draw.randrange(100, 50_000), n) for n in range(count)]


def test_a_full_cache_loses_exactly_the_cheapest(redis_server: RedisProcess) -> None:
    """Victims, in number and identity, are the head of GreedyDual's order."""

    async def scenario() -> None:
        room(redis_server, 64 * MB)
        writes = mixed(6_000, seed=1)
        used = random.Random(2).sample(range(6_000), 1_500)
        async with sidecar(redis_server.url) as it, it.reporter() as reporter:
            with redis_server.client() as client:
                store(client, writes)
                await reporter.report([w.event() for w in writes])
                await reporter.report([hit(n) for n in used])
                squeeze(client)
                stats = await it.until(settled)
                recency = {n: n for n in range(6_000)} | {n: 6_000 + i for i, n in enumerate(used)}
                ranked = sorted(writes, key=lambda w: (w.cost_us, recency[w.sequence]))
                victims = {w.key for w in ranked[: stats.evicted]}
                assert managed(client) == {w.key for w in writes} - victims
                assert stats.skipped == 0
                assert stats.backstop_evicted == 0
                assert stats.entries == 6_000 - stats.evicted
                assert stats.clock == ranked[stats.evicted - 1].cost_us
                order = await it.order(5)
                assert [e.key for e in order] == [w.key for w in ranked[stats.evicted :][:5]]
                assert order[0].cost_us == ranked[stats.evicted].cost_us
                while reporter.clock < stats.clock:
                    await reporter.read()

    asyncio.run(scenario())


def test_two_watermarks_bound_the_memory(redis_server: RedisProcess) -> None:
    async def scenario() -> None:
        room(redis_server, 16 * MB)
        async with sidecar(redis_server.url) as it, it.reporter() as reporter:
            clock = 0
            with redis_server.client() as client:
                for first in range(0, 12_000, 100):
                    writes = [write(n, 2_000, 1_000, n, clock) for n in range(first, first + 100)]
                    store(client, writes)
                    await reporter.report([w.event() for w in writes])
                    clock = reporter.clock
                    await it.until(lambda s: s.used_bytes <= s.high_watermark_bytes)
                stats = await it.stats()
                assert stats.backstop_evicted == 0
                assert stats.high_watermark_bytes == int(0.9 * 16 * MB)
                assert stats.low_watermark_bytes == int(0.85 * 16 * MB)
                assert 0 <= stats.entries - len(managed(client)) <= 100, (
                    "late reports of evicted entries at most"
                )
                assert abs(stats.entry_bytes / stats.entries - 2_000) < 300, "the overhead was measured"

    asyncio.run(scenario())


def test_a_refreshed_entry_survives_although_its_report_is_late(redis_server: RedisProcess) -> None:
    """The expiry is a version: what was written since is not unlinked, and takes its new place."""

    async def scenario() -> None:
        room(redis_server, 64 * MB)
        writes = [write(n, 1_000, 1_000 + n, n) for n in range(4_000)]
        async with sidecar(redis_server.url) as it, it.reporter() as reporter:
            with redis_server.client() as client:
                store(client, writes)
                await reporter.report([w.event() for w in writes])
                late = [write(n, 1_000, 900_000, 10_000 + n) for n in range(50)]
                store(client, late)  # the cheapest, written anew at a higher cost; nobody reports it
                squeeze(client)
                stats = await it.until(settled)
                assert stats.skipped == 50
                assert {w.key for w in late} <= managed(client)
                assert not {key(n) for n in range(50, 50 + stats.evicted)} & managed(client)

    asyncio.run(scenario())


def test_uses_raise_the_expiry_that_redis_holds(redis_server: RedisProcess) -> None:
    """L has risen by the evictions: a use then lifts the entry to L + cost, in Redis too.

    At once where the expiry has fallen behind by half, else as the sweep comes past.
    """

    async def scenario() -> None:
        room(redis_server, 64 * MB)
        async with sidecar(redis_server.url, tick_ms=5) as it, it.reporter() as reporter:
            with redis_server.client() as client:
                writes = [write(n, 1_000, 1_000 + n, n) for n in range(4_000)]
                store(client, writes)
                await reporter.report([w.event() for w in writes])
                squeeze(client)
                stats = await it.until(settled)
                await reporter.report([hit(n) for n in range(3_900, 4_000)])

                def risen() -> bool:
                    expected = [stats.clock + 1_000 + n for n in range(3_900, 4_000)]
                    return [priority_of(client.pexpiretime(key(n))) for n in range(3_900, 4_000)] == expected

                for _ in range(2_000):
                    if risen():
                        break
                    await asyncio.sleep(0.01)
                assert risen()

    asyncio.run(scenario())


def test_an_entry_nobody_reported_is_found_and_evicted(redis_server: RedisProcess) -> None:
    async def scenario() -> None:
        room(redis_server, 64 * MB)
        async with sidecar(redis_server.url) as it:
            with redis_server.client() as client:
                store(client, [write(n, 1_000, 1_000 + n, n) for n in range(1_000)])
                await it.until(lambda s: s.entries == 1_000)
                order = await it.order(1_000)
                assert [e.key for e in order] == [key(n) for n in range(1_000)]
                assert [e.cost_us for e in order] == [1_000 + n for n in range(1_000)], (
                    "as its expiry implies"
                )
                client.delete(*managed(client))
                await it.until(lambda s: s.entries == 0)

    asyncio.run(scenario())


def test_an_entry_larger_than_the_cache_goes_first(redis_server: RedisProcess) -> None:
    """Nothing else is evicted for an entry that could never stay."""

    async def scenario() -> None:
        room(redis_server, 61 * MB)
        async with sidecar(redis_server.url) as it, it.reporter() as reporter:
            with redis_server.client() as client:
                small = [write(n, 1_000, 100, n) for n in range(1_000)]
                store(client, small)
                await reporter.report([w.event() for w in small])
                huge = write("huge", 0, 2**40, 5)
                event = huge.event()
                event.size_bytes = 55 * MB
                await reporter.report([event, hit("huge")])
                # A client that sent it whole would be cut off by maxmemory-clients.
                pipe = client.pipeline(transaction=True)
                pipe.setrange(huge.key, 55 * MB, b"x")
                pipe.pexpireat(huge.key, huge.expire_at_ms)
                pipe.execute()
                await it.until(lambda s: s.evicted == 1)
                assert managed(client) == {w.key for w in small}

    asyncio.run(scenario())


def test_a_refresh_that_costs_less_lowers_the_entry(valkey_server: RedisProcess) -> None:
    async def scenario() -> None:
        room(valkey_server, 64 * MB)
        async with sidecar(valkey_server.url) as it, it.reporter() as reporter:
            with valkey_server.client() as client:
                writes = [write("a", 10, 500, 1), write("b", 10, 300, 2)]
                store(client, writes)
                await reporter.report([w.event() for w in writes])
                again = write("a", 10, 200, 3)
                store(client, [again])
                await reporter.report([again.event(eviction_pb2.EVENT_KIND_REFRESH)])
                assert [(e.key, e.priority) for e in await it.order()] == [(key("a"), 200), (key("b"), 300)]

    asyncio.run(scenario())


def test_ours_by_default_and_a_client_that_computes_what_it_computes(redis_server: RedisProcess) -> None:
    """Clock, rule and hints from the reply stream suffice to write priorities that need no rise."""

    async def scenario() -> None:
        room(redis_server, 64 * MB)
        draw = random.Random(5)
        async with sidecar(redis_server.url, order="ours") as it, it.reporter() as reporter:
            probe = await reporter.send([write("probe", 100, 5_000, 1).event()])
            while reporter.acknowledged < probe:
                answer = await reporter.read()
            rule = Rule(*(getattr(answer.rule, name) for name in Rule._fields))
            assert rule == DEFAULT
            with redis_server.client() as client:
                costs = {n: draw.randrange(100, 50_000) for n in range(3_000)}
                sizes = {n: draw.randrange(50, 2_000) for n in range(3_000)}
                first_writes = [write(n, sizes[n], costs[n], n) for n in range(3_000)]
                store(client, first_writes)
                await reporter.report([w.event() for w in first_writes])
                await reporter.report([hit(n) for n in range(500)] * 3)
                uses = reporter.frequencies
                writes = []
                for n in range(3_000):
                    size_bytes = len(key(n)) + sizes[n] + answer.rule.overhead_bytes
                    priority = rule.priority(reporter.clock, costs[n], size_bytes, uses.get(key(n), 1))
                    expiry_ms = BASE_MS + (priority << 10) + n % 1024
                    writes.append(Write(key(n), b"x" * sizes[n], costs[n], n, expiry_ms))
                assert {uses[key(n)] for n in range(500)} == {4}
                store(client, writes)
                await reporter.report([w.event(eviction_pb2.EVENT_KIND_REFRESH) for w in writes])
                stats = await it.stats()
                assert stats.order == "ours"
                squeeze(client)
                stats = await it.until(settled)
                kept = managed(client)
                ranked = sorted(writes, key=lambda w: w.expire_at_ms)
                victims = {w.key for w in ranked[: stats.evicted]}
                assert len(victims & kept) < 0.05 * len(victims), "the order of the client is nearly ours"
                used = {key(n) for n in range(500)}
                assert len(used & kept) > 480, "what was used goes last"

    asyncio.run(scenario())


def test_costs_from_a_field_and_from_classes_need_no_report(valkey_server: RedisProcess) -> None:
    """A Redis whose application only sets: hashes that hold their cost, strings of a class, pinned keys."""

    async def scenario() -> None:
        room(valkey_server, 64 * MB)
        options = {"cost_field": "cost_us", "key_classes": "page:=7000, vip:=pin"}
        async with sidecar(valkey_server.url, **options) as it:
            with valkey_server.client() as client:
                pipe = client.pipeline(transaction=False)
                for n in range(1_000):
                    pipe.hset(key(f"row:{n}"), mapping={"cost_us": 6_500 + n, "value": b"x" * 1_000})
                    pipe.set(key(f"page:{n}"), b"x" * 1_000)
                    pipe.set(key(f"plain:{n}"), b"x" * 1_000)
                for n in range(50):
                    pipe.set(key(f"vip:{n}"), b"x" * 1_000, pxat=BASE_MS)
                pipe.execute()
                stats = await it.until(lambda s: s.entries == 3_000)

                def kept(name: str) -> list[int]:
                    return sorted(int(k.split(b":")[-1]) for k in managed(client) if key(name) in k)

                for most in (2_400, 1_200):
                    while stats.entries > most:
                        squeeze(client)
                        before = stats.evicted
                        stats = await it.until(lambda s, before=before: s.evicted > before and settled(s))  # type: ignore[misc]
                    rows, pages = kept("row:"), kept("page:")
                    if most == 2_400:
                        assert len(rows) == len(pages) == 1_000, "no cost is known of the others"
                assert not kept("plain:")
                assert rows == list(range(1_000 - len(rows), 1_000)), "the cheapest go"
                assert len(rows) in (499, 500) or len(pages) in (0, 1_000), (
                    "pages go with the row of 7,000 us"
                )
                assert kept("vip:") == list(range(50))
                assert {client.pttl(key(f"vip:{n}")) for n in range(50)} == {-1}
                assert stats.backstop_evicted == 0

    asyncio.run(scenario())
