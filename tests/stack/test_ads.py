import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from frugalads.scoring.v1 import scoring_pb2, scoring_pb2_grpc
from services.catalogue.bundle import KIND, AdsWriter
from services.catalogue.schema import Ad
from services.runtime.bundles import write_bundle
from services.stack.ads import MARK, send_catalogue, to_message

ADS = [
    Ad(1, "toner", "acme", 0.5, daily_budget_usd=20.0),
    Ad(2, "cable", "acme", 0.25, description="two metres", locations=("US-CA",), genders=("female",)),
    Ad(3, "lamp", "bright", 1.5, age_bands=("13-17", "65+"), devices=("mobile", "tablet")),
]


class Scoring(scoring_pb2_grpc.ScoringServiceServicer):
    def __init__(self, max_updates: int = 1000, max_message_bytes: int = 4 << 20) -> None:
        self.ads: dict[int, scoring_pb2.Ad] = {}
        self.budgets: dict[str, float | None] = {}
        self.requests: list[scoring_pb2.UpdateAdsRequest] = []
        self.limits = scoring_pb2.Limits(max_updates=max_updates, max_message_bytes=max_message_bytes)
        self.fail_at = -1

    async def GetInfo(self, request: Any, context: Any) -> scoring_pb2.GetInfoResponse:
        return scoring_pb2.GetInfoResponse(ads=len(self.ads), limits=self.limits)

    async def UpdateAds(
        self, request: scoring_pb2.UpdateAdsRequest, context: Any
    ) -> scoring_pb2.UpdateAdsResponse:
        if len(self.requests) == self.fail_at:
            await context.abort(grpc.StatusCode.INTERNAL, "broken")
        self.requests.append(request)
        self.ads |= {ad.ad_id: ad for ad in request.ads}
        for ad_id in request.delete_ad_ids:
            self.ads.pop(ad_id, None)
        for account in request.advertisers:
            limited = account.HasField("daily_budget_usd")
            self.budgets[account.advertiser] = account.daily_budget_usd if limited else None
        return scoring_pb2.UpdateAdsResponse()


def catalogue(folder: Path, ads: list[Ad]) -> Path:
    meta: dict[str, Any] = {"ads": len(ads)}
    with write_bundle(folder, KIND, meta) as staging, AdsWriter(staging) as writer:
        for ad in ads:
            writer.add(ad)
    return folder


def send(
    service: Scoring,
    bundle: Path,
    state: Path,
    url: str = "embedded",
    seen: list[tuple[int, int]] | None = None,
) -> int:
    async def run() -> int:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        scoring_pb2_grpc.add_ScoringServiceServicer_to_server(service, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            report = (lambda done, total: seen.append((done, total))) if seen is not None else lambda *_: None
            return await send_catalogue(f"127.0.0.1:{port}", bundle, state, url, report)
        finally:
            await server.stop(0)

    return asyncio.run(run())


def test_ads_and_budgets_arrive_whole(tmp_path: Path) -> None:
    service, seen = Scoring(), []
    assert send(service, catalogue(tmp_path / "c", ADS), tmp_path / "s", seen=seen) == 3
    assert service.ads == {ad.ad_id: to_message(ad) for ad in ADS}
    assert service.budgets == {"acme": 20.0, "bright": None}
    assert seen[-1] == (5, 5)


def test_targeting_keeps_its_meaning() -> None:
    targeting = to_message(ADS[2]).targeting
    assert list(targeting.age_bands) == [scoring_pb2.AGE_BAND_13_17, scoring_pb2.AGE_BAND_65_PLUS]
    assert list(targeting.devices) == [scoring_pb2.DEVICE_MOBILE, scoring_pb2.DEVICE_TABLET]
    assert list(to_message(ADS[1]).targeting.genders) == [scoring_pb2.GENDER_FEMALE]


def test_limits_of_the_server_bound_each_request(tmp_path: Path) -> None:
    ads = [Ad(i, "x" * 100, f"a{i}", 1.0) for i in range(1, 101)]
    by_count, by_size = Scoring(max_updates=7), Scoring(max_message_bytes=1024)
    send(by_count, catalogue(tmp_path / "c", ads), tmp_path / "s1")
    send(by_size, tmp_path / "c", tmp_path / "s2")
    assert max(len(request.ads) + len(request.advertisers) for request in by_count.requests) == 7
    assert max(request.ByteSize() for request in by_size.requests if request.ads) <= 512 + 200
    assert len(by_count.ads) == len(by_size.ads) == 100


def test_a_known_catalogue_is_not_sent_again(tmp_path: Path) -> None:
    service, bundle = Scoring(), catalogue(tmp_path / "c", ADS)
    send(service, bundle, tmp_path / "s")
    service.ads[1].bid_usd = 9.0  # a user's change since
    assert send(service, bundle, tmp_path / "s") == 0
    assert service.ads[1].bid_usd == 9.0


@pytest.mark.parametrize("lost", ["ads", "mark", "other state"])
def test_it_is_sent_again_when_the_state_may_lack_it(tmp_path: Path, lost: str) -> None:
    service, bundle = Scoring(), catalogue(tmp_path / "c", ADS)
    send(service, bundle, tmp_path / "s")
    if lost == "ads":
        service.ads.clear()
    if lost == "mark":
        (tmp_path / "s" / MARK).write_text("{")
    assert (
        send(service, bundle, tmp_path / "s", "redis://u:pw@h/1" if lost == "other state" else "embedded")
        == 3
    )


def test_a_changed_catalogue_takes_its_lost_ads_away(tmp_path: Path) -> None:
    service = Scoring()
    send(service, catalogue(tmp_path / "c", ADS), tmp_path / "s")
    assert send(service, catalogue(tmp_path / "c", ADS[1:]), tmp_path / "s") == 2
    assert sorted(service.ads) == [2, 3]


def test_a_load_that_broke_off_is_repeated(tmp_path: Path) -> None:
    service, bundle = Scoring(max_updates=1), catalogue(tmp_path / "c", ADS)
    service.fail_at = 3
    with pytest.raises(Exception, match="broken"):
        send(service, bundle, tmp_path / "s")
    service.fail_at = -1
    assert 0 < len(service.ads) < 3
    assert send(service, bundle, tmp_path / "s") == 3


def test_the_mark_holds_no_url(tmp_path: Path) -> None:
    send(Scoring(), catalogue(tmp_path / "c", ADS), tmp_path / "s", "redis://user:hunter2@host/0")
    text = (tmp_path / "s" / MARK).read_text()
    assert "hunter2" not in text
    assert json.loads(text)["ad_ids"] == [1, 2, 3]
