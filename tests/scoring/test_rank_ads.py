import asyncio
import time
from typing import Any

import grpc
import pytest
from redis_process import RedisProcess
from scoring_stand_ins import World, ad, eventually, failure, until, urls, world

from frugalads.inference.v1 import inference_pb2
from frugalads.retrieval.v1 import retrieval_pb2
from frugalads.scoring.v1 import scoring_pb2
from services.core.ads_list import AdsList, Versions
from services.core.eviction.priority import BASE_MS
from services.core.query import fingerprint

HIT, MISS = scoring_pb2.CACHE_STATE_HIT, scoring_pb2.CACHE_STATE_MISS
REFRESHED, BYPASSED = scoring_pb2.CACHE_STATE_REFRESHED, scoring_pb2.CACHE_STATE_BYPASSED
REFRESH_FAILED = scoring_pb2.DEGRADED_REASON_REFRESH_FAILED


def run(server: RedisProcess, scenario: Any, **options: Any) -> None:
    async def inside() -> None:
        async with world(*urls(server), **options) as made:
            await scenario(made)

    asyncio.run(inside())


def ids(response: Any) -> list[int]:
    return [shown.ad_id for shown in response.ads]


def test_a_query_is_computed_once_and_then_served_from_the_cache(redis_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        first = await made.rank("Laser  Printer TONER")
        assert first.cache_state == MISS
        assert ids(first) == [1, 2, 3]
        assert [round(a.price_usd, 6) for a in first.ads] == [0.666667, 0.75, 0.05]
        assert first.ads[0].click_probability == pytest.approx(0.5)
        assert first.ads[1].click_probability == pytest.approx(1 / 3 * 2**-0.57)
        assert (first.ads[0].title, first.ads[0].advertiser, first.ads[0].bid_usd) == ("Ad 1", "Adv 1", 1.0)
        assert first.versions == scoring_pb2.Versions(index="index-1", encoder="encoder-1", scorer="scorer-1")
        assert first.timings.embed_us > 0
        assert first.timings.retrieve_us > 0
        assert first.timings.score_us > 0
        second = await made.rank("laser printer toner")
        assert second.cache_state == HIT
        assert ids(second) == [1, 2, 3]
        assert second.versions == first.versions
        assert second.timings.embed_us == second.timings.score_us == 0
        assert 0 < second.timings.cache_us <= second.timings.total_us
        assert not first.degraded_reasons
        assert not second.degraded_reasons
        assert second.request_id != first.request_id
        assert len(made.inference.embed.calls) == len(made.inference.score.calls) == 1
        assert made.inference.score.calls[0].query == "laser printer toner"
        assert made.retrieval.search.calls[0].target.mean_recall == 0.95
        assert made.retrieval.search.calls[0].k == 48

    run(redis_server, scenario)


def test_an_empty_list_is_cached_too(valkey_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        made.retrieval.found = {}
        assert [(await made.rank()).cache_state for _ in range(2)] == [MISS, HIT]
        assert made.inference.score.calls == []

    run(valkey_server, scenario)


def test_unrelated_ads_are_dropped_before_scoring(valkey_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        made.retrieval.found = {1: 0.9, 2: 0.40001, 3: 0.39}
        assert ids(await made.rank()) == [1, 2]
        assert list(made.inference.score.calls[0].ad_ids) == [1, 2]

    run(valkey_server, scenario)


def test_the_fifth_hit_refreshes_and_merges(valkey_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        await made.rank()
        made.retrieval.found = {4: 0.9, 2: 0.8}
        states = [await made.rank() for _ in range(5)]
        assert [s.cache_state for s in states] == [HIT] * 4 + [REFRESHED]
        assert sorted(ids(states[-1])) == [1, 2, 3, 4]
        assert (await made.rank()).cache_state == HIT

    run(valkey_server, scenario, ads=4)


def test_texts_are_sent_where_the_scorer_reads_them(valkey_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        made.inference.inputs = [inference_pb2.SCORE_INPUT_TEXTS]
        await made.add_ads(ad(7, description="Black, 3,000 pages"))
        made.retrieval.found = {7: 0.9, 1: 0.8, 99: 0.7}
        assert sorted(ids(await made.rank())) == [1, 7]
        assert list(made.inference.score.calls[0].texts) == ["Ad 7. Black, 3,000 pages", "Ad 1"]
        assert not made.inference.score.calls[0].similarities

    run(valkey_server, scenario)


def test_another_scorer_is_noticed_and_asked_what_it_needs(valkey_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        await made.rank("one")
        made.inference.scorer, made.inference.inputs = "scorer-2", [inference_pb2.SCORE_INPUT_TEXTS]
        assert (await made.rank("two")).versions.scorer == "scorer-2"
        await made.rank("three")
        assert made.inference.score.calls[2].texts
        assert made.inference.infos == 2

    run(valkey_server, scenario)


def test_vectors_of_another_encoder_are_never_searched_with(valkey_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        await made.rank("one")
        made.inference.encoder = "encoder-2"
        code, info, _ = await failure(made.rank("two"))
        assert (code, info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "ENCODER_MISMATCH")
        made.retrieval.encoder, made.retrieval.index = "encoder-2", "index-2"
        answer = await made.rank("two")
        assert (answer.versions.encoder, answer.versions.index) == ("encoder-2", "index-2")

    run(valkey_server, scenario)


@pytest.mark.parametrize("name", ["inference", "retrieval"])
def test_without_an_upstream_and_a_list_the_error_names_it(valkey_server: RedisProcess, name: str) -> None:
    async def scenario(made: World) -> None:
        await made.upstreams.stop(name)
        code, info, _ = await failure(made.rank())
        assert code is grpc.StatusCode.UNAVAILABLE
        assert info.metadata["dependency"] == name
        await made.upstreams.start(name)
        await until(lambda: made.answers(MISS))

    run(valkey_server, scenario)


def test_a_failed_refresh_serves_the_cached_list_and_says_so(valkey_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        await made.rank()
        made.inference.embed.code = grpc.StatusCode.INTERNAL
        answers = [await made.rank() for _ in range(4)]
        assert [a.cache_state for a in answers] == [HIT] * 4
        assert [list(a.degraded_reasons) for a in answers] == [
            [],
            [REFRESH_FAILED],
            [REFRESH_FAILED],
            [REFRESH_FAILED],
        ]
        assert ids(answers[-1]) == [1, 2, 3]

    run(valkey_server, scenario, refresh_every=2)


def test_a_hanging_upstream_is_named_when_the_computation_ends(valkey_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        made.retrieval.search.open.clear()
        code, info, _ = await failure(made.rank())
        assert (code, info.reason) == (grpc.StatusCode.UNAVAILABLE, "DEPENDENCY_TIMEOUT")
        assert info.metadata["dependency"] == "retrieval"

    run(valkey_server, scenario, compute_timeout_ms=150)


@pytest.mark.parametrize("probability", [float("nan"), 1.5, -0.1])
def test_a_broken_scorer_is_refused_and_not_cached(valkey_server: RedisProcess, probability: float) -> None:
    async def scenario(made: World) -> None:
        made.inference.probability = lambda _: probability
        code, info, _ = await failure(made.rank())
        assert (code, info.reason) == (grpc.StatusCode.UNAVAILABLE, "DEPENDENCY_MALFORMED")
        made.inference.probability = lambda _: 0.5
        assert (await made.rank()).cache_state == MISS

    run(valkey_server, scenario)


@pytest.mark.parametrize("version", ["x" * 256, "a\0b"])
def test_a_version_that_no_entry_can_hold_is_its_senders_fault(
    valkey_server: RedisProcess, version: str
) -> None:
    async def scenario(made: World) -> None:
        await made.rank()
        made.inference.scorer = version
        code, info, _ = await failure(made.rank("another"))
        assert (code, info.reason) == (grpc.StatusCode.UNAVAILABLE, "DEPENDENCY_MALFORMED")
        assert info.metadata["dependency"] == "inference"
        answer = await made.rank()
        assert (answer.cache_state, list(answer.degraded_reasons)) == (HIT, [REFRESH_FAILED])

    run(valkey_server, scenario, refresh_every=1)


def test_a_list_written_by_a_clock_that_is_ahead_is_replaced_by_the_next_refresh(
    valkey_server: RedisProcess,
) -> None:
    async def scenario(made: World) -> None:
        service: Any = made.running.service
        cache, key = service._cache, fingerprint("laser printer toner")
        ahead_ms = time.time_ns() // 1_000_000 + 3_600_000
        versions = Versions("index-1", "encoder-1", "scorer-1")
        await cache.put(key, AdsList((9,), (0.5,), ahead_ms, 1, versions), BASE_MS)
        answer = await made.rank()
        assert (answer.cache_state, ids(answer), answer.list_age_ms) == (REFRESHED, [1, 2, 3], 0)
        held = await cache.get(key)
        assert (held.ad_ids, held.written_at_ms) == ((1, 2, 3, 9), ahead_ms + 1)

    run(valkey_server, scenario, refresh_every=1)


def test_a_capped_search_is_told_on_every_answer_from_its_list(valkey_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        made.retrieval.degraded = [retrieval_pb2.DEGRADED_REASON_DEADLINE]
        answers = [await made.rank() for _ in range(2)]
        assert [a.cache_state for a in answers] == [MISS, HIT]
        assert all(a.degraded_reasons == [scoring_pb2.DEGRADED_REASON_RETRIEVAL] for a in answers)

    run(valkey_server, scenario)


def test_more_misses_than_allowed_are_refused_at_once(valkey_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        await made.rank("cached")
        made.inference.embed.open.clear()
        running = asyncio.create_task(made.rank("one"))
        await eventually(lambda: len(made.inference.embed.calls) == 2)
        code, info, _ = await failure(made.rank("two"))
        assert (code, info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_COMPUTATIONS")
        assert (await made.rank("cached")).cache_state == HIT
        made.inference.embed.open.set()
        assert (await running).cache_state == MISS

    run(valkey_server, scenario, max_concurrent_computations=1)


def test_the_callers_request_id_is_kept_where_it_is_one(valkey_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        one = await made.rank(metadata=(("x-request-id", "web-7f.3"),))
        other = await made.rank(metadata=(("x-request-id", "web-7f.3"),))
        odd = await made.rank(metadata=(("x-request-id", "a b"),))
        assert one.request_id == other.request_id == "web-7f.3"
        assert len(odd.request_id) == 32
        # The token's own answer id is drawn anew: a repeated request id must not make clicks duplicates.
        assert one.ads[0].click_token != other.ads[0].click_token

    run(valkey_server, scenario)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (scoring_pb2.RankAdsRequest(query="", slots=1), "query"),
        (scoring_pb2.RankAdsRequest(query=" \t\n", slots=1), "query"),
        (scoring_pb2.RankAdsRequest(query="\u200b\u0007", slots=1), "query"),
        (scoring_pb2.RankAdsRequest(query="x" * 257, slots=1), "query"),
        (scoring_pb2.RankAdsRequest(query="x", slots=0), "slots"),
        (scoring_pb2.RankAdsRequest(query="x", slots=-1), "slots"),
        (scoring_pb2.RankAdsRequest(query="x", slots=17), "slots"),
        (
            scoring_pb2.RankAdsRequest(query="x", slots=1, user=scoring_pb2.User(location="y" * 65)),
            "user.location",
        ),
        (scoring_pb2.RankAdsRequest(query="x", slots=1, user=scoring_pb2.User(gender=9)), "user.gender"),  # type: ignore[arg-type]
        (scoring_pb2.RankAdsRequest(query="x", slots=1, user=scoring_pb2.User(age_band=-1)), "user.age_band"),  # type: ignore[arg-type]
        (scoring_pb2.RankAdsRequest(query="x", slots=1, user=scoring_pb2.User(device=4)), "user.device"),  # type: ignore[arg-type]
    ],
)
def test_bad_requests_name_the_field(valkey_server: RedisProcess, request_: Any, field: str) -> None:
    async def scenario(made: World) -> None:
        code, info, fields = await failure(made.stub.RankAds(request_, timeout=10))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert info.reason == "INVALID_FIELD"
        assert fields == [field]
        assert (await made.rank()).cache_state == MISS

    run(valkey_server, scenario)


def test_info_tells_versions_limits_and_dependencies(valkey_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        await made.rank()
        info = await made.stub.GetInfo(scoring_pb2.GetInfoRequest(), timeout=10)
        assert info.versions.index == "index-1"
        assert info.ads == 3
        assert info.ads_age_ms < 1000
        assert info.refresh_policy == "fixed"
        assert info.limits.max_slots == 16
        await eventually(lambda: made.running.health.is_ready)
        info = await made.stub.GetInfo(scoring_pb2.GetInfoRequest(), timeout=10)
        names = ("cache", "state", "retrieval", "inference", "eviction")
        assert dict(info.dependencies) == dict.fromkeys(names, True)

    run(valkey_server, scenario)
