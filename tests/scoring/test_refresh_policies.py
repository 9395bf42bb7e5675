"""The refresh policies and personal keys in the service: what a click changes, in this process and others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis_process import RedisProcess
from scoring_stand_ins import World, eventually, until, urls, world

from frugalads.scoring.v1 import scoring_pb2
from services.core.query import fingerprint
from services.runtime.redis_client import connect
from services.scoring.click_token import Shown
from services.scoring.state import EARNING, State

HIT, MISS = scoring_pb2.CACHE_STATE_HIT, scoring_pb2.CACHE_STATE_MISS
REFRESHED = scoring_pb2.CACHE_STATE_REFRESHED
QUERY = "laser printer toner"
HEAD = fingerprint(QUERY)[:8]
DAY_MS = 24 * 3600 * 1000


def run(server: RedisProcess, scenario: Callable[[World], Awaitable[None]], **options: Any) -> None:
    async def inside() -> None:
        async with world(*urls(server), **options) as made:
            await scenario(made)

    asyncio.run(inside())


async def ask(made: World, **user: Any) -> Any:
    request = scoring_pb2.RankAdsRequest(query=QUERY, slots=4, user=scoring_pb2.User(**user))
    return await made.stub.RankAds(request, timeout=10)


async def click(made: World, response: Any) -> None:
    token = response.ads[0].click_token
    clicks = [scoring_pb2.Click(click_id=token.hex()[-40:], click_token=token)]
    await made.stub.RecordClicks(scoring_pb2.RecordClicksRequest(clicks=clicks), timeout=10)
    await eventually(lambda: made.replica.earning == {HEAD})


@pytest.mark.parametrize("policy", ["none", "fixed", "two_level", "adaptive", "adaptive_ttl", "xfetch"])
def test_the_configured_policy_serves(valkey_server: RedisProcess, policy: str) -> None:
    async def scenario(made: World) -> None:
        states = [(await ask(made)).cache_state for _ in range(4)]
        assert states == [MISS, HIT, REFRESHED if policy == "fixed" else HIT, HIT]
        info = await made.stub.GetInfo(scoring_pb2.GetInfoRequest(), timeout=10)
        assert info.refresh_policy == policy

    run(valkey_server, scenario, refresh_policy=policy, refresh_every=2)


@pytest.mark.parametrize("policy", ["two_level", "adaptive"])
def test_a_query_that_earns_is_kept_fresh(redis_server: RedisProcess, policy: str) -> None:
    async def scenario(made: World) -> None:
        response = await ask(made)
        assert (await ask(made)).cache_state == HIT
        await click(made, response)
        assert (await ask(made)).cache_state == REFRESHED

    run(redis_server, scenario, refresh_policy=policy)


def test_adaptive_refresh_slows_down_where_refreshes_change_nothing(valkey_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        await click(made, await ask(made))
        states = [(await ask(made)).cache_state for _ in range(9)]
        assert states == [REFRESHED, HIT, REFRESHED, HIT, HIT, REFRESHED, HIT, HIT, HIT]

    run(valkey_server, scenario, refresh_policy="adaptive")


def test_lists_expire_by_age(valkey_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        await until(lambda: made.answers(REFRESHED))

    for policy in ("adaptive_ttl", "xfetch"):
        run(valkey_server, scenario, refresh_policy=policy, refresh_ttl_ms=1)
        valkey_server.client().flushall()


def test_a_click_that_another_process_recorded_counts(valkey_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        await ask(made)
        async with world(*urls(valkey_server), ads=0, refresh_policy="two_level") as other:
            response = await ask(other)
            assert response.cache_state == HIT
            await click(made, response)
            await eventually(lambda: other.replica.earning == {HEAD})
            assert (await ask(other)).cache_state == REFRESHED
        async with world(*urls(valkey_server), ads=0, refresh_policy="two_level") as later:
            assert later.replica.earning == {HEAD}

    run(valkey_server, scenario)


def test_everybody_has_lists_of_their_own_with_personal_keys(valkey_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        users: list[dict[str, Any]] = [{}, {"location": "US-CA"}, {"gender": 1}, {"age_band": 1}]
        assert [(await ask(made, **user)).cache_state for user in users] == [MISS] * 4
        assert [(await ask(made, **user)).cache_state for user in users] == [HIT] * 4
        assert (await ask(made, location="US-CA", device=2)).cache_state == HIT

    run(valkey_server, scenario, cache_key="all", refresh_every=1000)


def test_selective_keys_are_personal_once_the_query_earns(valkey_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        states = [await ask(made, location=place) for place in ("US-CA", "US-NY", "US-CA")]
        assert [response.cache_state for response in states] == [MISS, HIT, HIT]
        await click(made, states[1])
        states = [await ask(made, location=place) for place in ("US-CA", "US-NY", "US-CA")]
        assert [response.cache_state for response in states] == [MISS, MISS, HIT]
        await click(
            made, states[2]
        )  # a click on a personal list is the phrase's: `click` sees one that earns

    run(valkey_server, scenario, cache_key="selective", refresh_every=1000)


def test_queries_without_a_click_for_thirty_days_earn_no_more(redis_server: RedisProcess) -> None:
    async def scenario() -> None:
        store = State(connect(redis_server.url, 3000, 4))
        heads = [bytes([i]) * 8 for i in range(3)]
        for i, day in enumerate((0, 1, 30)):
            shown = Shown(bytes([i]) * 16, 1, 5, 0, heads[i], "Adv 1")
            assert await store.record_clicks([(str(i), shown)], day * DAY_MS + 1) == [True]
        assert {query async for query in store.earning()} == set(heads)
        shown = Shown(b"x" * 16, 1, 5, 0, heads[2], "Adv 1")
        await store.record_clicks([("x", shown)], 30 * DAY_MS + 2)
        assert {query async for query in store.earning()} == set(heads[1:])
        assert redis_server.client().zcard(EARNING) == 2
        await store.close()

    asyncio.run(scenario())
