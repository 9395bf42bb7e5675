"""Calls of both clients: messages, deadlines, retries, cancellation, closing."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from redis_process import free_port
from scripted_server import Fail, Hang, ScriptedServer, serving

from frugalads.client import (
    AsyncClient,
    Client,
    DeadlineExceededError,
    FrugalAdsError,
    InvalidArgumentError,
    Options,
    ResourceExhaustedError,
    UnavailableError,
)
from frugalads.scoring.v1 import scoring_pb2

UNAVAILABLE = Fail(grpc.StatusCode.UNAVAILABLE)

Call = Callable[..., Message]


def _blocking(target: str, method: str, *args: Any, options: Options | None = None, **kwargs: Any) -> Message:
    with Client(target, options) as client:
        answer: Message = getattr(client, method)(*args, **kwargs)
        return answer


def _asyncio(target: str, method: str, *args: Any, options: Options | None = None, **kwargs: Any) -> Message:
    async def main() -> Message:
        async with AsyncClient(target, options) as client:
            answer: Message = await getattr(client, method)(*args, **kwargs)
            return answer

    return asyncio.run(main())


@pytest.fixture(params=[_blocking, _asyncio], ids=["blocking", "asyncio"])
def call(request: pytest.FixtureRequest) -> Call:
    """One call by a fresh client of each kind."""
    made: Call = request.param
    return made


METHODS = [
    (
        ("rank_ads", ("toner",), {"user": scoring_pb2.User(device=scoring_pb2.DEVICE_MOBILE), "slots": 2}),
        scoring_pb2.RankAdsRequest(
            query="toner", user=scoring_pb2.User(device=scoring_pb2.DEVICE_MOBILE), slots=2
        ),
    ),
    (
        ("record_clicks", ([scoring_pb2.Click(click_id="a", click_token=b"t")],), {}),
        scoring_pb2.RecordClicksRequest(clicks=[scoring_pb2.Click(click_id="a", click_token=b"t")]),
    ),
    (
        (
            "update_ads",
            (),
            {
                "ads": [scoring_pb2.Ad(ad_id=1)],
                "changes": [scoring_pb2.AdChange(ad_id=2, paused=True)],
                "delete_ad_ids": [3],
                "advertisers": [scoring_pb2.Advertiser(advertiser="a")],
            },
        ),
        scoring_pb2.UpdateAdsRequest(
            ads=[scoring_pb2.Ad(ad_id=1)],
            changes=[scoring_pb2.AdChange(ad_id=2, paused=True)],
            delete_ad_ids=[3],
            advertisers=[scoring_pb2.Advertiser(advertiser="a")],
        ),
    ),
    (("info", (), {}), scoring_pb2.GetInfoRequest()),
]


@pytest.mark.parametrize(("told", "sent"), METHODS, ids=[told[0] for told, _ in METHODS])
def test_every_method_sends_its_request_and_retries_it(
    server: ScriptedServer, call: Call, told: Any, sent: Message
) -> None:
    method, args, kwargs = told
    server.script.extend([UNAVAILABLE, UNAVAILABLE])
    answer = call(server.target, method, *args, **kwargs)
    assert [seen.request for seen in server.seen] == [sent] * 3
    assert type(answer).__name__ == type(sent).__name__.replace("Request", "Response")


def test_the_answer_is_the_message_of_the_server(server: ScriptedServer, call: Call) -> None:
    answer = call(server.target, "rank_ads", "laser printer", slots=3)
    assert isinstance(answer, scoring_pb2.RankAdsResponse)
    assert [ad.ad_id for ad in answer.ads] == [0, 1, 2]
    assert answer.cache_state == scoring_pb2.CACHE_STATE_HIT


def test_unavailable_is_raised_when_the_attempts_are_used_up(server: ScriptedServer, call: Call) -> None:
    server.script.extend([UNAVAILABLE] * 9)
    with pytest.raises(UnavailableError, match="scripted"):
        call(server.target, "info", options=Options(attempts=4))
    assert len(server.seen) == 4


def test_one_attempt_never_retries(server: ScriptedServer, call: Call) -> None:
    server.script.append(UNAVAILABLE)
    with pytest.raises(UnavailableError):
        call(server.target, "info", options=Options(attempts=1))
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    "code",
    [code for code in grpc.StatusCode if code not in (grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE)],
)
def test_no_other_code_is_retried(server: ScriptedServer, code: grpc.StatusCode) -> None:
    server.script.append(Fail(code))
    with pytest.raises(FrugalAdsError) as raised:
        _blocking(server.target, "info")
    assert raised.value.code == code
    assert len(server.seen) == 1


def test_a_server_may_ask_for_a_longer_pause(server: ScriptedServer, call: Call) -> None:
    server.script.append(Fail(grpc.StatusCode.UNAVAILABLE, trailers=(("grpc-retry-pushback-ms", "300"),)))
    call(server.target, "info")
    first, second = server.seen
    assert second.at_s - first.at_s >= 0.3


def test_a_server_may_forbid_the_retry(server: ScriptedServer, call: Call) -> None:
    server.script.append(Fail(grpc.StatusCode.UNAVAILABLE, trailers=(("grpc-retry-pushback-ms", "-1"),)))
    with pytest.raises(UnavailableError):
        call(server.target, "info")
    assert len(server.seen) == 1


def test_a_request_of_megabytes_is_retried_too(server: ScriptedServer, call: Call) -> None:
    ads = [scoring_pb2.Ad(ad_id=n, description="x" * 2000) for n in range(1000)]
    server.script.append(UNAVAILABLE)
    call(server.target, "update_ads", ads=ads)
    assert len(server.seen) == 2


def test_nobody_there_is_unavailable(call: Call) -> None:
    with pytest.raises(UnavailableError) as raised:
        call(f"127.0.0.1:{free_port()}", "info")
    assert raised.value.reason == ""
    assert raised.value.retry_after_s is None


def test_a_server_that_comes_back_is_found_within_the_call(call: Call) -> None:
    address = f"127.0.0.1:{free_port()}"
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(call, address, "info", options=Options(attempts=5, timeout_s=10))
        with serving(address=address):
            assert isinstance(answer.result(), scoring_pb2.GetInfoResponse)


def test_every_call_has_a_deadline(server: ScriptedServer, call: Call) -> None:
    call(server.target, "info")
    call(server.target, "info", options=Options(timeout_s=0.9))
    call(server.target, "info", timeout_s=30.0)
    # gRPC rounds the time up on the wire.
    default, option, argument = (seen.time_remaining_s for seen in server.seen)
    assert 1 < default < 2.2
    assert 0 < option <= 1
    assert 29 < argument < 31


def test_the_deadline_ends_the_call_at_both_ends(server: ScriptedServer, call: Call) -> None:
    server.script.append(Hang())
    with pytest.raises(DeadlineExceededError) as raised:
        call(server.target, "info", timeout_s=0.2)
    assert server.ended.wait(timeout=5)
    assert raised.value.code == grpc.StatusCode.DEADLINE_EXCEEDED
    assert len(server.seen) == 1


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("inf"), float("nan"), 3601.0])
def test_a_deadline_out_of_bounds_is_refused_before_the_call(
    server: ScriptedServer, call: Call, timeout_s: float
) -> None:
    with pytest.raises(ValueError, match=re.escape(f"timeout_s: {timeout_s} is outside")):
        call(server.target, "info", timeout_s=timeout_s)
    assert not server.seen


def test_too_large_a_message_names_the_limit(server: ScriptedServer, call: Call) -> None:
    with pytest.raises(ResourceExhaustedError, match="2048"):
        call(server.target, "rank_ads", "x" * 5000, options=Options(max_message_bytes=2048))
    assert not server.seen


def test_an_error_carries_request_and_cause(server: ScriptedServer, call: Call) -> None:
    server.script.append(Fail(grpc.StatusCode.INVALID_ARGUMENT, "slots: 99 is outside 1..20"))
    with pytest.raises(
        InvalidArgumentError, match=r"^INVALID_ARGUMENT: slots: 99 is outside 1\.\.20$"
    ) as raised:
        call(server.target, "rank_ads", "x", slots=99)
    assert raised.value.request == scoring_pb2.RankAdsRequest(query="x", slots=99)
    assert raised.value.message == "slots: 99 is outside 1..20"
    assert isinstance(raised.value.__cause__, grpc.RpcError)


def test_a_number_that_the_message_cannot_hold_is_a_value_error(server: ScriptedServer, call: Call) -> None:
    with pytest.raises(ValueError, match=r"[Oo]ut of range|not in range"):
        call(server.target, "rank_ads", "x", slots=1 << 40)


def test_cancelling_the_task_cancels_the_call_and_leaves_the_others(server: ScriptedServer) -> None:
    async def main() -> None:
        async with AsyncClient(server.target) as client:
            server.script.append(Hang())
            waiting = asyncio.create_task(client.rank_ads("x", timeout_s=20))
            assert await asyncio.to_thread(server.arrived.wait, 5)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await asyncio.to_thread(server.ended.wait, 5)
            answers = await asyncio.gather(*(client.rank_ads(str(n), slots=1) for n in range(20)))
            assert [answer.ads[0].title for answer in answers] == [str(n) for n in range(20)]

    asyncio.run(main())


def test_an_asyncio_timeout_cancels_the_call(server: ScriptedServer) -> None:
    async def main() -> None:
        async with AsyncClient(server.target) as client:
            server.script.append(Hang())
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await client.info(timeout_s=20)
            assert await asyncio.to_thread(server.ended.wait, 5)

    asyncio.run(main())


def test_threads_share_a_client(server: ScriptedServer) -> None:
    with Client(server.target) as client, ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda n: client.rank_ads(str(n), slots=1), range(100)))
    assert [answer.ads[0].title for answer in answers] == [str(n) for n in range(100)]


def test_closing_ends_calls_of_other_threads(server: ScriptedServer) -> None:
    server.script.append(Hang())
    client = Client(server.target)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.info, timeout_s=20)
        assert server.arrived.wait(timeout=5)
        client.close()
        with pytest.raises(FrugalAdsError) as raised:
            waiting.result(timeout=5)
    assert raised.value.code == grpc.StatusCode.CANCELLED
    assert server.ended.wait(timeout=5)


def test_a_closed_client_says_so(server: ScriptedServer) -> None:
    client = Client(server.target)
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="the client is closed"):
        client.info()

    async def main() -> None:
        closing = AsyncClient(server.target)
        await closing.info()
        await closing.close()
        await closing.close()
        with pytest.raises(RuntimeError, match="the client is closed"):
            await closing.info()

    asyncio.run(main())


def test_an_asyncio_client_belongs_to_one_loop(server: ScriptedServer) -> None:
    client = AsyncClient(server.target)

    async def first() -> None:
        await client.info()
        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, client.info())

    async def closing() -> None:
        await first()
        await client.close()

    asyncio.run(closing())


FORKS = """
import os, sys
from frugalads.client import Client

def child(step):
    pid = os.fork()
    if pid == 0:
        try:
            print(step, type(client.info(timeout_s=5)).__name__, flush=True)
        except RuntimeError as error:
            print(step, error, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)

client = Client(sys.argv[1])
child("before")
client.info()
child("after")
client.info()
print("parent goes on")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_calls_or_is_refused_but_never_hangs(server: ScriptedServer) -> None:
    script = subprocess.run(
        [sys.executable, "-c", FORKS, server.target], capture_output=True, text=True, timeout=60, check=True
    )
    before, after, end = script.stdout.splitlines()
    assert before == "before GetInfoResponse"
    assert after.startswith("after this channel was opened by process")
    assert end == "parent goes on"


def test_a_client_that_nobody_called_holds_no_thread(server: ScriptedServer) -> None:
    before = threading.active_count()
    with Client(server.target):
        assert threading.active_count() == before
