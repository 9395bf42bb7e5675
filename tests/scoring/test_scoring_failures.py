"""What answers are like while something is gone."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from redis_process import RedisProcess, running
from scoring_stand_ins import World, eventually, failure, until, urls, world

from frugalads.scoring.v1 import scoring_pb2
from services.runtime.errors import ConfigError
from services.runtime.server import start_server
from services.scoring.config import ScoringConfig
from services.scoring.server import build

HIT, MISS = scoring_pb2.CACHE_STATE_HIT, scoring_pb2.CACHE_STATE_MISS
BYPASSED = scoring_pb2.CACHE_STATE_BYPASSED
CACHE_UNAVAILABLE = scoring_pb2.DEGRADED_REASON_CACHE_UNAVAILABLE
REFRESH_FAILED = scoring_pb2.DEGRADED_REASON_REFRESH_FAILED
STALE_ADS = scoring_pb2.DEGRADED_REASON_STALE_ADS
UPSTREAM = scoring_pb2.DEGRADED_REASON_UPSTREAM


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[RedisProcess, RedisProcess]]:
    """Cache and state."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "state").mkdir()
    with running("valkey", tmp_path / "cache") as cache, running("valkey", tmp_path / "state") as state:
        yield cache, state


def run(servers: tuple[RedisProcess, RedisProcess], scenario: Any, **options: Any) -> None:
    cache, state = servers

    async def inside() -> None:
        async with world(cache.url, state.url, **options) as made:
            await scenario(made, cache, state)

    asyncio.run(inside())


def ids(response: Any) -> list[int]:
    return [shown.ad_id for shown in response.ads]


async def timed_rank(made: World, query: str = "q") -> tuple[Any, float]:
    began_s = asyncio.get_running_loop().time()
    answer = await made.rank(query)
    return answer, asyncio.get_running_loop().time() - began_s


def test_with_the_cache_gone_every_answer_is_computed(servers: tuple[RedisProcess, RedisProcess]) -> None:
    async def scenario(made: World, cache: RedisProcess, state: RedisProcess) -> None:
        assert (await made.rank()).cache_state == MISS
        cache.stop()
        for _ in range(6):
            answer = await made.rank()
            assert answer.cache_state == BYPASSED
            assert list(answer.degraded_reasons) == [CACHE_UNAVAILABLE]
            assert ids(answer) == [1, 2, 3]
        cache.start()
        await until(lambda: made.answers(HIT))

    run(servers, scenario)


def test_a_silent_cache_costs_no_answer_more_than_its_timeouts(
    servers: tuple[RedisProcess, RedisProcess],
) -> None:
    async def scenario(made: World, cache: RedisProcess, state: RedisProcess) -> None:
        await made.rank()
        cache.pause()
        for _ in range(20):
            answer, took_s = await timed_rank(made)
            assert answer.cache_state == BYPASSED
            assert took_s < 0.5
        _, took_s = await timed_rank(made)
        assert took_s < 0.1  # the breaker is open
        cache.resume()
        await until(lambda: made.answers(HIT))

    run(servers, scenario, cache_timeout_ms=50)


def test_a_busy_event_loop_is_not_a_silent_cache(servers: tuple[RedisProcess, RedisProcess]) -> None:
    async def scenario(made: World, cache: RedisProcess, state: RedisProcess) -> None:
        await made.rank("q")

        async def hog() -> None:
            while True:
                time.sleep(0.03)  # noqa: ASYNC251 - longer than the cache may take, at every turn of the loop
                await asyncio.sleep(0)

        hogging = asyncio.create_task(hog())
        answers = await asyncio.gather(*(made.rank("q") for _ in range(50)))
        hogging.cancel()
        assert [answer.cache_state for answer in answers] == [HIT] * 50

    run(servers, scenario, cache_timeout_ms=20, refresh_every=1000)


def test_with_cache_and_inference_gone_the_error_names_inference(
    servers: tuple[RedisProcess, RedisProcess],
) -> None:
    async def scenario(made: World, cache: RedisProcess, state: RedisProcess) -> None:
        cache.stop()
        await made.upstreams.stop("inference")
        code, info, _ = await failure(made.rank())
        assert (code, info.metadata["dependency"]) == (grpc.StatusCode.UNAVAILABLE, "inference")

    run(servers, scenario)


def test_with_the_state_gone_answers_go_on_marked_stale_and_writes_are_refused(
    servers: tuple[RedisProcess, RedisProcess],
) -> None:
    async def scenario(made: World, cache: RedisProcess, state: RedisProcess) -> None:
        token = (await made.rank()).ads[0].click_token
        state.stop()
        await eventually(lambda: made.replica.is_stale)
        answer = await made.rank()
        assert ids(answer) == [1, 2, 3]
        assert list(answer.degraded_reasons) == [STALE_ADS]
        click = scoring_pb2.Click(click_id="a", click_token=token)
        code, info, _ = await failure(
            made.stub.RecordClicks(scoring_pb2.RecordClicksRequest(clicks=[click]), timeout=10)
        )
        assert (code, info.reason) == (grpc.StatusCode.UNAVAILABLE, "STATE_UNAVAILABLE")
        code, info, _ = await failure(
            made.stub.UpdateAds(scoring_pb2.UpdateAdsRequest(delete_ad_ids=[1]), timeout=10)
        )
        assert (code, info.reason) == (grpc.StatusCode.UNAVAILABLE, "STATE_UNAVAILABLE")

    run(servers, scenario)


def test_with_inference_gone_cached_lists_are_still_served(
    servers: tuple[RedisProcess, RedisProcess],
) -> None:
    async def scenario(made: World, cache: RedisProcess, state: RedisProcess) -> None:
        await made.rank()
        await made.upstreams.stop("inference")
        answers = [await made.rank() for _ in range(8)]
        assert all(a.cache_state == HIT and ids(a) == [1, 2, 3] for a in answers)
        assert [bool(a.degraded_reasons) for a in answers] == [False] * 2 + [True] * 6

    run(servers, scenario, refresh_every=3)


@pytest.mark.parametrize("timeout_s", [0.6, 8])
def test_a_hanging_refresh_costs_its_caller_no_answer(
    servers: tuple[RedisProcess, RedisProcess], timeout_s: float
) -> None:
    async def scenario(made: World, cache: RedisProcess, state: RedisProcess) -> None:
        await made.rank()
        made.inference.embed.open.clear()
        request = scoring_pb2.RankAdsRequest(query="laser printer toner", slots=4)
        began_s = asyncio.get_running_loop().time()
        answer = await made.stub.RankAds(request, timeout=timeout_s)
        assert asyncio.get_running_loop().time() - began_s < min(timeout_s, 1.5)
        assert (answer.cache_state, list(answer.degraded_reasons)) == (HIT, [REFRESH_FAILED])
        made.inference.embed.open.set()
        await until(lambda: made.answers(scoring_pb2.CACHE_STATE_REFRESHED))

    run(servers, scenario, refresh_every=1, compute_timeout_ms=2000)


def test_a_service_known_to_be_down_is_not_waited_for(servers: tuple[RedisProcess, RedisProcess]) -> None:
    async def scenario(made: World, cache: RedisProcess, state: RedisProcess) -> None:
        await made.rank("cached")
        made.inference.embed.open.clear()  # it hangs, as its health probe finds out
        calls = len(made.inference.embed.calls)
        inference = made.running.health.dependencies["inference"]
        await made.upstreams.set_health("inference", serving=False)
        await eventually(lambda: not inference.is_up)
        began_s = asyncio.get_running_loop().time()
        answer = await made.rank("cached")
        assert (answer.cache_state, list(answer.degraded_reasons)) == (HIT, [REFRESH_FAILED, UPSTREAM])
        for _ in range(20):
            code, info, _ = await failure(made.rank("not cached"))
            assert (code, info.reason) == (grpc.StatusCode.UNAVAILABLE, "DEPENDENCY_UNAVAILABLE")
            assert info.metadata["dependency"] == "inference"
        assert asyncio.get_running_loop().time() - began_s < 1
        assert len(made.inference.embed.calls) == calls
        made.inference.embed.open.set()
        await made.upstreams.set_health("inference", serving=True)
        await eventually(lambda: inference.is_up)
        assert (await made.rank("not cached")).cache_state == MISS

    run(servers, scenario, refresh_every=1)


@pytest.mark.parametrize("name", ["inference", "retrieval"])
def test_a_list_reused_while_an_upstream_is_down_says_so(
    servers: tuple[RedisProcess, RedisProcess], name: str
) -> None:
    async def scenario(made: World, cache: RedisProcess, state: RedisProcess) -> None:
        await made.rank("cached")
        assert list((await made.rank("cached")).degraded_reasons) == []
        upstream = made.running.health.dependencies[name]
        await made.upstreams.stop(name)
        await eventually(lambda: not upstream.is_up)
        answer = await made.rank("cached")
        assert (answer.cache_state, list(answer.degraded_reasons)) == (HIT, [UPSTREAM])
        assert answer.ads
        code, info, _ = await failure(made.rank("not cached"))
        assert (code, info.metadata["dependency"]) == (grpc.StatusCode.UNAVAILABLE, name)
        await made.upstreams.start(name)
        await eventually(lambda: upstream.is_up)
        assert list((await made.rank("cached")).degraded_reasons) == []

    run(servers, scenario, refresh_every=1000)


def test_clicks_that_wait_for_a_silent_state_leave_room_for_answers(
    servers: tuple[RedisProcess, RedisProcess],
) -> None:
    async def scenario(made: World, cache: RedisProcess, state: RedisProcess) -> None:
        token = (await made.rank()).ads[0].click_token
        state.pause()
        clicks = [
            asyncio.create_task(
                failure(
                    made.stub.RecordClicks(
                        scoring_pb2.RecordClicksRequest(
                            clicks=[scoring_pb2.Click(click_id=str(i), click_token=token)]
                        ),
                        timeout=10,
                    )
                )
            )
            for i in range(40)
        ]
        await eventually(lambda: sum(click.done() for click in clicks) >= 20)
        assert (await made.rank()).cache_state == HIT
        assert not all(click.done() for click in clicks)
        for code, info, _ in await asyncio.gather(*clicks):
            assert code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
            assert info.reason in ("STATE_UNAVAILABLE", "TOO_MANY_CALLS")
        state.resume()

    run(servers, scenario, max_concurrent=8, state_timeout_ms=1500)


def test_readiness_follows_the_services_that_answers_need(
    servers: tuple[RedisProcess, RedisProcess],
) -> None:
    async def scenario(made: World, cache: RedisProcess, state: RedisProcess) -> None:
        health = health_pb2_grpc.HealthStub(made.channel)
        service = health_pb2.HealthCheckRequest(service="frugalads.scoring.v1.ScoringService")

        async def is_ready() -> bool:
            response = await health.Check(service, timeout=5)
            return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

        async def is_not_ready() -> bool:
            return not await is_ready()

        await until(is_ready)
        await made.upstreams.stop("retrieval")
        await until(is_not_ready)
        await made.upstreams.start("retrieval")
        await until(is_ready)
        cache.stop()
        await made.upstreams.stop("eviction")
        dependencies = made.running.health.dependencies
        await eventually(lambda: not dependencies["cache"].is_up and not dependencies["eviction"].is_up)
        assert await is_ready()

    run(servers, scenario)


def test_a_dead_sidecar_harms_no_answer(valkey_server: RedisProcess) -> None:
    async def scenario() -> None:
        async with world(*urls(valkey_server), eviction_target="") as made:
            assert [(await made.rank()).cache_state for _ in range(2)] == [MISS, HIT]
        async with world(*urls(valkey_server), eviction_target="127.0.0.1:1") as made:
            assert (await made.rank()).cache_state == HIT

    asyncio.run(scenario())


def test_the_sidecar_hears_of_admits_hits_and_refreshes(valkey_server: RedisProcess) -> None:
    async def scenario() -> None:
        async with world(*urls(valkey_server), refresh_every=2) as made:
            for _ in range(3):
                await made.rank()
            await eventually(lambda: len(made.eviction.events) == 3)
            admit, hit, refresh = made.eviction.events
            assert (admit.kind, hit.kind, refresh.kind) == (1, 2, 3)
            assert admit.key == hit.key == refresh.key
            assert admit.key.startswith(b"frugalads:list:")
            assert valkey_server.client().pexpiretime(refresh.key) == refresh.expire_at_ms
            assert valkey_server.client().strlen(refresh.key) + len(refresh.key) == refresh.size_bytes
            assert refresh.cost_us > 0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"click_secret": "too short"}, "click_secret must have 16 characters"),
        ({"click_secret": "x" * 16, "candidates": 65}, "candidates 65 is more than list_capacity 64"),
        ({"click_secret": "x" * 16, "key_prefix": ""}, "key_prefix must not be empty"),
        ({"click_secret": "x" * 16, "cache_url": "http://nowhere"}, "cache_url"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(options: dict[str, Any], fault: str) -> None:
    async def scenario() -> None:
        with pytest.raises(ConfigError, match=fault) as caught:
            async with start_server("scoring", ScoringConfig(**options), build):
                pass
        assert "too short" not in str(caught.value)

    asyncio.run(scenario())
