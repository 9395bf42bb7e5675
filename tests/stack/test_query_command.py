import argparse
import json
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

from frugalads.scoring.v1 import scoring_pb2, scoring_pb2_grpc
from services.commands import info, query
from services.runtime.errors import UserError


class Scoring(scoring_pb2_grpc.ScoringServiceServicer):
    def __init__(self) -> None:
        self.requests: list[scoring_pb2.RankAdsRequest] = []
        self.answer = scoring_pb2.RankAdsResponse(
            ads=[
                scoring_pb2.RankedAd(
                    ad_id=7,
                    title="HP 85A black toner",
                    advertiser="Inkwell",
                    click_probability=0.0312,
                    bid_usd=1.5,
                    price_usd=1.25,
                )
            ],
            cache_state=scoring_pb2.CACHE_STATE_HIT,
            degraded_reasons=[scoring_pb2.DEGRADED_REASON_STALE_ADS],
            versions=scoring_pb2.Versions(index="ab" * 32, encoder="cd" * 32, scorer="ef" * 32),
            timings=scoring_pb2.Timings(cache_us=300, total_us=900),
            request_id="r-1",
            list_age_ms=2500,
        )

    def GetInfo(self, request: Any, context: Any) -> scoring_pb2.GetInfoResponse:
        return scoring_pb2.GetInfoResponse(ads=5)

    def RankAds(self, request: scoring_pb2.RankAdsRequest, context: Any) -> scoring_pb2.RankAdsResponse:
        self.requests.append(request)
        if not request.query:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "query: '' is not 1..256 characters")
        return self.answer


@pytest.fixture
def server() -> Iterator[tuple[Scoring, str]]:
    service = Scoring()
    running = grpc.server(futures.ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    scoring_pb2_grpc.add_ScoringServiceServicer_to_server(service, running)
    port = running.add_insecure_port("127.0.0.1:0")
    running.start()
    yield service, f"127.0.0.1:{port}"
    stopped: threading.Event = running.stop(0)
    stopped.wait(10)


def run(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    subparsers = parser.add_subparsers()
    query.register(subparsers)
    info.register(subparsers)
    args = parser.parse_args(argv)
    code: int = args.run(args)
    return code


def test_an_answer_is_shown_whole(server: tuple[Scoring, str], capsys: pytest.CaptureFixture[str]) -> None:
    _, target = server
    assert run("query", "laser printer toner", "--target", target) == 0
    shown = capsys.readouterr().out
    for words in (
        "HP 85A black toner", "Inkwell", "0.0312", "1.50", "1.25", "HIT, list 2.5 s old",
        "predicted loss $0.0000", "degraded  STALE_ADS", "index abababababab", "encoder cdcdcdcdcdcd",
        "scorer efefefefefef", "cache 0.3", "total 0.9", "r-1", "round trip",
    ):  # fmt: skip
        assert words in shown


def test_the_user_is_passed_on(server: tuple[Scoring, str]) -> None:
    service, target = server
    options = (
        "--slots",
        "2",
        "--location",
        "US-CA",
        "--gender",
        "female",
        "--age-band",
        "65+",
        "--device",
        "mobile",
    )
    run("query", "toner", "--target", target, *options)
    assert service.requests == [
        scoring_pb2.RankAdsRequest(
            query="toner",
            slots=2,
            user=scoring_pb2.User(
                location="US-CA",
                gender=scoring_pb2.GENDER_FEMALE,
                age_band=scoring_pb2.AGE_BAND_65_PLUS,
                device=scoring_pb2.DEVICE_MOBILE,
            ),
        )
    ]


@pytest.mark.parametrize("band", query.AGE_BANDS)
def test_every_age_band_exists(server: tuple[Scoring, str], band: str) -> None:
    service, target = server
    run("query", "toner", "--target", target, "--age-band", band)
    assert service.requests[0].user.age_band != scoring_pb2.AGE_BAND_UNSPECIFIED


def test_json_is_the_whole_answer(server: tuple[Scoring, str], capsys: pytest.CaptureFixture[str]) -> None:
    service, target = server
    run("query", "toner", "--target", target, "--json")
    shown = json.loads(capsys.readouterr().out)
    assert shown["cache_state"] == "CACHE_STATE_HIT"
    assert shown["ads"][0]["title"] == "HP 85A black toner"
    assert shown["timings"]["embed_us"] == "0"
    assert set(shown) == set(service.answer.DESCRIPTOR.fields_by_name)


def test_no_ads_is_said(server: tuple[Scoring, str], capsys: pytest.CaptureFixture[str]) -> None:
    service, target = server
    del service.answer.ads[:]
    run("query", "toner", "--target", target)
    assert "no ad fits this query" in capsys.readouterr().out


def test_a_refused_query_tells_why(server: tuple[Scoring, str]) -> None:
    _, target = server
    with pytest.raises(UserError, match=r"query: '' is not 1\.\.256 characters"):
        run("query", "", "--target", target)


def test_nothing_there_says_what_to_do() -> None:
    with pytest.raises(UserError, match=r"nothing answers at 127\.0\.0\.1:1: start .* `frugalads up`"):
        run("query", "toner", "--target", "127.0.0.1:1")


@pytest.mark.parametrize("target", ["nowhere", "127.0.0.1:99999"])
def test_a_malformed_target_is_named(target: str) -> None:
    with pytest.raises(UserError, match="target"):
        run("query", "toner", "--target", target)


def test_info_names_the_silent(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("info", "--base-port", "60000") == 1
    shown = capsys.readouterr().out
    for service in ("scoring", "retrieval", "inference", "eviction"):
        assert f"{service} at 127.0.0.1:" in shown
    assert shown.count("no answer: UNAVAILABLE") == 4
