"""The Report stream: what it answers, what it refuses, and when it asks for less."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc
import pytest
from eviction.sidecar import hit, key, sidecar, write
from redis_process import RedisProcess

from frugalads.eviction.v1 import eviction_pb2
from services.eviction.config import EvictionConfig, checked
from services.eviction.reports import MAX_STREAMS
from services.runtime.errors import ConfigError

Events = Sequence[eviction_pb2.Event]


@pytest.fixture
def url(valkey_server: RedisProcess) -> str:
    with valkey_server.client() as client:
        client.config_set("maxmemory", 64 << 20)
    return valkey_server.url


def changed(**fields: object) -> eviction_pb2.Event:
    event = write(1, 10, 5, 1).event()
    for name, value in fields.items():
        setattr(event, name, value)
    return event


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([], "events: must be 1..1000 events, got 0"),
        ([hit(1)] * 1001, "events: must be 1..1000 events, got 1001"),
        ([hit(1), changed(kind=0)], "events[1].kind: must be ADMIT, HIT or REFRESH, got 0"),
        ([changed(kind=9)], "events[0].kind: must be ADMIT, HIT or REFRESH, got 9"),
        ([changed(key=b"")], "events[0].key: must be under the managed prefix 'frugalads:list:', got b''"),
        ([changed(key=b"other:1")], "events[0].key: must be under the managed prefix"),
        ([changed(key=key("x" * 600))], "events[0].key: must be at most 512 bytes"),
        ([changed(size_bytes=-1)], "events[0].size_bytes: must be in 0..1099511627776, got -1"),
        ([changed(cost_us=2**40 + 1)], "events[0].cost_us: must be in 0..1099511627776, got 1099511627777"),
        (
            [changed(expire_at_ms=0)],
            "events[0].expire_at_ms: must be in 4102444800000..9007199254740991, got 0",
        ),
        ([changed(expire_at_ms=2**53)], "events[0].expire_at_ms: must be in"),
        (
            [changed(size_bytes=-1, cost_us=-2)],
            "events[0].size_bytes: must be in 0..1099511627776, got -1; events[0].cost_us: must be in",
        ),
    ],
)
def test_a_malformed_batch_is_refused_whole(
    url: str, events: Sequence[eviction_pb2.Event], said: str
) -> None:
    """It names field, value and limit; nothing of it is applied, and the other streams go on."""

    async def scenario() -> None:
        async with sidecar(url) as it, it.reporter() as other, it.reporter() as reporter:
            await reporter.send([write("good", 10, 5, 1).event(), *events] if 0 < len(events) < 9 else events)
            if 0 < len(events) < 9:
                expected = said.replace("events[1]", "events[2]").replace("events[0]", "events[1]")
            else:
                expected = said
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await reporter.read()
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert expected in str(caught.value.details())
            await other.report([write("other", 10, 5, 2).event()])
            assert [e.key for e in await it.order()] == [key("other")]

    asyncio.run(scenario())


def test_batches_are_acknowledged_one_by_one_with_the_clock(url: str) -> None:
    async def scenario() -> None:
        async with sidecar(url) as it:
            call = it.stub.Report()
            responses = aiter(call)
            first = await anext(responses)
            assert (first.acknowledged_batch, first.clock) == (0, 0), "the clock comes before any report"
            for batch in (1, 2, 7):
                events = [write(batch, 10, 5, batch).event()]
                await call.write(eviction_pb2.ReportRequest(batch=batch, events=events))
            await call.done_writing()
            acknowledged = [response.acknowledged_batch async for response in responses]
            assert sorted(set(acknowledged)) == [1, 2, 7]
            assert acknowledged == sorted(acknowledged)
            assert await call.code() is grpc.StatusCode.OK

    asyncio.run(scenario())


def test_batch_numbers_must_rise(url: str) -> None:
    async def scenario() -> None:
        async with sidecar(url) as it:
            call = it.stub.Report()
            for _ in range(2):
                await call.write(eviction_pb2.ReportRequest(batch=3, events=[hit(1)]))
            with pytest.raises(grpc.aio.AioRpcError, match="batch: must be above 3"):
                async for _ in call:
                    pass

    asyncio.run(scenario())


def test_a_flood_is_told_to_slow_down_and_released_afterwards(url: str) -> None:
    async def scenario() -> None:
        async with sidecar(url) as it:
            batch = [hit(n) for n in range(1_000)]
            asked = 0

            async def flood() -> None:
                nonlocal asked
                async with it.reporter() as reporter:

                    async def write_all() -> None:
                        for _ in range(60):
                            await reporter.send(batch)

                    writing = asyncio.create_task(write_all())
                    while reporter.acknowledged < 60:
                        await reporter.read()
                        asked = max(asked, reporter.max_events_per_s)
                    await writing

            await asyncio.gather(*(flood() for _ in range(4)))
            assert asked > 100
            async with it.reporter() as reporter:
                end = asyncio.get_running_loop().time() + 10
                while reporter.max_events_per_s or reporter.acknowledged < 1:
                    await reporter.report([hit(1)])
                    assert asyncio.get_running_loop().time() < end
                    await asyncio.sleep(0.05)
            assert (await it.stats()).events >= 240_000

    asyncio.run(scenario())


def test_streams_are_bounded(url: str) -> None:
    async def scenario() -> None:
        async with sidecar(url) as it:
            calls = [it.stub.Report() for _ in range(MAX_STREAMS)]
            for call in calls:
                await call.read()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await it.stub.Report().read()
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            calls.pop().cancel()
            for _ in range(200):
                try:
                    await it.stub.Report().read()
                    break
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.01)
            else:
                raise AssertionError("a place was not given back")

    asyncio.run(scenario())


@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_get_order_has_a_limit(url: str, limit: int) -> None:
    async def scenario() -> None:
        async with sidecar(url) as it:
            with pytest.raises(grpc.aio.AioRpcError, match=r"limit: must be in 1\.\.1000"):
                await it.order(limit)

    asyncio.run(scenario())


def test_options_must_fit_each_other() -> None:
    with pytest.raises(ConfigError, match=r"low_watermark 0\.9 must be below high_watermark 0\.9"):
        checked(EvictionConfig(low_watermark=0.9, high_watermark=0.9))
    with pytest.raises(ConfigError, match="key_prefix ''"):
        checked(EvictionConfig(key_prefix=""))


def test_bytes_that_are_no_report_end_their_stream_with_a_clear_error(url: str) -> None:
    async def scenario() -> None:
        async with sidecar(url) as running, grpc.aio.insecure_channel(running.target) as channel:
            call = channel.stream_stream("/frugalads.eviction.v1.EvictionService/Report")(iter([b"\xff\xff"]))

            async def to_the_end() -> None:
                while await call.read() is not grpc.aio.EOF:
                    pass

            with pytest.raises(grpc.aio.AioRpcError, match="must be an encoded message") as caught:
                await to_the_end()
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    asyncio.run(scenario())
