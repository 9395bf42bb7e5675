"""Public reports of caches that stampede, stall or retry for ever, tried on RankAds."""

import asyncio
from typing import Any

import grpc
import pytest
from redis_process import RedisProcess
from scoring_stand_ins import World, eventually, until, urls, world

from frugalads.scoring.v1 import scoring_pb2

HIT, MISS = scoring_pb2.CACHE_STATE_HIT, scoring_pb2.CACHE_STATE_MISS
REFRESHED = scoring_pb2.CACHE_STATE_REFRESHED
REFRESH_FAILED = scoring_pb2.DEGRADED_REASON_REFRESH_FAILED


def run(server: RedisProcess, scenario: Any, **options: Any) -> None:
    async def inside() -> None:
        async with world(*urls(server), **options) as made:
            await scenario(made)

    asyncio.run(inside())


def test_yiisoft_cache_123_laravel_61289_a_thousand_callers_of_a_cold_key_cost_one_inference(
    valkey_server: RedisProcess,
) -> None:
    async def scenario(made: World) -> None:
        answers = await asyncio.gather(*(made.rank("cold") for _ in range(1000)))
        assert all([a.ad_id for a in answer.ads] == [1, 2, 3] for answer in answers)
        assert len(made.inference.embed.calls) == 1
        assert len(made.retrieval.search.calls) == 1
        assert len(made.inference.score.calls) == 1

    run(valkey_server, scenario, max_concurrent=2000, refresh_every=100_000, cache_timeout_ms=5000)


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0,), (2, 0), (0, 1, 2)])
def test_aiocache_393_1041_cancelled_callers_do_not_cancel_the_others(
    valkey_server: RedisProcess, order: tuple[int, ...]
) -> None:
    async def scenario(made: World) -> None:
        made.inference.embed.open.clear()
        request = scoring_pb2.RankAdsRequest(query="shared", slots=4)
        calls = [made.stub.RankAds(request, timeout=10) for _ in range(3)]
        await eventually(lambda: len(made.inference.embed.calls) == 1)
        for i in order:
            calls[i].cancel()
        await asyncio.sleep(0.05)
        made.inference.embed.open.set()
        for i, call in enumerate(calls):
            if i in order:
                with pytest.raises(asyncio.CancelledError):
                    await call
            else:
                assert (await call).cache_state == MISS
        await eventually(lambda: len(made.inference.score.calls) == 1)
        await until(lambda: made.answers(HIT, "shared"))
        assert len(made.inference.embed.calls) == 1

    run(valkey_server, scenario, refresh_every=1000)


def test_caffeine_711_a_key_refreshes_again_after_a_failed_refresh(valkey_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        await made.rank()
        made.inference.embed.code = grpc.StatusCode.UNAVAILABLE
        assert (await made.rank()).cache_state == HIT
        failed = await made.rank()
        assert (failed.cache_state, list(failed.degraded_reasons)) == (HIT, [REFRESH_FAILED])
        made.inference.embed.code = None
        await until(lambda: made.answers(REFRESHED))
        assert not (await made.rank()).degraded_reasons

    run(valkey_server, scenario, refresh_every=2)


def test_streamlit_14690_stale_hits_do_not_each_retry_a_failing_upstream(
    valkey_server: RedisProcess,
) -> None:
    async def scenario(made: World) -> None:
        await made.rank()
        made.inference.embed.code = grpc.StatusCode.UNAVAILABLE
        answers = [await made.rank() for _ in range(200)]
        assert all(a.cache_state == HIT and list(a.degraded_reasons) == [REFRESH_FAILED] for a in answers)
        assert (
            len(made.inference.embed.calls) <= 3
        )  # the first list, one failure, perhaps one more after a second

    run(valkey_server, scenario, refresh_every=1)


def test_django_redis_27_while_a_refresh_runs_others_get_the_cached_list(valkey_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        await made.rank()
        made.inference.embed.open.clear()
        refreshing = asyncio.create_task(made.rank())
        await eventually(lambda: len(made.inference.embed.calls) == 2)
        others = await asyncio.gather(*(made.rank() for _ in range(20)))
        assert all(a.cache_state == HIT and a.list_age_ms >= 0 for a in others)
        assert not refreshing.done()
        made.inference.embed.open.set()
        assert (await refreshing).cache_state == REFRESHED
        assert len(made.inference.embed.calls) == 2

    run(valkey_server, scenario, refresh_every=1)
