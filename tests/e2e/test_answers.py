"""What a user of the running stack sees."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections import Counter
from itertools import pairwise

import grpc
import pytest
from redis_process import wait_until
from stack_process import Stack, frugalads

from frugalads.client import AsyncClient, Client, InvalidArgumentError, Options, connect
from frugalads.retrieval.v1 import retrieval_pb2
from frugalads.retrieval.v1.retrieval_pb2_grpc import RetrievalServiceStub
from frugalads.scoring.v1 import scoring_pb2

HIT = scoring_pb2.CACHE_STATE_HIT
MISS = scoring_pb2.CACHE_STATE_MISS
REFRESHED = scoring_pb2.CACHE_STATE_REFRESHED


def test_query_shows_ads_and_the_second_call_is_a_hit(stack: Stack) -> None:
    first = frugalads("query", "laser printer toner", "--target", stack.target).stdout
    assert "MISS" in first
    assert "toner" in first.lower()
    second = json.loads(
        frugalads("query", "  Laser PRINTER toner ", "--target", stack.target, "--json").stdout
    )
    assert second["cache_state"] == "CACHE_STATE_HIT"
    assert second["versions"]["index"]
    assert second["versions"]["encoder"]
    assert int(second["timings"]["total_us"]) > 0
    assert 1 <= len(second["ads"]) <= 4


def test_every_fifth_hit_refreshes(stack: Stack) -> None:
    with Client(stack.target) as client:
        states = [client.rank_ads("wooden dining table").cache_state for _ in range(11)]
    assert states == [MISS, *[HIT] * 4, REFRESHED, *[HIT] * 4, REFRESHED]


def test_prices_respect_bids_and_order(stack: Stack) -> None:
    with Client(stack.target) as client:
        for query in ("running shoes", "car insurance", "garden hose", "cheap flights"):
            ads = client.rank_ads(query, slots=8).ads
            assert ads, query
            assert len({ad.ad_id for ad in ads}) == len(ads)
            for ad in ads:
                assert 0 < ad.price_usd <= ad.bid_usd
                assert 0 < ad.click_probability < 1
            scores = [
                ad.bid_usd * ad.click_probability / position**-0.57
                for position, ad in enumerate(ads, start=1)
            ]
            # Probabilities travel as float32 in the list, so equal scores may differ in the last bits.
            assert all(one >= other * (1 - 1e-6) for one, other in pairwise(scores))


def test_a_bid_a_pause_and_a_budget_show_within_a_second_on_hits_too(stack: Stack) -> None:
    query = "office chair"
    with Client(stack.target) as client:
        shown = client.rank_ads(query).ads[0]

        def ads() -> dict[int, scoring_pb2.RankedAd]:
            return {ad.ad_id: ad for ad in client.rank_ads(query).ads}

        def within_a_second(change: scoring_pb2.AdChange, condition: object) -> None:
            client.update_ads(changes=[change])
            start = time.monotonic()
            wait_until(lambda: condition(ads()), 5)  # type: ignore[operator]
            assert time.monotonic() - start < 1.0

        within_a_second(
            scoring_pb2.AdChange(ad_id=shown.ad_id, paused=True), lambda now: shown.ad_id not in now
        )
        within_a_second(scoring_pb2.AdChange(ad_id=shown.ad_id, paused=False), lambda now: shown.ad_id in now)
        within_a_second(
            scoring_pb2.AdChange(ad_id=shown.ad_id, bid_usd=77.25),
            lambda now: shown.ad_id in now and now[shown.ad_id].bid_usd == 77.25,
        )
        client.update_ads(
            advertisers=[
                scoring_pb2.Advertiser(advertiser=shown.advertiser, daily_budget_usd=shown.price_usd)
            ]
        )
        wait_until(lambda: shown.ad_id in ads(), 2)
        token = ads()[shown.ad_id].click_token
        client.record_clicks([scoring_pb2.Click(click_id=uuid.uuid4().hex, click_token=token)])
        start = time.monotonic()
        wait_until(lambda: all(ad.advertiser != shown.advertiser for ad in ads().values()), 5)
        assert time.monotonic() - start < 1.0
        client.update_ads(advertisers=[scoring_pb2.Advertiser(advertiser=shown.advertiser)])


def test_a_click_is_charged_once(stack: Stack) -> None:
    with Client(stack.target) as client:
        first, second = client.rank_ads("yoga mat").ads[:2]
        click_id = uuid.uuid4().hex
        click = scoring_pb2.Click(click_id=click_id, click_token=first.click_token)
        charged, duplicate = scoring_pb2.CLICK_OUTCOME_CHARGED, scoring_pb2.CLICK_OUTCOME_DUPLICATE
        assert list(client.record_clicks([click]).outcomes) == [charged]
        assert list(client.record_clicks([click]).outcomes) == [duplicate]
        again = scoring_pb2.Click(click_id=uuid.uuid4().hex, click_token=first.click_token)
        fresh = scoring_pb2.Click(click_id=uuid.uuid4().hex, click_token=second.click_token)
        assert list(client.record_clicks([again, fresh]).outcomes) == [duplicate, charged]
        forged = bytearray(second.click_token)
        forged[-1] ^= 1
        with pytest.raises(InvalidArgumentError) as caught:
            client.record_clicks([scoring_pb2.Click(click_id="x", click_token=bytes(forged))])
        assert caught.value.violations[0].field == "clicks[0].click_token"


def test_a_cold_key_is_computed_once_for_everyone(stack: Stack) -> None:
    async def ask() -> list[scoring_pb2.RankAdsResponse]:
        async with AsyncClient(stack.target, Options(timeout_s=10)) as client:
            return await asyncio.gather(*[client.rank_ads("one cold and quiet query") for _ in range(100)])

    before = stack.metric("inference", 'frugalads_inference_calls_total{code="OK",method="Embed"}')
    answers = asyncio.run(ask())
    states = Counter(answer.cache_state for answer in answers)
    assert set(states) <= {HIT, MISS, REFRESHED}
    lists = {tuple(ad.ad_id for ad in answer.ads) for answer in answers}
    assert len(lists) == 1
    after = stack.metric("inference", 'frugalads_inference_calls_total{code="OK",method="Embed"}')
    # Callers that came after the first answer are hits, and every fifth of those refreshes; some share one.
    assert 1 <= after - before <= 1 + states[REFRESHED]


@pytest.mark.parametrize(
    ("query", "slots", "field"),
    [("", 4, "query"), ("   ", 4, "query"), ("x" * 300, 4, "query"), ("tv", 0, "slots"), ("tv", 99, "slots")],
)
def test_a_bad_request_names_field_value_and_limit(stack: Stack, query: str, slots: int, field: str) -> None:
    with Client(stack.target) as client, pytest.raises(InvalidArgumentError) as caught:
        client.rank_ads(query, slots=slots)
    (violation,) = caught.value.violations
    assert violation.field == field
    assert "must be" in violation.description
    assert "got" in violation.description


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (retrieval_pb2.SearchRequest(vector=[1.0] * 384, k=0), "k"),
        (retrieval_pb2.SearchRequest(vector=[1.0] * 384, k=100_000), "k"),
        (retrieval_pb2.SearchRequest(vector=[1.0] * 383, k=5), "vector"),
        (retrieval_pb2.SearchRequest(vector=[float("nan")] + [1.0] * 383, k=5), "vector"),
        (
            retrieval_pb2.SearchRequest(
                vector=[1.0] * 384,
                k=5,
                filter=retrieval_pb2.Filter(
                    conditions=[
                        retrieval_pb2.Condition(
                            field="colour", any_of=retrieval_pb2.StringSet(values=["red"])
                        )
                    ]
                ),
            ),
            "filter.conditions[0].field",
        ),
    ],
)
def test_a_bad_search_names_its_field(
    stack: Stack, request_: retrieval_pb2.SearchRequest, field: str
) -> None:
    with connect(f"127.0.0.1:{stack.ports.of('retrieval')}") as channel:
        stub = RetrievalServiceStub(channel)
        with pytest.raises(InvalidArgumentError) as caught:
            stub.Search(request_)
    assert caught.value.violations[0].field.startswith(field)


def test_a_message_above_the_limit_is_refused_and_others_go_on(stack: Stack) -> None:
    with Client(stack.target) as client:
        with pytest.raises(Exception, match=r"(?i)larger than max|RESOURCE_EXHAUSTED"):
            client.rank_ads("x" * (8 << 20))
        assert client.rank_ads("desk lamp").ads


def test_info_tells_limits_and_versions(stack: Stack) -> None:
    with Client(stack.target) as client:
        info = client.info()
        assert info.ads >= 5000
        assert info.limits.max_slots > 0
        wait_until(lambda: all(client.info().dependencies.values()), 10)
    assert set(info.dependencies) == {"cache", "state", "retrieval", "inference", "eviction"}


def test_every_service_answers_reflection_and_health(stack: Stack) -> None:
    for name in ("scoring", "retrieval", "inference", "eviction"):
        with grpc.insecure_channel(f"127.0.0.1:{stack.ports.of(name)}") as channel:
            from grpc_health.v1 import health_pb2, health_pb2_grpc

            service = f"frugalads.{name}.v1.{name.capitalize()}Service"
            stub = health_pb2_grpc.HealthStub(channel)
            status = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5).status
            assert status == health_pb2.HealthCheckResponse.SERVING, name


def test_the_stack_stays_under_two_gibibytes(stack: Stack) -> None:
    resident = sum(child.memory_info().rss for child in stack.descendants())
    assert resident < 2 << 30
