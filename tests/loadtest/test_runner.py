import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import numpy as np
import pytest

from frugalads.scoring.v1 import scoring_pb2, scoring_pb2_grpc
from loadtest.runner import UNSENT, Load, Samples, first_lines, replay, require_loopback
from services.runtime.errors import UserError

Handler = Callable[[int, scoring_pb2.RankAdsRequest, Any], Awaitable[scoring_pb2.RankAdsResponse]]
QUERIES = ("laser printer toner", "usb cable")


class Scoring(scoring_pb2_grpc.ScoringServiceServicer):
    """Answers by `handler`, which is told how many requests came before."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.requests: list[scoring_pb2.RankAdsRequest] = []
        self.clicks: list[scoring_pb2.Click] = []
        self.waiting = self.most_waiting = 0

    async def RankAds(self, request: scoring_pb2.RankAdsRequest, context: Any) -> scoring_pb2.RankAdsResponse:
        self.requests.append(request)
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        try:
            return await self.handler(len(self.requests) - 1, request, context)
        finally:
            self.waiting -= 1

    async def RecordClicks(
        self, request: scoring_pb2.RecordClicksRequest, context: Any
    ) -> scoring_pb2.RecordClicksResponse:
        self.clicks += request.clicks
        charged = scoring_pb2.CLICK_OUTCOME_CHARGED
        return scoring_pb2.RecordClicksResponse(outcomes=[charged] * len(request.clicks))


def run(
    handler: Handler, load: Load, on_progress: Callable[[int, Samples], None] = lambda _ended, _samples: None
) -> tuple[Samples, Scoring]:
    service = Scoring(handler)

    async def serve() -> Samples:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        scoring_pb2_grpc.add_ScoringServiceServicer_to_server(service, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            return await replay(f"127.0.0.1:{port}", load, on_progress)
        finally:
            await server.stop(0)

    return asyncio.run(serve()), service


def ads(*probabilities: float) -> list[scoring_pb2.RankedAd]:
    return [
        scoring_pb2.RankedAd(ad_id=i + 1, click_probability=p, price_usd=0.5, click_token=b"%d" % i)
        for i, p in enumerate(probabilities)
    ]


async def answer(_i: int, _request: scoring_pb2.RankAdsRequest, _context: Any) -> scoring_pb2.RankAdsResponse:
    return scoring_pb2.RankAdsResponse(
        ads=ads(0.2, 0.1),
        cache_state=scoring_pb2.CACHE_STATE_MISS,
        timings=scoring_pb2.Timings(embed_us=10, retrieve_us=20, score_us=30, total_us=100),
    )


def test_every_request_is_sent_and_kept() -> None:
    samples, service = run(answer, Load(QUERIES, rate_per_s=400, requests=60, slots=3))
    assert sorted(request.query for request in service.requests) == sorted(QUERIES * 30)
    assert samples.query.tolist() == [0, 1] * 30
    assert {request.slots for request in service.requests} == {3}
    assert samples.code.tolist() == [0] * 60
    assert samples.compute_us.tolist() == [60] * 60
    assert samples.ads.tolist() == [2] * 60
    assert samples.revenue_usd == pytest.approx(np.full(60, 0.15))
    assert (samples.sent_s >= samples.scheduled_s).all()
    assert (samples.latency_ms() > 0).all()


def test_users_are_seeded_and_varied() -> None:
    load = Load(QUERIES, rate_per_s=1000, requests=100, seed=5)
    (_, one), (_, same) = run(answer, load), run(answer, load)
    # Sorted: at a thousand a second, two requests may reach the server in the other order.
    users = sorted(request.user.SerializeToString() for request in one.requests)
    assert users == sorted(request.user.SerializeToString() for request in same.requests)
    assert len(set(users)) > 30
    assert any(not request.user.location for request in one.requests)


def test_a_stall_counts_against_every_request_that_was_due_meanwhile() -> None:
    """The server stops for 400 ms. All requests are sent on time, and each waits for the end of the stall."""
    stalled_until: list[float] = []

    async def stalls(
        i: int, request: scoring_pb2.RankAdsRequest, context: Any
    ) -> scoring_pb2.RankAdsResponse:
        loop = asyncio.get_running_loop()
        if i == 0:
            stalled_until.append(loop.time() + 0.4)
        await asyncio.sleep(stalled_until[0] - loop.time())
        return await answer(i, request, context)

    samples, service = run(stalls, Load(QUERIES, rate_per_s=200, requests=60))
    first = samples.scheduled_s[0]
    due_meanwhile = samples.scheduled_s < first + 0.35
    assert due_meanwhile.sum() > 40
    assert service.most_waiting > 30  # a closed loop would have one waiting
    expected_ms = (first + 0.4 - samples.scheduled_s[due_meanwhile]) * 1e3
    assert (samples.latency_ms()[due_meanwhile] >= expected_ms - 2).all()


def test_a_stall_of_the_sender_counts_as_well() -> None:
    """Server and sender share a loop here, so a blocked loop makes the sends late: latency still runs from
    the schedule."""
    import time

    async def blocks(
        i: int, request: scoring_pb2.RankAdsRequest, context: Any
    ) -> scoring_pb2.RankAdsResponse:
        if i == 0:
            time.sleep(0.3)  # noqa: ASYNC251
        return await answer(i, request, context)

    samples, _ = run(blocks, Load(QUERIES, rate_per_s=200, requests=40))
    late_ms = (samples.sent_s - samples.scheduled_s) * 1e3
    assert late_ms.max() > 150
    assert (samples.latency_ms() >= late_ms).all()


def test_in_flight_is_bounded_and_the_rest_is_unsent() -> None:
    gate = asyncio.Event()

    async def holds(i: int, request: scoring_pb2.RankAdsRequest, context: Any) -> scoring_pb2.RankAdsResponse:
        await gate.wait()
        return await answer(i, request, context)

    load = Load(QUERIES, rate_per_s=500, requests=50, max_in_flight=5, timeout_s=0.5)
    samples, service = run(holds, load)
    assert service.most_waiting == 5
    assert (samples.code == UNSENT).sum() == 45
    assert np.isnan(samples.latency_ms()[samples.code == UNSENT]).all()
    assert (samples.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]).sum() == 5


def test_errors_and_timeouts_are_samples_with_their_code() -> None:
    async def fails(i: int, request: scoring_pb2.RankAdsRequest, context: Any) -> scoring_pb2.RankAdsResponse:
        if i % 3 == 0:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        if i % 3 == 1:
            await asyncio.sleep(30)
        return await answer(i, request, context)

    samples, _ = run(fails, Load(QUERIES, rate_per_s=300, requests=30, timeout_s=0.3))
    assert np.bincount(samples.code).tolist() == [10, 0, 0, 0, 10, 0, 0, 0, 10]
    assert not np.isnan(samples.latency_ms()).any()
    timed_out = samples.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
    assert samples.latency_ms()[timed_out] == pytest.approx(np.full(10, 300), abs=150)
    assert samples.revenue_usd[samples.code != 0].sum() == 0
    assert samples.example_error == "RESOURCE_EXHAUSTED: full"


def test_a_server_that_goes_away_gives_errors_not_a_crash() -> None:
    async def leave_early() -> Samples:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        scoring_pb2_grpc.add_ScoringServiceServicer_to_server(Scoring(answer), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        leaving: list[asyncio.Task[None]] = []

        def on_progress(ended: int, _samples: Samples) -> None:
            if ended == 10:
                leaving.append(asyncio.create_task(server.stop(0)))

        samples = await replay(f"127.0.0.1:{port}", Load(QUERIES, 300, 60, timeout_s=2), on_progress)
        await asyncio.gather(*leaving)
        return samples

    codes = asyncio.run(leave_early()).code
    assert (codes == 0).sum() >= 10
    assert (codes == grpc.StatusCode.UNAVAILABLE.value[0]).sum() > 20
    assert UNSENT not in codes


def test_no_server_is_said_before_anything_is_measured() -> None:
    with pytest.raises(UserError, match=r"nothing answers at 127\.0\.0\.1:1"):
        asyncio.run(replay("127.0.0.1:1", Load(QUERIES, 100, 5), connect_s=0.3))


def test_clicks_follow_the_returned_probabilities() -> None:
    async def likely(
        i: int, request: scoring_pb2.RankAdsRequest, context: Any
    ) -> scoring_pb2.RankAdsResponse:
        return scoring_pb2.RankAdsResponse(ads=ads(1.0, 0.5, 0.0))

    samples, service = run(likely, Load(QUERIES, rate_per_s=1000, requests=200, clicks=True))
    by_ad = [sum(click.click_token == token for click in service.clicks) for token in (b"0", b"1", b"2")]
    assert by_ad[0] == 200
    assert 60 < by_ad[1] < 140
    assert by_ad[2] == 0
    assert len({click.click_id for click in service.clicks}) == sum(by_ad)
    assert samples.clicks == {"drawn": sum(by_ad), "charged": sum(by_ad), "duplicate": 0, "failed": 0}


def test_what_answers_lack_is_counted_by_name() -> None:
    async def degraded(
        i: int, request: scoring_pb2.RankAdsRequest, context: Any
    ) -> scoring_pb2.RankAdsResponse:
        reasons = [scoring_pb2.DEGRADED_REASON_CACHE_UNAVAILABLE, scoring_pb2.DEGRADED_REASON_STALE_ADS]
        return scoring_pb2.RankAdsResponse(ads=ads(0.25), degraded_reasons=reasons[: i % 3])

    samples, _ = run(degraded, Load(QUERIES, rate_per_s=1000, requests=30))
    assert samples.degraded_reasons == {"CACHE_UNAVAILABLE": 20, "STALE_ADS": 10}
    assert samples.degraded.sum() == 20
    assert (samples.first_click == 0.25).all()


def test_without_clicks_none_are_sent() -> None:
    samples, service = run(answer, Load(QUERIES, rate_per_s=1000, requests=20))
    assert service.clicks == []
    assert samples.clicks == {}


def test_progress_counts_up_to_all() -> None:
    seen: list[int] = []
    run(answer, Load(QUERIES, rate_per_s=500, requests=20), lambda ended, _samples: seen.append(ended))
    assert seen == list(range(1, 21))


@pytest.mark.parametrize(
    "target", ["ads.example.com:7400", "10.0.0.1:7400", "127.0.0.1", "0.0.0.0:1", ":7400"]
)
def test_other_machines_are_refused(target: str) -> None:
    with pytest.raises(UserError, match="is not host:port of a loopback address"):
        asyncio.run(replay(target, Load(QUERIES, rate_per_s=1, requests=1)))


@pytest.mark.parametrize("target", ["localhost:1", "[::1]:1", "127.9.9.9:1"])
def test_every_loopback_address_is_accepted(target: str) -> None:
    require_loopback(target)


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (Load((), 1, 1), "the list of queries is empty"),
        (Load(QUERIES, 1, 1, slots=0), "--slots: 0 is not in"),
        (Load(QUERIES, 1, 1, timeout_s=float("nan")), "--timeout: nan is not in"),
        (Load(QUERIES, 1, 1, max_in_flight=0), "--max-in-flight: 0 is not in"),
        (Load(QUERIES, 0, 1), "--rate: 0 is not in"),
    ],
)
def test_bad_loads_are_named(load: Load, words: str) -> None:
    with pytest.raises(UserError, match=words):
        asyncio.run(replay("127.0.0.1:1", load))


def test_repeats_of_a_query_in_a_stream_count_as_one_query() -> None:
    assert first_lines(["a", "b", "a", "c", "b", "a"]).tolist() == [0, 1, 0, 3, 1, 0]
