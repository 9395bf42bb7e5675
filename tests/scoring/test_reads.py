from __future__ import annotations

import asyncio

import pytest
from redis_process import RedisProcess

from services.runtime.redis_client import connect
from services.scoring.reads import SharedReads


class Store:
    """A store in memory that counts what it is asked, and fails or waits when told to."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.gate: asyncio.Event | None = None
        self.fault: Exception | None = None

    async def fetch(self, keys: list[bytes]) -> list[bytes | None]:
        self.batches.append(len(keys))
        if self.gate is not None:
            await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        return [None if key.endswith(b"1") else b"v" + key for key in keys]


def test_reads_that_queue_share_a_batch_and_each_gets_its_own_value() -> None:
    async def scenario() -> None:
        store = Store()
        reads = SharedReads(store.fetch)
        keys = [str(i).encode() for i in range(150)]
        values = await asyncio.gather(*[reads.get(key) for key in keys])
        assert values == [None if key.endswith(b"1") else b"v" + key for key in keys]
        assert len(store.batches) == 3
        assert max(store.batches) == 64
        assert sum(store.batches) == 150
        assert await reads.get(b"0") == b"v0"
        assert store.batches[3:] == [1]

    asyncio.run(scenario())


def test_a_failure_reaches_every_caller_of_its_batch_and_no_other() -> None:
    async def scenario() -> None:
        store = Store()
        store.fault = OSError("gone")
        reads = SharedReads(store.fetch)
        failed = await asyncio.gather(*[reads.get(b"k") for _ in range(3)], return_exceptions=True)
        assert [str(error) for error in failed] == ["gone"] * 3
        store.fault = None
        assert await reads.get(b"k") == b"vk"

    asyncio.run(scenario())


def test_what_queues_behind_a_failure_does_not_wait_for_the_next_one() -> None:
    async def scenario() -> None:
        store = Store()
        store.gate, store.fault = asyncio.Event(), OSError("silent")
        reads = SharedReads(store.fetch)
        tasks = [asyncio.create_task(reads.get(b"k")) for _ in range(500)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        store.gate.set()
        failed = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(error, OSError) for error in failed)
        assert len(store.batches) <= 2

    asyncio.run(scenario())


def test_a_close_ends_every_read() -> None:
    async def scenario() -> None:
        store = Store()
        store.gate = asyncio.Event()
        reads = SharedReads(store.fetch)
        tasks = [asyncio.create_task(reads.get(b"k")) for _ in range(200)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await reads.close()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(error, ConnectionError) for error in ended)

    asyncio.run(scenario())


def test_cancelled_callers_leave_the_others_their_values() -> None:
    async def scenario() -> None:
        store = Store()
        store.gate = asyncio.Event()
        reads = SharedReads(store.fetch)
        tasks = [asyncio.create_task(reads.get(str(i).encode())) for i in range(20, 30)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        tasks[2].cancel()
        store.gate.set()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(done[0], asyncio.CancelledError)
        assert isinstance(done[2], asyncio.CancelledError)
        assert done[3:] == [f"v{i}".encode() for i in range(23, 30)]
        assert sum(store.batches) <= 10

    asyncio.run(scenario())


@pytest.mark.parametrize("rounds", [20])
def test_against_a_real_server_no_value_ever_meets_another_key(
    redis_server: RedisProcess, rounds: int
) -> None:
    with redis_server.client() as client:
        client.mset({f"k{i}": f"v{i}" for i in range(50)})

    async def scenario() -> None:
        client = connect(redis_server.url, 2000, 8)
        reads = SharedReads(client.mget)
        for turn in range(rounds):
            tasks = [asyncio.create_task(reads.get(f"k{i}".encode())) for i in range(50)]
            for _ in range(turn % 5):
                await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert done[1::2] == [f"v{i}".encode() for i in range(1, 50, 2)]
        await client.aclose()

    asyncio.run(scenario())
