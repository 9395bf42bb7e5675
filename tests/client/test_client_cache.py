"""The blocking cache on a real server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Any

import pytest
from e2e.slow_proxy import slow_proxy
from redis_process import RedisProcess, wait_until

from frugalads.client.cache import Cache, HashField
from frugalads.client.cache.entries import Entry, decode, encode
from frugalads.client.cache.priorities import BASE_MS

URL_OF_NOBODY = "redis://127.0.0.1:1"


class Computation:
    """Counts its calls; each waits for `open` and then returns `value` or raises it."""

    def __init__(self, value: Any = b"value", busy_s: float = 0.0) -> None:
        self.value = value
        self.busy_s = busy_s
        self.calls = 0
        self.running = threading.Event()
        self.open = threading.Event()
        self.open.set()

    def __call__(self) -> bytes:
        self.calls += 1
        self.running.set()
        ends_s = time.perf_counter() + self.busy_s
        assert self.open.wait(20)
        while time.perf_counter() < ends_s:
            pass
        if isinstance(self.value, BaseException):
            raise self.value
        assert isinstance(self.value, bytes)
        return self.value


def cache(server: RedisProcess, **options: Any) -> Cache:
    return Cache(server.url, "p:", **{"timeout_s": 5.0, **options})


def held(server: RedisProcess, name: bytes = b"p:k") -> Entry | None:
    with server.client() as client:
        value = client.get(name)
        assert value is None or isinstance(value, bytes)
        return decode(value, name)


def put(server: RedisProcess, entry: Entry, name: bytes = b"p:k") -> None:
    with server.client() as client:
        client.set(name, encode(entry, name), pxat=BASE_MS)


def aged(age_s: float, compute_s: float, value: bytes = b"old") -> Entry:
    return Entry(value, round((time.time() - age_s) * 1000), 7, round(compute_s * 1e6))


def test_a_value_is_computed_once_and_carries_what_it_cost(redis_server: RedisProcess) -> None:
    compute = Computation(busy_s=0.02)
    with cache(redis_server) as made:
        assert [made.get_or_compute("k", compute) for _ in range(3)] == [b"value"] * 3
        assert made.counts["hits"] == 2
    assert compute.calls == 1
    entry = held(redis_server)
    assert entry is not None
    assert entry.value == b"value"
    assert entry.cost_us == entry.compute_us >= 20_000
    assert abs(entry.written_at_ms / 1000 - time.time()) < 60
    with redis_server.client() as client:
        expiry: Any = client.pexpiretime("p:k")
        assert expiry > BASE_MS, "the priority is the expiry"


def test_costs_are_given_read_from_a_hash_or_measured(redis_server: RedisProcess) -> None:
    with redis_server.client() as client, cache(redis_server) as made:
        client.hset("costs", mapping={"report": "5000000", "broken": "dear"})
        for key, cost in (
            ("given", 123),
            ("negative", -1),
            ("report", HashField("costs", "report")),
            ("broken", HashField("costs", "broken")),
            ("absent", HashField("costs", "absent")),
        ):
            made.get_or_compute(key, Computation(), cost=cost)
    costs = {
        key: entry.cost_us
        for key in ("given", "negative", "report", "broken", "absent")
        if (entry := held(redis_server, b"p:" + key.encode()))
    }
    assert (costs["given"], costs["negative"], costs["report"]) == (123, 0, 5_000_000)
    assert max(costs["broken"], costs["absent"]) < 5_000_000, "measured"


def test_a_value_past_its_time_is_computed_anew(valkey_server: RedisProcess) -> None:
    put(valkey_server, aged(11, 0))
    with cache(valkey_server, ttl_s=10) as made:
        assert made.get_or_compute("k", Computation(b"new")) == b"new"
        assert made.counts | {"computed": 1, "hits": 0} == made.counts


def test_an_early_refresh_runs_in_one_thread_and_the_others_take_what_is_there(
    valkey_server: RedisProcess,
) -> None:
    put(valkey_server, aged(9.9, 1e12))  # so dear that it is due at any draw
    refresh, never = Computation(b"new"), Computation(b"never")
    refresh.open.clear()
    with cache(valkey_server, ttl_s=100_000) as made, ThreadPoolExecutor(1) as pool:
        first = pool.submit(made.get_or_compute, "k", refresh)
        assert refresh.running.wait(10)
        assert [made.get_or_compute("k", never) for _ in range(20)] == [b"old"] * 20
        refresh.open.set()
        assert first.result(10) == b"new"
        assert made.counts | {"refreshed": 1, "computed": 0, "hits": 21} == made.counts
    assert never.calls == 0
    entry = held(valkey_server)
    assert entry is not None
    assert entry.value == b"new"


def test_who_asked_before_an_early_refresh_began_does_not_wait_for_it(valkey_server: RedisProcess) -> None:
    put(valkey_server, aged(9.9, 1e12))
    refresh = Computation(b"new")
    refresh.open.clear()
    with slow_proxy(valkey_server.port) as proxy, ThreadPoolExecutor(2) as pool:
        proxy.delay_s = 0.2  # so that the second caller shares the read of the first
        with Cache(f"redis://127.0.0.1:{proxy.port}", "p:", ttl_s=100_000, timeout_s=5) as made:
            first = pool.submit(made.get_or_compute, "k", refresh)
            second = pool.submit(made.get_or_compute, "k", refresh)
            assert refresh.running.wait(10)
            done, _ = wait([first, second], timeout=10, return_when=FIRST_COMPLETED)
            assert [call.result() for call in done] == [b"old"]
            refresh.open.set()
            assert {first.result(10), second.result(10)} == {b"old", b"new"}
    assert refresh.calls == 1


def test_when_a_value_ends_during_its_refresh_its_callers_wait_for_that(valkey_server: RedisProcess) -> None:
    put(valkey_server, aged(0, 1e12))
    refresh, never = Computation(b"new"), Computation(b"never")
    refresh.open.clear()
    with cache(valkey_server, ttl_s=100_000) as made, ThreadPoolExecutor(2) as pool:
        first = pool.submit(made.get_or_compute, "k", refresh)
        assert refresh.running.wait(10)
        put(valkey_server, aged(200_000, 1))
        second = pool.submit(made.get_or_compute, "k", never)
        refresh.open.set()
        assert (first.result(10), second.result(10)) == (b"new", b"new")
    assert never.calls == 0


def test_a_failure_reaches_all_who_wait_and_leaves_no_mark(valkey_server: RedisProcess) -> None:
    failing = Computation(ValueError("no"))
    failing.open.clear()
    with cache(valkey_server) as made, ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(made.get_or_compute, "k", failing) for _ in range(8)]
        assert failing.running.wait(10)
        failing.open.set()
        assert all(isinstance(call.exception(10), ValueError) for call in calls)
        assert made.get_or_compute("k", Computation()) == b"value"


def test_an_interrupted_thread_does_not_interrupt_the_others(valkey_server: RedisProcess) -> None:
    interrupted, good = Computation(KeyboardInterrupt()), Computation()
    interrupted.open.clear()
    with cache(valkey_server) as made, ThreadPoolExecutor(4) as pool:
        first = pool.submit(made.get_or_compute, "k", interrupted)
        assert interrupted.running.wait(10)
        others = [pool.submit(made.get_or_compute, "k", good) for _ in range(3)]
        interrupted.open.set()
        assert isinstance(first.exception(10), KeyboardInterrupt)
        assert [call.result(10) for call in others] == [b"value"] * 3
    assert good.calls == 1


def test_a_computation_that_asks_for_itself_is_told(valkey_server: RedisProcess) -> None:
    with cache(valkey_server) as made:

        def nested() -> bytes:
            return made.get_or_compute("k", Computation())

        with pytest.raises(RuntimeError, match="asks for itself"):
            made.get_or_compute("k", nested)
        with pytest.raises(TypeError, match="returned str, not bytes"):
            made.get_or_compute("k", lambda: "text")  # type: ignore[arg-type,return-value]


def test_what_is_no_entry_is_replaced(redis_server: RedisProcess) -> None:
    with redis_server.client() as client, cache(redis_server) as made:
        client.set("p:plain", "<html>")
        client.rpush("p:list", "x")
        for key in ("plain", "list"):
            assert made.get_or_compute(key, Computation()) == b"value"
            assert held(redis_server, b"p:" + key.encode()) is not None


def test_without_redis_values_are_computed_and_the_waits_are_bounded(valkey_server: RedisProcess) -> None:
    compute = Computation()
    with cache(valkey_server, timeout_s=0.1) as made:
        made.get_or_compute("k", compute)
        valkey_server.pause()
        began_s = time.monotonic()
        assert [made.get_or_compute("k", compute) for _ in range(200)] == [b"value"] * 200
        assert time.monotonic() - began_s < 20, "one timeout each half second, not each call"
        assert made.counts["spared"] > 100
        valkey_server.resume()
        wait_until(lambda: made.get_or_compute("k", compute) == b"value" and made.counts["hits"] > 0)
    with Cache(URL_OF_NOBODY, "p:") as nobody:
        assert nobody.get_or_compute("k", compute) == b"value"
        assert nobody.counts["unanswered"] == 2  # GET and SET


def test_a_server_that_refuses_writes_is_still_read(redis_server: RedisProcess) -> None:
    with redis_server.client() as client, cache(redis_server) as made:
        made.get_or_compute("old", Computation())
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 1)
        assert made.get_or_compute("old", Computation(b"never")) == b"value"
        assert [made.get_or_compute("new", Computation(b"new")) for _ in range(5)] == [b"new"] * 5
        assert made.counts | {"hits": 1, "refused": 5, "unanswered": 0} == made.counts


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Cache(URL_OF_NOBODY, ""), "prefix"),
        (lambda: Cache(URL_OF_NOBODY, "p:", ttl_s=0), "ttl_s"),
        (lambda: Cache(URL_OF_NOBODY, "p:", timeout_s=0), "timeout_s"),
        (lambda: Cache("http://example", "p:"), "scheme"),
        (lambda: Cache(URL_OF_NOBODY, "p:", sidecar="nowhere"), "target"),
        (lambda: Cache(URL_OF_NOBODY, "p:").get_or_compute("~lease", Computation()), "sidecar's own"),
    ],
)
def test_wrong_options_name_themselves(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_a_closed_cache_says_so(valkey_server: RedisProcess) -> None:
    made = cache(valkey_server)
    made.close()
    made.close()
    with pytest.raises(RuntimeError, match="closed"):
        made.get_or_compute("k", Computation())
