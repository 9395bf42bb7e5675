"""One sidecar at a time: who leads, who waits, and what a leader that slept may still do."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from eviction.sidecar import (
    LEASE,
    key,
    managed,
    settled,
    sidecar,
    sidecar_process,
    squeeze,
    store,
    write,
)
from redis_process import RedisProcess, running

from services.eviction.lease import Lease
from services.eviction.store import Fenced, Store
from services.runtime.errors import UserError

MB = 1 << 20


@pytest.fixture
def cache(redis_server: RedisProcess) -> RedisProcess:
    with redis_server.client() as client:
        client.config_set("maxmemory", 64 * MB)
    return redis_server


def test_a_second_sidecar_waits_until_the_first_leaves(cache: RedisProcess) -> None:
    """It is not ready, evicts nothing and applies no report; then it takes over order and clock at once."""

    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as first_ends, contextlib.AsyncExitStack() as stack:
            first = await first_ends.enter_async_context(sidecar(cache.url))
            second = await stack.enter_async_context(sidecar(cache.url))
            with cache.client() as client:
                writes = [write(n, 1_000, 1_000 + n, n) for n in range(4_000)]
                store(client, writes)
                await first.until(lambda s: s.entries == 4_000)
                squeeze(client)
                led = await first.until(settled)
                assert (led.leading, led.epoch) == (True, 1)
                async with second.reporter() as reporter:
                    waiting = await reporter.send([write("new", 10, 5, 5_000).event()])
                    stats = await second.stats()
                    assert not await second.ready()
                    assert (stats.leading, stats.entries, stats.evicted, stats.epoch) == (False, 0, 0, 1)
                    assert reporter.acknowledged == 0
                    await first_ends.aclose()
                    while reporter.acknowledged < waiting:
                        await reporter.read()
                stats = await second.until(lambda s: s.leading)
                assert stats.epoch == 3, "given up, and taken"
                assert stats.clock >= led.clock
                assert stats.entries >= len(managed(client))

    asyncio.run(scenario())


def test_a_leader_that_slept_through_its_term_evicts_nothing(cache: RedisProcess) -> None:
    """Stopped for longer than its term, with evictions to do when it wakes up under the next one's."""

    async def scenario() -> None:
        async with sidecar_process(cache.url, lease_ms=300) as (process, first):
            await first.until_ready()
            with cache.client() as client:
                store(client, [write(n, 1_000, 1_000 + n, n) for n in range(4_000)])
                await first.until(lambda s: s.entries == 4_000)
                process.send_signal(signal.SIGSTOP)
                async with sidecar(
                    cache.url, lease_ms=300, high_watermark=0.98, low_watermark=0.97
                ) as second:
                    await second.until_ready()
                    stats = await second.stats()
                    assert (stats.epoch, stats.entries) == (2, 4_000)
                    squeeze(client)  # above the high watermark of the first one only
                    process.send_signal(signal.SIGCONT)
                    stats = await first.until(lambda s: not s.leading)
                    assert stats.evicted == 0
                    assert len(managed(client)) == 4_000
                    await first.until_ready(False)

    asyncio.run(scenario())


def test_evictions_are_refused_without_the_lease(cache: RedisProcess) -> None:
    async def scenario() -> None:
        one = Store(cache.url, 1_000, b"p:")
        await one.verify()
        now_s = 0.0
        first, second = (Lease(one, 1_000, lambda: now_s) for _ in range(2))
        assert await first.keep(7)
        assert not await second.keep(0)
        now_s = 0.6
        assert await first.keep(9)
        assert not await second.keep(0), "it has just moved"
        now_s = 1.2
        assert not await second.keep(0), "not for a whole term"
        now_s = 1.7
        assert await second.keep(0)
        assert (second.epoch, second.clock) == (2, 9)
        with pytest.raises(Fenced, match="FENCED the lease is 2 "):
            await one.unlink(first.token, [b"p:1"], [5])
        assert (await one.unlink(second.token, [b"p:1"], [5])).answers == [-2]
        first.doubt()
        assert not await first.keep(0)
        with cache.client() as client:
            client.flushall()
        with pytest.raises(Fenced, match="gone"):
            await one.unlink(second.token, [b"p:1"], [5])
        second.doubt()
        assert await second.keep(0)
        assert second.epoch == 3, "an epoch is never used twice"
        await one.close()

    asyncio.run(scenario())


class Address:
    """A TCP address whose server can change, as a name or a virtual address does in a failover."""

    def __init__(self, port: int) -> None:
        self.upstream = port
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection("127.0.0.1", self.upstream)
        for source, sink in ((reader, ours), (theirs, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @staticmethod
    async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()

    async def move(self, port: int) -> None:
        """Cuts every connection; new ones go to another server."""
        self.upstream = port
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield f"redis://127.0.0.1:{self.port}/0"
        finally:
            server.close()
            await self.move(0)


def test_a_failover_is_noticed(cache: RedisProcess, tmp_path: Path) -> None:
    """The replica takes the primary's place: its order is learnt, L goes on, a replica is no cache."""

    async def scenario(replica: RedisProcess) -> None:
        with cache.client() as client, replica.client() as other:
            other.config_set("maxmemory", 64 * MB)
            other.replicaof("127.0.0.1", str(cache.port))
            address = Address(cache.port)
            async with address.open() as url, sidecar(url) as it, it.reporter() as reporter:
                writes = [write(n, 1_000, 1_000 + n, n) for n in range(4_000)]
                store(client, writes)
                await reporter.report([w.event() for w in writes])
                squeeze(client)
                clock = (await it.until(settled)).clock
                assert client.wait(1, 10_000) == 1
                before = managed(client)
                await address.move(replica.port)
                await it.until_ready(False)
                standing_by = Store(replica.url, 1_000, b"p:")
                with pytest.raises(UserError, match="is a slave; a sidecar evicts from the primary"):
                    await standing_by.verify()
                await standing_by.close()
                other.replicaof("NO", "ONE")
                await it.until_ready()
                stats = await it.stats()
                assert (stats.rebuilt, stats.entries) == (len(before), len(before))
                assert stats.clock >= clock
                again = write("new", 100, 5_000, 9_000, clock=stats.clock)
                store(other, [again])
                await reporter.report([again.event()])
                assert key("new") in {entry.key for entry in await it.order(1_000)} | managed(other)
                squeeze(other)
                await it.until(lambda s: s.evicted > stats.evicted and settled(s))
                assert managed(client) == before, "the old primary is left alone"
                assert other.exists(LEASE)

    with running(cache.flavour, tmp_path) as replica:
        asyncio.run(scenario(replica))
