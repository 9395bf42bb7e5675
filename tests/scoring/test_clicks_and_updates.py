import asyncio
import math
import time
from typing import Any

import grpc
import pytest
from redis_process import RedisProcess
from scoring_stand_ins import SECRET, World, ad, eventually, failure, until, urls, world

from frugalads.scoring.v1 import scoring_pb2
from services.runtime.errors import NotFound
from services.runtime.redis_client import connect
from services.scoring.click_token import MAX_AGE_MS, Shown, issue
from services.scoring.state import ADS, CHANGES, State, Update, utc_day

CHARGED, DUPLICATE = scoring_pb2.CLICK_OUTCOME_CHARGED, scoring_pb2.CLICK_OUTCOME_DUPLICATE
Click = scoring_pb2.Click


def run(server: RedisProcess, scenario: Any, **options: Any) -> None:
    async def inside() -> None:
        async with world(*urls(server), **options) as made:
            await scenario(made)

    asyncio.run(inside())


async def record(made: World, *clicks: Any) -> list[Any]:
    response = await made.stub.RecordClicks(scoring_pb2.RecordClicksRequest(clicks=clicks), timeout=10)
    return list(response.outcomes)


def ids(response: Any) -> list[int]:
    return [shown.ad_id for shown in response.ads]


def test_a_click_is_charged_once_by_its_id_and_by_the_shown_ad(redis_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        first, second, _ = (shown.click_token for shown in (await made.rank()).ads)
        again = (await made.rank()).ads[0].click_token
        assert await record(made, Click(click_id="a", click_token=first)) == [CHARGED]
        assert await record(made, Click(click_id="a", click_token=first)) == [DUPLICATE]
        assert await record(made, Click(click_id="b", click_token=first)) == [DUPLICATE]
        assert await record(made, Click(click_id="a", click_token=second)) == [DUPLICATE]
        both = [Click(click_id="c", click_token=second), Click(click_id="d", click_token=second)]
        assert await record(made, *both) == [CHARGED, DUPLICATE]
        assert await record(made, Click(click_id="e", click_token=again)) == [CHARGED]
        database = redis_server.client()
        database.select(1)
        day = utc_day(int(time.time() * 1000))
        spend = {k: int(v) for k, v in database.hgetall(f"frugalads:state:spend:{day}").items()}
        assert spend == {b"Adv 1": 2 * 666_667, b"Adv 2": 750_000}
        assert 2 * 24 * 3600 < database.ttl(f"frugalads:state:spend:{day}") <= 3 * 24 * 3600
        assert 47 * 3600 < database.ttl("frugalads:state:click:a") <= 48 * 3600
        made_by = database.keys("frugalads:state:revenue:*")
        assert len(made_by) == 1
        history = database.hgetall(made_by[0])
        assert (history[b"clicks"], history[b"revenue_micros"]) == (b"3", b"2083334")

    run(redis_server, scenario)


def test_all_clicks_of_a_call_are_charged_or_none(valkey_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        token = (await made.rank()).ads[0].click_token
        clicks = [Click(click_id="a", click_token=token), Click(click_id="b", click_token=token[:-1])]
        code, _, fields = await failure(record(made, *clicks))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert fields == ["clicks[1].click_token"]
        assert await record(made, clicks[0]) == [CHARGED]

    run(valkey_server, scenario)


def shown(**changes: Any) -> Shown:
    now_ms = time.time_ns() // 1_000_000
    return Shown(b"a" * 16, 1, 100_000, now_ms, b"f" * 8, "Adv 1")._replace(**changes)


@pytest.mark.parametrize(
    ("click", "field"),
    [
        (Click(click_id="", click_token=issue(SECRET.encode(), shown())), "clicks[0].click_id"),
        (Click(click_id="x" * 129, click_token=issue(SECRET.encode(), shown())), "clicks[0].click_id"),
        (Click(click_id="a"), "clicks[0].click_token"),
        (Click(click_id="a", click_token=issue(b"another secret here", shown())), "clicks[0].click_token"),
        (
            Click(click_id="a", click_token=issue(SECRET.encode(), shown(issued_at_ms=0))),
            "clicks[0].click_token",
        ),
        (
            Click(click_id="a", click_token=issue(SECRET.encode(), shown(issued_at_ms=2**50))),
            "clicks[0].click_token",
        ),
    ],
)
def test_bad_clicks_name_the_field(valkey_server: RedisProcess, click: Any, field: str) -> None:
    async def scenario(made: World) -> None:
        code, _, fields = await failure(record(made, click))
        assert (code, fields) == (grpc.StatusCode.INVALID_ARGUMENT, [field])

    run(valkey_server, scenario, ads=0)


def test_too_few_and_too_many_clicks_are_refused(valkey_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        for clicks in ([], [Click(click_id="a")] * 101):
            code, _, fields = await failure(record(made, *clicks))
            assert (code, fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["clicks"])

    run(valkey_server, scenario, ads=0)


def test_a_click_on_an_ad_deleted_since_is_charged(valkey_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        token = (await made.rank()).ads[0].click_token
        await made.stub.UpdateAds(scoring_pb2.UpdateAdsRequest(delete_ad_ids=[1]), timeout=10)
        assert await record(made, Click(click_id="a", click_token=token)) == [CHARGED]

    run(valkey_server, scenario)


async def shows(made: World, *wanted: int) -> None:
    """Answers show exactly these ads within a second."""

    async def shown() -> bool:
        return sorted(ids(await made.rank())) == list(wanted)

    await until(shown, 1.0)


def test_changes_show_within_a_second_on_cached_lists(redis_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        async def update(**changes: Any) -> None:
            await made.stub.UpdateAds(scoring_pb2.UpdateAdsRequest(**changes), timeout=10)

        change, account = scoring_pb2.AdChange, scoring_pb2.Advertiser
        await shows(made, 1, 2, 3)
        await update(changes=[change(ad_id=1, paused=True)])
        await shows(made, 2, 3)
        await update(changes=[change(ad_id=1, paused=False), change(ad_id=3, bid_usd=9.5)])
        await shows(made, 1, 2, 3)
        assert (await made.rank()).ads[0].ad_id == 3
        assert (await made.rank()).ads[0].bid_usd == 9.5
        await update(advertisers=[account(advertiser="Adv 2", paused=True)])
        await shows(made, 1, 3)
        await update(advertisers=[account(advertiser="Adv 2")])
        await shows(made, 1, 2, 3)
        await update(delete_ad_ids=[2, 77])
        await shows(made, 1, 3)
        await update(ads=[ad(2, 0.01)])
        await eventually(lambda: 2 in made.replica.ads)
        await shows(made, 1, 3)
        assert len(made.inference.embed.calls) == 1

    run(redis_server, scenario, refresh_every=1000)


def test_an_exhausted_budget_stops_its_ads_within_a_second(redis_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        budget = scoring_pb2.Advertiser(advertiser="Adv 1", daily_budget_usd=1.0)
        await made.stub.UpdateAds(scoring_pb2.UpdateAdsRequest(advertisers=[budget]), timeout=10)
        for i in range(2):
            await shows(made, 1, 2, 3)
            token = next(a.click_token for a in (await made.rank()).ads if a.ad_id == 1)
            assert await record(made, Click(click_id=f"{i}", click_token=token)) == [CHARGED]
        await shows(made, 2, 3)
        raised = scoring_pb2.Advertiser(advertiser="Adv 1", daily_budget_usd=2.0)
        await made.stub.UpdateAds(scoring_pb2.UpdateAdsRequest(advertisers=[raised]), timeout=10)
        await shows(made, 1, 2, 3)

    run(redis_server, scenario, refresh_every=1000)


def test_an_unknown_ad_in_changes_is_named_and_nothing_is_applied(redis_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        request = scoring_pb2.UpdateAdsRequest(
            ads=[ad(50)],
            changes=[scoring_pb2.AdChange(ad_id=50, bid_usd=2), scoring_pb2.AdChange(ad_id=99, paused=True)],
            delete_ad_ids=[1],
        )
        code, info, _ = await failure(made.stub.UpdateAds(request, timeout=10))
        assert (code, info.reason, info.metadata["ad_id"]) == (
            grpc.StatusCode.NOT_FOUND,
            "AD_NOT_FOUND",
            "99",
        )
        await shows(made, 1, 2, 3)
        assert 50 not in made.replica.ads
        del request.changes[1]
        response = await made.stub.UpdateAds(request, timeout=10)
        assert response.applied == 3
        await eventually(lambda: 50 in made.replica.ads and 1 not in made.replica.ads)
        assert made.replica.ads[50].bid_micros == 2_000_000

    run(redis_server, scenario)


Update_ = scoring_pb2.UpdateAdsRequest
Targeting = scoring_pb2.Targeting


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (Update_(), "changes in all"),
        (Update_(delete_ad_ids=range(1, 1002)), "changes in all"),
        (Update_(ads=[ad(0)]), "ads[0].ad_id"),
        (Update_(ads=[ad(1), ad(1)]), "ads[1].ad_id"),
        (Update_(ads=[scoring_pb2.Ad(ad_id=1, advertiser="a", bid_usd=1)]), "ads[0].title"),
        (Update_(ads=[scoring_pb2.Ad(ad_id=1, title="x" * 301, advertiser="a", bid_usd=1)]), "ads[0].title"),
        (Update_(ads=[ad(1, description="x" * 2001)]), "ads[0].description"),
        (Update_(ads=[ad(1, advertiser="x" * 101)]), "ads[0].advertiser"),
        (Update_(ads=[ad(1, 0.0)]), "ads[0].bid_usd"),
        (Update_(ads=[ad(1, 1000.01)]), "ads[0].bid_usd"),
        (Update_(ads=[ad(1, math.nan)]), "ads[0].bid_usd"),
        (Update_(ads=[ad(1, math.inf)]), "ads[0].bid_usd"),
        (Update_(ads=[ad(1, 1e-9)]), "ads[0].bid_usd"),
        (Update_(ads=[ad(1, targeting=Targeting(locations=[""]))]), "ads[0].targeting.locations[0]"),
        (Update_(ads=[ad(1, targeting=Targeting(locations=["x"] * 1001))]), "ads[0].targeting.locations"),
        (Update_(ads=[ad(1, targeting=Targeting(genders=[0]))]), "ads[0].targeting.genders[0]"),  # type: ignore[list-item]
        (Update_(ads=[ad(1, targeting=Targeting(age_bands=[7]))]), "ads[0].targeting.age_bands[0]"),  # type: ignore[list-item]
        (Update_(ads=[ad(1, targeting=Targeting(devices=[1, 9]))]), "ads[0].targeting.devices[1]"),  # type: ignore[list-item]
        (Update_(changes=[scoring_pb2.AdChange(ad_id=-4, paused=True)]), "changes[0].ad_id"),
        (Update_(changes=[scoring_pb2.AdChange(ad_id=4, bid_usd=-1)]), "changes[0].bid_usd"),
        (Update_(delete_ad_ids=[3, 0]), "delete_ad_ids[1]"),
        (Update_(advertisers=[scoring_pb2.Advertiser()]), "advertisers[0].advertiser"),
        (
            Update_(advertisers=[scoring_pb2.Advertiser(advertiser="a", daily_budget_usd=math.nan)]),
            "advertisers[0].daily_budget_usd",
        ),
        (
            Update_(advertisers=[scoring_pb2.Advertiser(advertiser="a", daily_budget_usd=-1)]),
            "advertisers[0].daily_budget_usd",
        ),
    ],
)
def test_bad_updates_name_the_field(request_: Any, field: str) -> None:
    from services.runtime.errors import InvalidArgument
    from services.scoring.validation import updates

    with pytest.raises(InvalidArgument) as caught:
        updates(request_, 1000)
    assert [violation[0] for violation in caught.value.violations] == [field]


def test_targeting_is_applied_to_cached_lists(valkey_server: RedisProcess) -> None:
    async def scenario(made: World) -> None:
        targeting = Targeting(locations=["US-CA"], devices=[scoring_pb2.DEVICE_MOBILE])
        await made.stub.UpdateAds(Update_(ads=[ad(1, targeting=targeting)]), timeout=10)
        await eventually(lambda: made.replica.ads[1].targeting is not None)

        async def seen_by(**user: Any) -> list[int]:
            request = scoring_pb2.RankAdsRequest(query="q", slots=4, user=scoring_pb2.User(**user))
            return sorted(ids(await made.stub.RankAds(request, timeout=10)))

        assert await seen_by() == [1, 2, 3]
        assert await seen_by(location="US-CA", device=scoring_pb2.DEVICE_MOBILE) == [1, 2, 3]
        assert await seen_by(location="US-NY") == [2, 3]
        assert await seen_by(device=scoring_pb2.DEVICE_DESKTOP) == [2, 3]

    run(valkey_server, scenario)


def test_old_tokens_outlive_neither_validity_nor_their_records() -> None:
    from services.scoring import state

    assert state._RECORD_S * 1000 >= 2 * MAX_AGE_MS


def test_scripts_leave_the_state_untouched_when_an_ad_is_unknown(redis_server: RedisProcess) -> None:
    async def scenario() -> None:
        store = State(connect(redis_server.url, 3000, 4))
        with pytest.raises(NotFound):
            await store.update([Update("ad", 1, b"", 1000, 0), Update("change", 2, bid_micros=5)])
        assert redis_server.client().dbsize() == 0
        await store.update([Update("ad", 1, b"", 1000, 1), Update("change", 1, bid_micros=5, paused=0)])
        assert redis_server.client().hkeys(ADS) == [b"1"]
        assert redis_server.client().xlen(CHANGES) == 2
        await store.close()

    asyncio.run(scenario())


def test_revenue_history_is_kept_by_query(redis_server: RedisProcess) -> None:
    async def scenario() -> None:
        store = State(connect(redis_server.url, 3000, 4))
        clicks = [("1", shown()), ("2", shown(ad_id=2, price_micros=7)), ("2", shown(ad_id=3))]
        assert await store.record_clicks(clicks, 5) == [True, True, False]
        history = redis_server.client().hgetall(f"frugalads:state:revenue:{b'f'.hex() * 8}")
        assert history == {b"clicks": b"2", b"revenue_micros": b"100007", b"last_click_ms": b"5"}
        await store.close()

    asyncio.run(scenario())
