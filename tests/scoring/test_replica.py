import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis_process import RedisProcess, running
from scoring_stand_ins import ad, eventually, until

from frugalads.scoring.v1 import scoring_pb2
from services.runtime import logs
from services.runtime.errors import Unavailable
from services.runtime.metrics import Metrics
from services.runtime.redis_client import connect
from services.scoring import state as state_module
from services.scoring.click_token import Shown
from services.scoring.replica import Replica
from services.scoring.state import CHANGES, State, Update

DAY_MS = 24 * 3600 * 1000
NOON_MS = 20_000 * DAY_MS + DAY_MS // 2


class Wall:
    """A wall clock that a test turns."""

    def __init__(self) -> None:
        self.now_ms = NOON_MS

    def __call__(self) -> int:
        return self.now_ms


def stored(ad_id: int, bid_micros: int = 1_000_000, **fields: Any) -> Update:
    return Update("ad", ad_id, ad(ad_id, **fields).SerializeToString(), bid_micros, 0)


def budget(advertiser: str, usd: float) -> Update:
    message = scoring_pb2.Advertiser(advertiser=advertiser, daily_budget_usd=usd)
    return Update("advertiser", advertiser, message.SerializeToString())


def click(number: int, micros: int, advertiser: str = "Adv 1") -> tuple[str, Shown]:
    return str(number), Shown(number.to_bytes(16, "big"), 1, micros, NOON_MS, b"f" * 8, advertiser)


@asynccontextmanager
async def following(
    server: RedisProcess, wall: Wall | None = None, timeout_ms: int = 3000
) -> AsyncIterator[tuple[State, Replica, Metrics]]:
    state = State(connect(server.url, timeout_ms, 4))
    metrics = Metrics("scoring")
    replica = Replica(state, metrics, logs.logger("scoring"), wall or Wall())
    await replica.start()
    try:
        yield state, replica, metrics
    finally:
        await replica.stop()
        await state.close()


def loads(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value("frugalads_scoring_replica_loads_total") or 0.0


def test_what_was_there_is_loaded_and_what_comes_is_followed(redis_server: RedisProcess) -> None:
    async def scenario() -> None:
        state = State(connect(redis_server.url, 3000, 4))
        await state.update([stored(i) for i in range(1, 1001)])
        await state.update(
            [Update("change", 2, bid_micros=7), Update("change", 3, paused=1), budget("Adv 5", 1)]
        )
        await state.record_clicks([click(1, 1_000_000, "Adv 5")], NOON_MS)
        async with following(redis_server) as (_, replica, metrics):
            assert len(replica.ads) == 1000
            assert replica.ads[1].title == "Ad 1"
            assert replica.ads[2].bid_micros == 7
            assert replica.ads[3].paused
            assert not replica.ads[5].account.open
            await state.update([stored(i) for i in range(1001, 2500)] + [Update("delete", 1)])
            await eventually(lambda: len(replica.ads) == 2498)
            assert loads(metrics) == 1
            assert not replica.is_stale
            assert replica.age_ms < 1000
        await state.close()

    asyncio.run(scenario())


def test_budgets_begin_anew_at_midnight_utc(valkey_server: RedisProcess) -> None:
    async def scenario() -> None:
        wall = Wall()
        async with following(valkey_server, wall) as (state, replica, _):
            await state.update([stored(1), budget("Adv 1", 1)])
            await state.record_clicks([click(1, 999_999)], wall())
            await eventually(
                lambda: 1 in replica.ads and replica.ads[1].account.spent_today_micros == 999_999
            )
            assert replica.ads[1].account.open
            await state.record_clicks([click(2, 1)], wall())
            await eventually(lambda: not replica.ads[1].account.open)
            wall.now_ms += DAY_MS
            await eventually(lambda: replica.ads[1].account.open)
            assert replica.ads[1].account.spent_today_micros == 0

    asyncio.run(scenario())


def test_the_day_turns_with_the_first_charge_of_a_process_whose_clock_is_ahead(
    valkey_server: RedisProcess,
) -> None:
    async def scenario() -> None:
        wall = Wall()
        wall.now_ms += DAY_MS // 2 - 60_000  # a minute before midnight
        async with following(valkey_server, wall) as (state, replica, _):
            await state.update([stored(1), budget("Adv 1", 1)])
            await state.record_clicks([click(1, 2_000_000)], NOON_MS)
            await eventually(lambda: 1 in replica.ads and not replica.ads[1].account.open)
            await state.record_clicks([click(2, 5)], wall() + 120_000)
            await eventually(lambda: replica.ads[1].account.open)
            await state.record_clicks([click(3, 9)], NOON_MS)  # a straggler of yesterday
            await state.update([stored(2)])
            await eventually(lambda: 2 in replica.ads)
            assert replica.ads[1].account.spent_today_micros == 5

    asyncio.run(scenario())


def test_a_clock_that_is_wrong_by_a_day_gives_nobody_a_new_budget(valkey_server: RedisProcess) -> None:
    async def scenario() -> None:
        async with following(valkey_server) as (state, replica, _):
            await state.update([stored(1), budget("Adv 1", 1)])
            await state.record_clicks([click(1, 2_000_000)], NOON_MS)
            await state.record_clicks([click(2, 5)], NOON_MS + DAY_MS)
            await state.update([stored(2)])
            await eventually(lambda: 2 in replica.ads)
            account = replica.ads[1].account
            assert (account.open, account.spent_today_micros) == (False, 2_000_000)

    asyncio.run(scenario())


def test_a_trimmed_stream_is_followed_by_a_full_load(
    valkey_server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "_STREAM_LENGTH", 10)

    async def scenario() -> None:
        async with following(valkey_server) as (state, replica, metrics):
            await state.update([stored(i) for i in range(1, 3000)])
            await eventually(lambda: len(replica.ads) == 2999)
            assert loads(metrics) == 2

    asyncio.run(scenario())


def test_a_flushed_and_refounded_state_is_loaded_again(valkey_server: RedisProcess) -> None:
    async def scenario() -> None:
        async with following(valkey_server) as (state, replica, _):
            await state.update([stored(1), stored(2)])
            await eventually(lambda: len(replica.ads) == 2)
            valkey_server.client().flushall()
            await eventually(lambda: len(replica.ads) == 0)
            await state.update([stored(3)])
            await eventually(lambda: set(replica.ads) == {3})

    asyncio.run(scenario())


def test_a_state_that_lost_its_newest_writes_is_loaded_again(valkey_server: RedisProcess) -> None:
    async def scenario() -> None:
        async with following(valkey_server) as (state, replica, _):
            await state.update([stored(1)])
            await eventually(lambda: 1 in replica.ads)
            valkey_server.restart()  # without persistence: everything is lost
            await eventually(lambda: len(replica.ads) == 0)

    asyncio.run(scenario())


def test_a_durable_state_that_restarts_is_followed_again(tmp_path: Any) -> None:
    with running("valkey", tmp_path, ["--appendonly", "yes", "--appendfsync", "always"]) as server:

        async def scenario() -> None:
            async with following(server) as (state, replica, _):
                await state.update([stored(1)])
                await eventually(lambda: 1 in replica.ads)
                server.restart()

                async def taken() -> bool:
                    try:
                        await state.update([stored(2)])
                    except Unavailable:  # by a connection that has not noticed
                        return False
                    return True

                await until(taken)
                await eventually(lambda: set(replica.ads) == {1, 2} and not replica.is_stale)

        asyncio.run(scenario())


def test_a_silent_state_leaves_the_copy_and_its_age_tells(valkey_server: RedisProcess) -> None:
    async def scenario() -> None:
        async with following(valkey_server, timeout_ms=300) as (state, replica, _):
            await state.update([stored(1)])
            await eventually(lambda: 1 in replica.ads)
            valkey_server.pause()
            await eventually(lambda: replica.is_stale)
            assert replica.age_ms >= 1000
            assert 1 in replica.ads
            with pytest.raises(Unavailable) as caught:
                await state.update([stored(2)])
            assert caught.value.reason == "STATE_UNAVAILABLE"
            valkey_server.resume()
            await eventually(lambda: not replica.is_stale)

    asyncio.run(scenario())


def test_an_unreadable_change_ages_the_copy_until_it_is_gone(valkey_server: RedisProcess) -> None:
    async def scenario() -> None:
        async with following(valkey_server) as (state, replica, _):
            await state.update([Update("ad", 7, b"\xff no message", 1_000_000, 0)])
            await eventually(lambda: replica.is_stale)
            await state.update([Update("delete", 7)])
            valkey_server.client().xtrim(CHANGES, maxlen=1, approximate=False)
            await eventually(lambda: not replica.is_stale)

    asyncio.run(scenario())


def test_starting_waits_for_the_state(valkey_server: RedisProcess) -> None:
    async def scenario() -> None:
        valkey_server.stop()
        state = State(connect(valkey_server.url, 300, 4))
        replica = Replica(state, Metrics("scoring"), logs.logger("scoring"), Wall())
        starting = asyncio.create_task(replica.start())
        await asyncio.sleep(0.1)
        assert not starting.done()
        assert replica.age_ms > 1000
        valkey_server.start()
        await asyncio.wait_for(starting, 10)
        assert not replica.is_stale
        await replica.stop()
        await state.close()

    asyncio.run(scenario())


def test_a_hundred_thousand_ads_load_in_seconds_while_answers_go_on(valkey_server: RedisProcess) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        state = State(connect(valkey_server.url, 10_000, 4))
        updates = [stored(i, advertiser=f"Adv {i % 200}") for i in range(1, 100_001)]
        for i in range(0, len(updates), 10_000):
            await state.update(updates[i : i + 10_000])
        longest_s, last_s = 0.0, loop.time()

        async def beat() -> None:
            nonlocal longest_s, last_s
            while True:
                last_s = loop.time()
                await asyncio.sleep(0.001)
                longest_s = max(longest_s, loop.time() - last_s)

        heart = asyncio.create_task(beat())
        began_s = loop.time()
        async with following(valkey_server) as (_, replica, _metrics):
            took_s = loop.time() - began_s
            assert len(replica.ads) == 100_000
        heart.cancel()
        assert took_s < 10
        assert longest_s < 0.5
        print(f"100,000 ads loaded in {took_s:.2f} s, longest pause {longest_s * 1000:.0f} ms")
        await state.close()

    asyncio.run(scenario())
