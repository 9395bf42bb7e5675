"""kill -9 of each process of the stack under load: who notices, what they see, and for how long.

Everywhere: no acknowledged click is lost, none is charged twice, and 5 s after the kill every call goes as if
nothing had happened.
"""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest
from drill_load import RECOVERY_S, Load, is_serving, loaded
from redis_process import wait_until
from stack_process import SERVICES, Stack

pytestmark = pytest.mark.drill


def kill(stack: Stack, name: str, load: Load) -> float:
    """Kills a child and waits until all is as usual again; the instant of the kill."""
    pid, killed_s = stack.pid(name), time.monotonic()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: replaced(stack, name, pid), RECOVERY_S, f"another {name} runs")
    back_s = time.monotonic() - killed_s
    recovered_s = load.recovered_s(killed_s)
    print(f"{name}: runs {back_s:.2f} s after kill -9, last unusual call {recovered_s:.2f} s after it")
    assert recovered_s <= RECOVERY_S
    return killed_s


def replaced(stack: Stack, name: str, pid: int) -> bool:
    """Whether another process runs in place of a child; a service must be ready, too."""
    try:
        return stack.pid(name) != pid and (name not in SERVICES or is_serving(stack, name))
    except (AssertionError, psutil.NoSuchProcess):
        return False


@pytest.mark.parametrize("name", ["retrieval", "inference"])
def test_a_killed_service_behind_the_cache_costs_new_queries_only(stack: Stack, name: str) -> None:
    """Cached queries are answered, at most marked; new ones get UNAVAILABLE; clicks count."""
    with loaded(stack) as load:
        killed_s = kill(stack, name, load)
        strays = ("CACHE_UNAVAILABLE", "UNAVAILABLE")  # without the cache a warm query is a new one
        load.check_seen(killed_s, "warm", "OK", "REFRESH_FAILED", "UPSTREAM", strays=strays)
        assert load.check_seen(killed_s, "fresh", "OK", "UNAVAILABLE")["UNAVAILABLE"]
        load.check_seen(killed_s, "click", "OK")


def test_a_killed_sidecar_is_noticed_by_nobody(stack: Stack) -> None:
    """Every call goes as usual."""
    with loaded(stack) as load:
        load.check_usual(kill(stack, "eviction", load))


def test_a_killed_cache_costs_no_answer(stack: Stack) -> None:
    """Answers are computed meanwhile, marked CACHE_UNAVAILABLE; nobody gets an error."""
    with loaded(stack) as load:
        killed_s = kill(stack, "cache", load)
        for kind in ("warm", "fresh"):
            load.check_seen(killed_s, kind, "OK", "CACHE_UNAVAILABLE")
        load.check_seen(killed_s, "click", "OK")


def test_a_killed_state_costs_clicks_their_ok_and_no_answer(stack: Stack) -> None:
    """Answers go on, at most marked STALE_ADS; clicks get UNAVAILABLE until the state is back."""
    with loaded(stack) as load:
        killed_s = kill(stack, "state", load)
        for kind in ("warm", "fresh"):
            load.check_seen(killed_s, kind, "OK", "STALE_ADS")
        assert load.check_seen(killed_s, "click", "OK", "UNAVAILABLE")["UNAVAILABLE"]


def test_a_killed_scoring_is_unavailable_and_comes_back(stack: Stack) -> None:
    """Every call gets UNAVAILABLE until it is back."""
    with loaded(stack) as load:
        killed_s = kill(stack, "scoring", load)
        for kind in ("warm", "fresh", "click"):
            load.check_seen(killed_s, kind, "OK", "UNAVAILABLE")
        assert load.seen(killed_s, "warm")["UNAVAILABLE"]
