import argparse
import json
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from frugalads.retrieval.v1 import retrieval_pb2, retrieval_pb2_grpc
from frugalads.scoring.v1 import scoring_pb2, scoring_pb2_grpc
from services.commands import info, query
from services.runtime.errors import UserError
from services.stack.ports import free_base


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
        "HP 85A black toner", "Inkwell", "0.0312", "1.50", "1.25", "HIT, list 2.5 s old\n",
        "degraded  STALE_ADS", "index abababababab", "encoder cdcdcdcdcdcd",
        "scorer efefefefefef", "cache 0.3", "total 0.9", "r-1", "round trip",
    ):  # fmt: skip
        assert words in shown


def test_a_predicted_loss_is_shown_where_there_is_one(
    server: tuple[Scoring, str], capsys: pytest.CaptureFixture[str]
) -> None:
    service, target = server
    service.answer.predicted_loss_usd = 0.0125
    run("query", "toner", "--target", target)
    assert "HIT, list 2.5 s old, predicted loss $0.0125\n" in capsys.readouterr().out


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
    base = free_base(27_000)
    assert run("info", "--base-port", str(base)) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{service}: nothing answers at 127.0.0.1:{base + at}; start with frugalads up"
        for at, service in enumerate(("scoring", "retrieval", "inference", "eviction"))
    ]


class Retrieval(retrieval_pb2_grpc.RetrievalServiceServicer):
    def GetInfo(self, request: Any, context: Any) -> retrieval_pb2.GetInfoResponse:
        versions = retrieval_pb2.Versions(index="ab" * 32)
        return retrieval_pb2.GetInfoResponse(
            ads=6000, versions=versions, limits=retrieval_pb2.Limits(max_k=200)
        )


def test_info_is_a_short_table_and_json_says_everything(capsys: pytest.CaptureFixture[str]) -> None:
    base = free_base(27_000)
    running = grpc.server(futures.ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    scoring_pb2_grpc.add_ScoringServiceServicer_to_server(Scoring(), running)
    retrieval_pb2_grpc.add_RetrievalServiceServicer_to_server(Retrieval(), running)
    health_servicer = health.HealthServicer()
    health_servicer.set("frugalads.retrieval.v1.RetrievalService", health_pb2.HealthCheckResponse.SERVING)
    health_servicer.set("frugalads.scoring.v1.ScoringService", health_pb2.HealthCheckResponse.NOT_SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, running)
    for port in (base, base + 1):
        running.add_insecure_port(f"127.0.0.1:{port}")
    running.start()
    try:
        assert run("info", "--base-port", str(base)) == 1
        table = capsys.readouterr().out.splitlines()
        assert run("info", "--base-port", str(base), "--json") == 1
        document = json.loads(capsys.readouterr().out)
    finally:
        running.stop(0).wait(10)
    assert table[0].split() == ["service", "address", "ready", "holds", "limits", "versions"]
    assert table[1].split() == [
        "scoring",
        f"127.0.0.1:{base}",
        "no",
        "5",
        "ads",
        *["0", "slots,", "0", "characters"],
    ]
    assert table[2].split() == [
        *("retrieval", f"127.0.0.1:{base + 1}", "yes", "6,000", "ads", "k", "up", "to", "200"),
        *("index", "ab" * 6),
    ]
    assert "inference: nothing answers" in table[3]
    assert document["retrieval"]["limits"]["max_k"] == 200
    assert document["retrieval"]["ready"] is True
    assert document["eviction"] is None
