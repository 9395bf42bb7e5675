"""SIGSTOP of each process of the stack under load, then SIGCONT: connections stay open and nothing answers.

Everywhere: within 5 s those who depend on it say so, no acknowledged click is lost, none is charged twice,
and 5 s after it goes on every call goes as if nothing had happened.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from drill_load import (
    BYPASSED,
    CACHE_ADDS_US,
    CACHE_UNAVAILABLE,
    RECOVERY_S,
    STALE_ADS,
    Load,
    added_at_most_us,
    burst,
    fresh_query,
    is_serving,
    loaded,
    median_and_worst,
    seconds_until,
)
from stack_process import Stack

from frugalads.client import Client, Options
from frugalads.scoring.v1 import scoring_pb2

pytestmark = pytest.mark.drill

ENVIRON: dict[str, str] = {}  # a user's timeouts: how long an answer waits for a silent cache is measured
NOTICED_S = 5.0
COMPUTATION_S = 2.0  # the longest computation of a list, after which its callers get their error


@contextmanager
def stopped(stack: Stack, name: str, load: Load) -> Iterator[float]:
    """A child that does not move for the time of a block; checks that all is well again after it."""
    pid = stack.pid(name)
    os.kill(pid, signal.SIGSTOP)
    stopped_s = time.monotonic()
    try:
        yield stopped_s
    finally:
        os.kill(pid, signal.SIGCONT)
    continued_s = time.monotonic()
    recovered_s = load.recovered_s(continued_s)
    print(f"{name}: last unusual call {recovered_s:.2f} s after SIGCONT")
    assert recovered_s <= RECOVERY_S
    assert stack.pid(name) == pid, "a stopped process is not a crash"


def is_known_up(stack: Stack, name: str) -> bool:
    """Whether scoring tells that a dependency answers."""
    with Client(stack.target, Options(timeout_s=2)) as client:
        return client.info().dependencies[name]


def beside_computing_us(answer: scoring_pb2.RankAdsResponse) -> int:
    """What an answer took without the phases of its computation."""
    timings = answer.timings
    return timings.total_us - timings.embed_us - timings.retrieve_us - timings.score_us


def let_pass(load: Load, seconds: float) -> float:
    """Lets the load go on; the instant it began."""
    began_s = time.monotonic()
    seconds_until(lambda: time.monotonic() > began_s + seconds, seconds + 1, "time passed")
    assert load.since(began_s)
    return began_s


@pytest.mark.parametrize("name", ["retrieval", "inference"])
def test_a_stopped_service_behind_the_cache_turns_readiness(stack: Stack, name: str) -> None:
    """Cached queries are answered, marked REFRESH_FAILED or UPSTREAM, none later than half a computation's
    time; new ones get UNAVAILABLE within that time, and at once when scoring has noticed.
    """
    with loaded(stack) as load:
        with stopped(stack, name, load) as stopped_s:
            noticed_s = seconds_until(
                lambda: not is_serving(stack, "scoring"), NOTICED_S, f"scoring is not ready without {name}"
            )
            print(f"{name}: scoring not ready {noticed_s:.2f} s after SIGSTOP")
            assert not is_serving(stack, name)
            quiet_s = let_pass(load, 1)
            at_once = [o for o in load.since(quiet_s, "fresh") if o.began_s > quiet_s]
            assert {o.code for o in at_once} == {"UNAVAILABLE"}
            assert max(o.ended_s - o.began_s for o in at_once) < 0.5
        strays = ("CACHE_UNAVAILABLE", "UNAVAILABLE")  # without the cache a warm query is a new one
        load.check_seen(stopped_s, "warm", "OK", "REFRESH_FAILED", "UPSTREAM", strays=strays)
        warm = [o for o in load.since(stopped_s, "warm") if o.code == "OK"]
        assert max(o.ended_s - o.began_s for o in warm) < COMPUTATION_S / 2 + 0.5
        assert load.check_seen(stopped_s, "fresh", "OK", "UNAVAILABLE")["UNAVAILABLE"]
        assert max(o.ended_s - o.began_s for o in load.since(stopped_s, "fresh")) < COMPUTATION_S + 0.75
        load.check_seen(stopped_s, "click", "OK")
        seconds_until(lambda: is_serving(stack, "scoring"), NOTICED_S, "scoring is ready again")


def test_a_stopped_sidecar_is_told_and_noticed_by_nobody(stack: Stack) -> None:
    """Every call goes as usual; GetInfo tells that the sidecar does not answer; scoring stays ready."""
    with loaded(stack) as load:
        with stopped(stack, "eviction", load) as stopped_s:
            seconds_until(lambda: not is_known_up(stack, "eviction"), NOTICED_S, "scoring noticed")
            assert is_serving(stack, "scoring")
            assert not is_serving(stack, "eviction")
        load.check_usual(stopped_s)


def test_a_stopped_cache_adds_at_most_its_timeout(stack: Stack) -> None:
    """Answers are computed, marked CACHE_UNAVAILABLE, at most 20 ms later; nobody gets an error. A burst
    beyond what can be computed at once gets RESOURCE_EXHAUSTED at worst.
    """
    with loaded(stack) as load:
        with stopped(stack, "cache", load) as stopped_s:
            noticed_s = seconds_until(lambda: not is_known_up(stack, "cache"), NOTICED_S, "scoring noticed")
            assert is_serving(stack, "scoring")
            let_pass(load, 2)
            answers = [
                o.answer
                for o in load.since(stopped_s)
                if o.answer is not None and o.answer.cache_state == BYPASSED
            ]
            assert len(answers) > 40
            before = [
                o.answer for o in load.outcomes if o.ended_s < stopped_s and o.kind == "fresh" and o.answer
            ]
            silent = [o.answer for o in load.since(stopped_s, "fresh") if o.answer in answers and o.answer]
            usual_us, _ = median_and_worst([beside_computing_us(a) for a in before])
            median_us, worst_us = median_and_worst([beside_computing_us(a) for a in silent])
            reads_us = median_and_worst([a.timings.cache_us for a in answers])
            print(
                f"cache: noticed after {noticed_s:.2f} s; {len(answers)} answers without it waited for it"
                f" {reads_us[0]:.0f} us (median), {reads_us[1]:.0f} us (worst); new queries took"
                f" {median_us - usual_us:.0f} us (median), {worst_us - usual_us:.0f} us (worst) more"
            )
            print(f"cache: a ready process waited {load.machine.worst_us(stopped_s):.0f} us at most")
            limit_us = added_at_most_us(load, stopped_s)
            assert reads_us[0] <= CACHE_ADDS_US
            assert reads_us[1] <= limit_us
            assert median_us - usual_us <= CACHE_ADDS_US
            assert worst_us - usual_us <= limit_us
            assert all(list(a.degraded_reasons) == [CACHE_UNAVAILABLE] for a in answers)
            for kind in ("warm", "fresh"):
                load.check_seen(stopped_s, kind, "OK", "CACHE_UNAVAILABLE")
            load.check_seen(stopped_s, "click", "OK")
            flood = burst(stack.target, [fresh_query() for _ in range(400)])
            print(f"cache: 400 new queries at once without a cache: {dict(flood)}")
            assert set(flood) <= {"OK", "RESOURCE_EXHAUSTED"}
        load.check_seen(stopped_s, "click", "OK", "RESOURCE_EXHAUSTED")


def test_a_stopped_state_refuses_clicks_and_marks_answers(stack: Stack) -> None:
    """Answers go on, marked STALE_ADS once the ads are a second old; clicks get UNAVAILABLE."""
    with loaded(stack) as load:
        with stopped(stack, "state", load) as stopped_s:
            noticed_s = seconds_until(lambda: not is_known_up(stack, "state"), NOTICED_S, "scoring noticed")
            assert is_serving(stack, "scoring")
            quiet_s = let_pass(load, 1.5)
            marked = [o for o in load.since(quiet_s) if o.answer is not None]
            assert all(STALE_ADS in o.answer.degraded_reasons for o in marked if o.answer)
            print(f"state: noticed after {noticed_s:.2f} s; clicks: {dict(load.seen(stopped_s, 'click'))}")
        for kind in ("warm", "fresh"):
            load.check_seen(stopped_s, kind, "OK", "STALE_ADS")
        assert load.check_seen(stopped_s, "click", "OK", "UNAVAILABLE")["UNAVAILABLE"]


def test_a_stopped_scoring_costs_no_more_than_its_callers_deadlines(stack: Stack) -> None:
    """Calls end at their deadline. What had queued is refused or answered when it goes on, all at once: such
    answers may be marked STALE_ADS and CACHE_UNAVAILABLE.
    """
    with loaded(stack) as load:
        with stopped(stack, "scoring", load) as stopped_s:
            seconds_until(lambda: not is_serving(stack, "scoring"), NOTICED_S, "its health does not answer")
            let_pass(load, 3.5)
        allowed = ("OK", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "STALE_ADS", "CACHE_UNAVAILABLE")
        for kind in ("warm", "fresh", "click"):
            seen = load.check_seen(stopped_s, kind, *allowed)
            print(f"scoring: {kind}: {dict(seen)}")
        assert "DEADLINE_EXCEEDED" in load.seen(stopped_s, "warm")
