import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from scoring_stand_ins import Upstreams, eventually

from frugalads.eviction.v1 import eviction_pb2
from services.core.eviction.priority import priority_of
from services.core.eviction.rules import DEFAULT
from services.runtime import logs
from services.runtime.channels import open_channel
from services.runtime.metrics import Metrics
from services.scoring.cache import Written
from services.scoring.reporter import QUEUE_EVENTS, Reporter

ADMIT, HIT, REFRESH = (
    eviction_pb2.EVENT_KIND_ADMIT,
    eviction_pb2.EVENT_KIND_HIT,
    eviction_pb2.EVENT_KIND_REFRESH,
)


@asynccontextmanager
async def reporting() -> AsyncIterator[tuple[Reporter, Upstreams, Metrics]]:
    upstreams = Upstreams()
    await upstreams.start("eviction")
    metrics = Metrics("scoring")
    channel = open_channel(upstreams.target("eviction"), None, 1 << 20)
    reporter = Reporter(channel, metrics, logs.logger("scoring"))
    await reporter.start()
    try:
        yield reporter, upstreams, metrics
    finally:
        await reporter.stop()
        await channel.close()
        await upstreams.stop_all()


def test_writes_and_hits_arrive_in_order() -> None:
    async def scenario() -> None:
        async with reporting() as (reporter, upstreams, _):
            first = reporter.priority(b"k", 700)
            reporter.written(Written(b"k", 900, is_new=True), 700, first)
            reporter.hit(b"k")
            second = reporter.priority(b"k", 800)
            reporter.written(Written(b"k", 950, is_new=False), 800, second)
            await eventually(lambda: len(upstreams.eviction.events) == 3)
            events = upstreams.eviction.events
            assert [e.kind for e in events] == [ADMIT, HIT, REFRESH]
            assert (events[0].key, events[0].size_bytes, events[0].cost_us) == (b"k", 900, 700)
            assert second.sequence > first.sequence
            assert events[2].sequence == second.sequence
            assert events[2].expire_at_ms == second.expire_at_ms
            assert [b.batch for b in upstreams.eviction.batches] == list(
                range(1, len(upstreams.eviction.batches) + 1)
            )

    asyncio.run(scenario())


def test_priorities_start_from_the_last_clock_which_never_falls() -> None:
    async def scenario() -> None:
        async with reporting() as (reporter, upstreams, _):
            worth = priority_of(reporter.priority(b"k", 10_000).expire_at_ms)
            assert worth == DEFAULT.priority(0, 10_000, 1_024)
            upstreams.eviction.clock = 5000
            reporter.hit(b"k")
            await eventually(lambda: reporter.clock == 5000)
            assert priority_of(reporter.priority(b"k", 10_000).expire_at_ms) == 5000 + worth
            upstreams.eviction.clock = 4000
            reporter.hit(b"k")
            await eventually(lambda: len(upstreams.eviction.events) == 2)
            assert reporter.clock == 5000

    asyncio.run(scenario())


def test_the_stream_is_opened_again_when_the_sidecar_comes_back() -> None:
    async def scenario() -> None:
        async with reporting() as (reporter, upstreams, _):
            upstreams.eviction.clock = 7
            reporter.hit(b"a")
            await eventually(lambda: reporter.clock == 7)
            await upstreams.stop("eviction")
            reporter.hit(b"b")
            assert reporter.clock == 7
            await upstreams.start("eviction")
            async with asyncio.timeout(10):
                while b"c" not in [e.key for e in upstreams.eviction.events]:
                    reporter.hit(b"c")
                    await asyncio.sleep(0.05)
            assert upstreams.eviction.streams >= 2

    asyncio.run(scenario())


def test_a_dead_sidecar_costs_bounded_memory_and_the_newest_writes_are_kept() -> None:
    async def scenario() -> None:
        metrics = Metrics("scoring")
        channel = grpc.aio.insecure_channel("127.0.0.1:1")
        reporter = Reporter(channel, metrics, logs.logger("scoring"))
        for i in range(3 * QUEUE_EVENTS):
            reporter.written(Written(b"%d" % i, 1, is_new=True), 1, reporter.priority(b"k", 1))
        assert len(reporter._queue) == QUEUE_EVENTS
        assert reporter._queue[-1].key == b"%d" % (3 * QUEUE_EVENTS - 1)
        dropped = metrics.registry.get_sample_value("frugalads_scoring_events_dropped_total")
        assert dropped == 2 * QUEUE_EVENTS
        await channel.close()

    asyncio.run(scenario())


def test_hits_are_thinned_out_before_writes_are_lost() -> None:
    async def scenario() -> None:
        channel = grpc.aio.insecure_channel("127.0.0.1:1")
        reporter = Reporter(channel, Metrics("scoring"), logs.logger("scoring"))
        for _ in range(QUEUE_EVENTS):
            reporter.hit(b"k")
        kept = len(reporter._queue)
        assert QUEUE_EVENTS // 2 < kept < 0.6 * QUEUE_EVENTS
        await channel.close()

    asyncio.run(scenario())


def test_the_sidecars_rate_is_respected() -> None:
    async def scenario() -> None:
        async with reporting() as (reporter, upstreams, _):
            upstreams.eviction.max_events_per_s = 100
            reporter.hit(b"k")
            await eventually(lambda: len(upstreams.eviction.batches) == 1)
            for _ in range(50):
                reporter.hit(b"k")
            await eventually(lambda: len(upstreams.eviction.batches) >= 4)
            assert all(len(batch.events) <= 5 for batch in upstreams.eviction.batches[2:])

    asyncio.run(scenario())


def test_rule_overhead_and_frequencies_enter_the_priority() -> None:
    async def scenario() -> None:
        async with reporting() as (reporter, upstreams, _):
            upstreams.eviction.rule = eviction_pb2.PriorityRule(
                scale=3, cost_power=1, size_power=1, frequency_power=2, overhead_bytes=76
            )
            upstreams.eviction.hints = {b"hot": 5}
            reporter.hit(b"hot")
            await eventually(lambda: b"hot" in reporter._frequencies)
            assert priority_of(reporter.priority(b"cold", 110_000).expire_at_ms) == 3 * 100
            assert priority_of(reporter.priority(b"hot", 110_000).expire_at_ms) == 3 * 100 * 25

    asyncio.run(scenario())


def test_sizes_follow_what_was_written() -> None:
    reporter = Reporter(None, Metrics("scoring"), logs.logger("scoring"))
    for _ in range(2_000):
        reporter.written(Written(b"k", 50_000, is_new=True), 1, reporter.priority(b"k", 1))
    priority = priority_of(reporter.priority(b"k", 10**6).expire_at_ms)
    assert priority == pytest.approx(DEFAULT.priority(0, 10**6, 50_000), rel=0.001)


def test_hints_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.scoring.reporter._HINTED_KEYS", 10)

    async def scenario() -> None:
        async with reporting() as (reporter, upstreams, _):
            for n in range(30):
                upstreams.eviction.hints = {b"%d" % n: 2}
                reporter.hit(b"k")
                await eventually(lambda n=n: b"%d" % n in reporter._frequencies)  # type: ignore[misc]
            assert list(reporter._frequencies) == [b"%d" % n for n in range(20, 30)]

    asyncio.run(scenario())


def test_without_a_sidecar_priorities_are_what_entries_are_worth() -> None:
    async def scenario() -> None:
        reporter = Reporter(None, Metrics("scoring"), logs.logger("scoring"))
        await reporter.start()
        reporter.hit(b"k")
        assert len(reporter._queue) == 0
        priority = priority_of(reporter.priority(b"k", 123_000).expire_at_ms)
        assert priority == DEFAULT.priority(0, 123_000, 1_024)
        await reporter.stop()

    asyncio.run(scenario())
