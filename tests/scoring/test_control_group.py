"""The control group: its requests are computed anew and logged, in the format that logs are imported from."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from redis_process import RedisProcess
from scoring_stand_ins import World, ad, eventually, urls, world

from frugalads.scoring.v1 import scoring_pb2
from loadtest.request_log.importing import import_log
from loadtest.request_log.storage import read_log
from services.core.ads_list import AdsList, Versions
from services.core.auction import LiveAd, Viewer
from services.core.refresh.policy import REUSE
from services.runtime import logs
from services.runtime.metrics import Metrics
from services.scoring import control_group
from services.scoring.asked import Asked
from services.scoring.control_group import ControlGroup

HIT, MISS = scoring_pb2.CACHE_STATE_HIT, scoring_pb2.CACHE_STATE_MISS
REFRESHED = scoring_pb2.CACHE_STATE_REFRESHED
USER = scoring_pb2.User(
    location="US-CA",
    gender=scoring_pb2.GENDER_FEMALE,
    age_band=scoring_pb2.AGE_BAND_65_PLUS,
    device=scoring_pb2.DEVICE_MOBILE,
)


def run(
    server: RedisProcess, file: Path, scenario: Callable[[World], Awaitable[None]], **options: Any
) -> None:
    async def inside() -> None:
        defaults: dict[str, Any] = {"control_log": str(file), "control_share": 1.0, "refresh_every": 1000}
        async with world(*urls(server), **(defaults | options)) as made:
            await scenario(made)

    asyncio.run(inside())


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


async def ask(made: World, query: str = "Laser  printer TONER", **user: Any) -> Any:
    return await made.stub.RankAds(scoring_pb2.RankAdsRequest(query=query, slots=2, **user), timeout=10)


async def click(made: World, shown: Any) -> None:
    clicks = [scoring_pb2.Click(click_id=shown.click_token.hex()[-40:], click_token=shown.click_token)]
    await made.stub.RecordClicks(scoring_pb2.RecordClicksRequest(clicks=clicks), timeout=10)
    await eventually(lambda: len(made.replica.earning) > 0)


def test_every_request_is_computed_and_logged_with_its_clicks(
    valkey_server: RedisProcess, tmp_path: Path
) -> None:
    file = tmp_path / "control" / "log.jsonl"

    async def scenario(made: World) -> None:
        first = await ask(made)
        made.retrieval.found = {2: 0.9, 3: 0.8}
        second = await ask(made, user=USER)
        assert (first.cache_state, second.cache_state) == (MISS, REFRESHED)
        assert [shown.ad_id for shown in second.ads] == [2, 3], "a list of the group is not merged"
        await click(made, second.ads[1])
        made.retrieval.found = {}
        await ask(made, "weather")

    run(valkey_server, file, scenario)
    first, second, third = rows(file)
    assert first["query"] == "laser printer toner"
    assert first["ads"] == [1, 2, 3]
    assert first["click_probability"] == pytest.approx([1 / 2, 1 / 3, 1 / 4])
    assert first["bid_usd"] == [1, 1, 1]
    assert first["charge_usd"] == pytest.approx([0.666667, 0.75, 0])
    assert first["shown_probability"] == pytest.approx([1 / 2, 2**-0.57 / 3, 0])
    assert first["clicked"] == [False] * 3
    assert first["cost"] > 0
    assert (first["location"], first["gender"], first["age"], first["device"]) == (None,) * 4
    assert (second["ads"], second["clicked"]) == ([2, 3], [False, True])
    assert (second["location"], second["gender"]) == ("US-CA", "female")
    assert (second["age"], second["device"]) == ("65+", "mobile")
    assert (second["decision"], second["predicted_loss_usd"]) == ("reuse", 0)
    assert third["ads"] == []
    assert third["cost"] > 0


def test_the_log_is_one_that_can_be_imported(valkey_server: RedisProcess, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"

    async def scenario(made: World) -> None:
        for _ in range(3):
            response = await ask(made, user=USER)
        await click(made, response.ads[0])

    run(valkey_server, file, scenario)
    import_log(file, tmp_path / "imported")
    log = read_log(tmp_path / "imported")
    assert log.phrases == ["laser printer toner"]
    assert log.ad_ids[log.ads].tolist() == [1, 2, 3] * 3
    assert log.clicked.tolist() == [False] * 6 + [True, False, False]
    assert (log.cost > 0).all()
    assert log.gender.tolist() == [1] * 3


def test_ads_that_cannot_take_part_are_no_candidates(valkey_server: RedisProcess, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"

    async def scenario(made: World) -> None:
        paused = ad(4, paused=True)
        elsewhere = ad(5, targeting=scoring_pb2.Targeting(locations=["US-NY"]))
        broke = ad(6, advertiser="Broke")
        account = scoring_pb2.Advertiser(advertiser="Broke", paused=True)
        await made.add_ads(paused, elsewhere, broke, advertisers=[account])
        made.retrieval.found = dict.fromkeys((1, 4, 5, 6, 99), 0.9)
        await ask(made, user=USER)

    run(valkey_server, file, scenario)
    assert rows(file)[0]["ads"] == [1]


def test_queries_outside_the_group_and_hits_above_its_pace_are_served_from_the_cache(
    valkey_server: RedisProcess, tmp_path: Path
) -> None:
    async def outside(made: World) -> None:
        assert [(await ask(made, "other")).cache_state for _ in range(3)] == [MISS, HIT, HIT]

    run(valkey_server, tmp_path / "none.jsonl", outside, control_share=0.0)
    assert not (tmp_path / "none.jsonl").exists()

    async def burst(made: World) -> None:
        states = [(await ask(made)).cache_state for _ in range(6)]
        assert states[:2] == [MISS, REFRESHED]
        assert HIT in states[2:]

    run(valkey_server, tmp_path / "paced.jsonl", burst, control_per_s=1)
    assert 2 <= len(rows(tmp_path / "paced.jsonl")) < 6


def group(file: Path, clock: Callable[[], float], max_bytes: int = 1 << 20) -> tuple[ControlGroup, Metrics]:
    metrics = Metrics("scoring")
    return ControlGroup(file, 1.0, 1000, max_bytes, metrics, logs.logger("scoring"), clock), metrics


def counted(metrics: Metrics, outcome: str) -> float:
    value = metrics.registry.get_sample_value("frugalads_scoring_control_rows_total", {"outcome": outcome})
    assert value is not None
    return value


class NoAds:
    ads: ClassVar[dict[int, LiveAd]] = {}


def answer(group: ControlGroup, number: int) -> None:
    fresh = AdsList((), (), 1, 1, Versions())
    asked = Asked(f"query {number}", bytes(16), Viewer(), 2, 1, NoAds(), number)
    group.answered(number.to_bytes(16), asked, fresh, [], REUSE)


def test_waiting_rows_and_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_group, "MAX_WAITING", 25)
    file = tmp_path / "log.jsonl"

    async def scenario() -> None:
        for batch in range(4):
            made, metrics = group(file, lambda: 0.0, max_bytes=20_000)
            await made.start()
            for number in range(60):
                answer(made, 100 * batch + number)
            await made.stop()
            assert (counted(metrics, "logged"), counted(metrics, "lost")) == (50, 10)

    asyncio.run(scenario())
    older = tmp_path / "log.1.jsonl"
    assert max(file.stat().st_size, older.stat().st_size) <= 20_000
    kept = [row["time_ms"] for row in rows(older) + rows(file)]
    assert kept == sorted(kept)
    assert kept[-1] == 349


def test_rows_wait_for_their_clicks_and_a_disk_that_takes_nothing_costs_rows(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("in the way")

    async def scenario() -> None:
        now = 0.0
        made, metrics = group(tmp_path / "log.jsonl", lambda: now)
        await made.start()
        answer(made, 1)
        now = control_group.CLICK_WAIT_S
        answer(made, 2)
        await eventually(lambda: counted(metrics, "logged") == 1)
        assert [row["query"] for row in rows(tmp_path / "log.jsonl")] == ["query 1"]
        await made.stop()
        assert len(rows(tmp_path / "log.jsonl")) == 2
        made, metrics = group(tmp_path / "a file" / "log.jsonl", lambda: now)
        await made.start()
        answer(made, 3)
        await made.stop()
        assert counted(metrics, "lost") == 1

    asyncio.run(scenario())


def test_where_many_wait_the_oldest_are_written_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_group, "MAX_WAITING", 5)

    async def scenario() -> None:
        made, metrics = group(tmp_path / "log.jsonl", lambda: 0.0)
        await made.start()
        for number in range(7):
            answer(made, number)
        await eventually(lambda: counted(metrics, "logged") == 2)
        assert [row["time_ms"] for row in rows(tmp_path / "log.jsonl")] == [0, 1]
        await made.stop()

    asyncio.run(scenario())
