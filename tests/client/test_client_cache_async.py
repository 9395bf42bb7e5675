"""The asyncio cache on a real server."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from redis_process import RedisProcess

from frugalads.client.cache import AsyncCache, HashField
from frugalads.client.cache.entries import Entry, decode, encode
from frugalads.client.cache.priorities import BASE_MS


class Computation:
    """Counts its calls; each waits for `open` and then returns `value` or raises it."""

    def __init__(self, value: Any = b"value", busy_s: float = 0.0) -> None:
        self.value = value
        self.busy_s = busy_s
        self.calls = 0
        self.running = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self) -> bytes:
        self.calls += 1
        self.running.set()
        ends_s = time.perf_counter() + self.busy_s
        await self.open.wait()
        while time.perf_counter() < ends_s:
            pass
        if isinstance(self.value, BaseException):
            raise self.value
        assert isinstance(self.value, bytes)
        return self.value


def cache(server: RedisProcess, **options: Any) -> AsyncCache:
    return AsyncCache(server.url, "p:", **{"timeout_s": 5.0, **options})


def held(server: RedisProcess) -> Entry | None:
    with server.client() as client:
        value = client.get("p:k")
        assert value is None or isinstance(value, bytes)
        return decode(value, b"p:k")


def put(server: RedisProcess, age_s: float, compute_s: float) -> None:
    entry = Entry(b"old", round((time.time() - age_s) * 1000), 7, round(compute_s * 1e6))
    with server.client() as client:
        client.set("p:k", encode(entry, b"p:k"), pxat=BASE_MS)


def test_a_value_is_computed_once_and_carries_what_it_cost(redis_server: RedisProcess) -> None:
    async def scenario() -> None:
        compute = Computation(busy_s=0.02)
        async with cache(redis_server) as made:
            assert [await made.get_or_compute("k", compute) for _ in range(3)] == [b"value"] * 3
            entry = held(redis_server)
            assert entry is not None
            assert entry.value == b"value"
            assert entry.cost_us == entry.compute_us >= 20_000
            with redis_server.client() as client:
                client.hset("costs", "report", 5_000_000)
                client.delete("p:k")
            await made.get_or_compute("k", compute, cost=HashField("costs", "report"))
            entry = held(redis_server)
            assert entry is not None
            assert entry.cost_us == 5_000_000 > entry.compute_us
        assert compute.calls == 2

    asyncio.run(scenario())


def test_an_early_refresh_keeps_nobody_waiting(valkey_server: RedisProcess) -> None:
    async def scenario() -> None:
        put(valkey_server, 9.9, 1e12)  # so dear that it is due at any draw
        refresh = Computation(b"new")
        refresh.open.clear()
        async with cache(valkey_server, ttl_s=100_000) as made:
            assert [await made.get_or_compute("k", refresh) for _ in range(20)] == [b"old"] * 20
            put(valkey_server, 200_000, 1)  # its time ends while the refresh runs
            late = asyncio.create_task(made.get_or_compute("k", Computation(b"never")))
            await refresh.running.wait()
            refresh.open.set()
            assert await late == b"new"
            assert made.counts | {"refreshed": 1, "computed": 0} == made.counts
        assert refresh.calls == 1

    asyncio.run(scenario())


def test_a_computation_goes_on_when_all_its_callers_have_gone(valkey_server: RedisProcess) -> None:
    async def scenario() -> None:
        compute, never = Computation(), Computation(b"never")
        compute.open.clear()
        async with cache(valkey_server) as made:
            callers = [asyncio.create_task(made.get_or_compute("k", compute)) for _ in range(3)]
            await compute.running.wait()
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
            late = asyncio.create_task(made.get_or_compute("k", never))
            await asyncio.sleep(0)
            compute.open.set()
            assert await late == b"value"
            failing = Computation(ValueError("no"))  # and a failure that nobody sees is no complaint either
            caller = asyncio.create_task(made.get_or_compute("other", failing))
            await failing.running.wait()
            caller.cancel()
        assert (compute.calls, never.calls) == (1, 0)

    asyncio.run(scenario())


def test_a_failure_reaches_all_who_wait_and_leaves_no_mark(valkey_server: RedisProcess) -> None:
    async def scenario() -> None:
        async with cache(valkey_server) as made:
            failing = Computation(ValueError("no"))
            outcomes = await asyncio.gather(
                *(made.get_or_compute("k", failing) for _ in range(8)), return_exceptions=True
            )
            assert all(isinstance(outcome, ValueError) for outcome in outcomes)
            assert failing.calls == 1
            assert await made.get_or_compute("k", Computation()) == b"value"

            async def nested() -> bytes:
                return await made.get_or_compute("self", Computation())

            with pytest.raises(RuntimeError, match="asks for itself"):
                await made.get_or_compute("self", nested)

    asyncio.run(scenario())


def test_without_redis_values_are_computed_and_the_waits_are_bounded(valkey_server: RedisProcess) -> None:
    async def scenario() -> None:
        compute = Computation()
        async with cache(valkey_server, timeout_s=0.1) as made:
            await made.get_or_compute("k", compute)
            valkey_server.pause()
            began_s = time.monotonic()
            for _ in range(200):
                assert await made.get_or_compute("k", compute) == b"value"
            assert time.monotonic() - began_s < 20, "one timeout each half second, not each call"
            assert made.counts["spared"] > 100
            valkey_server.resume()
            while not made.counts["hits"]:
                assert await made.get_or_compute("k", compute) == b"value"
        with pytest.raises(RuntimeError, match="closed"):
            await made.get_or_compute("k", compute)

    asyncio.run(scenario())


def test_closing_ends_what_runs(valkey_server: RedisProcess) -> None:
    async def scenario() -> None:
        stuck = Computation()
        stuck.open.clear()
        made = cache(valkey_server)
        caller = asyncio.create_task(made.get_or_compute("k", stuck))
        await stuck.running.wait()
        await made.close()
        with pytest.raises(asyncio.CancelledError):
            await caller

    asyncio.run(scenario())
