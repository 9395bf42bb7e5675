"""What a user and an operator see when a part of the running stack fails."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest
from redis_process import wait_until
from stack_process import Stack, frugalads, running_stack

from frugalads.client import Client, FrugalAdsError, Options, UnavailableError
from frugalads.scoring.v1 import scoring_pb2


def answers(client: Client, query: str) -> bool:
    try:
        client.rank_ads(query)
    except FrugalAdsError:
        return False
    return True


@pytest.mark.parametrize("name", ["retrieval", "inference"])
def test_killed_upstream_serves_cached_lists_and_comes_back(stack: Stack, name: str) -> None:
    query = f"query kept while {name} is gone laptop"
    with Client(stack.target, Options(timeout_s=5)) as client:
        client.rank_ads(query)
        os.kill(stack.pid(name), signal.SIGKILL)
        start = time.monotonic()
        states = {client.rank_ads(query).cache_state for _ in range(12)}
        assert states <= {
            scoring_pb2.CACHE_STATE_HIT,
            scoring_pb2.CACHE_STATE_REFRESHED,
        }, "the cached list is served"
        wait_until(lambda: answers(client, f"never asked before {time.monotonic_ns()}"), 30)
        assert time.monotonic() - start < 15
    wait_until(lambda: name in stack.output and "restart" in stack.output.lower(), 5)


def test_killed_cache_means_computing_and_comes_back(stack: Stack) -> None:
    with Client(stack.target, Options(timeout_s=5)) as client:
        client.rank_ads("bluetooth speaker")
        os.kill(stack.pid("cache"), signal.SIGKILL)
        for _ in range(5):
            answer = client.rank_ads("bluetooth speaker")
            assert answer.ads
        wait_until(
            lambda: client.rank_ads("bluetooth speaker").cache_state == scoring_pb2.CACHE_STATE_HIT, 20
        )


def test_killed_state_keeps_answers_and_refuses_clicks(stack: Stack) -> None:
    with Client(stack.target, Options(timeout_s=3, attempts=1)) as client:
        ad = client.rank_ads("coffee machine").ads[0]
        os.kill(stack.pid("state"), signal.SIGSTOP)
        try:
            with pytest.raises(UnavailableError):
                client.record_clicks([scoring_pb2.Click(click_id="while-silent", click_token=ad.click_token)])
            assert client.rank_ads("coffee machine").ads
            wait_until(
                lambda: (
                    scoring_pb2.DEGRADED_REASON_STALE_ADS
                    in client.rank_ads("coffee machine").degraded_reasons
                ),
                5,
            )
        finally:
            os.kill(stack.pid("state"), signal.SIGCONT)

        def charged() -> bool:
            try:
                client.record_clicks([scoring_pb2.Click(click_id="after", click_token=ad.click_token)])
            except UnavailableError:
                return False
            return True

        wait_until(charged, 10)


def test_killed_sidecar_never_disturbs_answers(stack: Stack) -> None:
    with Client(stack.target) as client:
        client.rank_ads("hiking boots")
        os.kill(stack.pid("eviction"), signal.SIGKILL)
        for index in range(20):
            assert client.rank_ads(f"hiking boots {index % 3}").cache_state != 0


def test_three_crashes_of_one_child_stop_the_stack(work_folder: Path) -> None:
    with running_stack(work_folder) as stack:
        pid = stack.pid("retrieval")
        for _ in range(2):
            os.kill(pid, signal.SIGKILL)
            pid = await_successor(stack, "retrieval", pid)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not stack.is_alive, 30)
        assert stack.stop() != 0
        assert "retrieval" in stack.output


def await_successor(stack: Stack, name: str, killed: int) -> int:
    """The process id of the child that took the place of a killed one."""
    wait_until(lambda: stack.successor(name, killed) is not None, 30, f"{name} was started again")
    return stack.pid(name)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything_cleanly(work_folder: Path, number: signal.Signals) -> None:
    with running_stack(work_folder) as stack:
        children = stack.descendants()
        assert len(children) >= 6
        assert stack.stop(number) == 0
        assert not any(child.is_running() for child in children)


def test_a_killed_supervisor_leaves_no_orphans(work_folder: Path) -> None:
    with running_stack(work_folder) as stack:
        children = stack.descendants()
        stack.process.kill()
        wait_until(lambda: not any(c.is_running() and c.status() != "zombie" for c in children), 20)


def test_an_occupied_port_is_named_before_anything_starts(work_folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = frugalads("up", "--data", work_folder, "--base-port", port, check=False)
    assert done.returncode == 2
    assert f"{port} (scoring)" in done.stderr


def test_a_missing_or_altered_bundle_is_named(work_folder: Path) -> None:
    index = work_folder / "index"
    victim = max(index.iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 0xFF
    victim.write_bytes(data)
    done = frugalads("up", "--data", work_folder, "--base-port", 27400, check=False)
    assert done.returncode != 0
    assert victim.name in done.stdout + done.stderr
    assert "SHA-256" in done.stdout + done.stderr
    shutil.rmtree(index)
    done = frugalads("up", "--data", work_folder, "--base-port", 27400, check=False)
    assert done.returncode == 2
    assert "frugalads index build" in done.stderr


def test_no_stack_is_said_in_a_sentence() -> None:
    done = frugalads("query", "tv", "--target", "127.0.0.1:1", check=False)
    assert done.returncode == 2
    assert "nothing answers at 127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
