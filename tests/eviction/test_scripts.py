"""The Lua files, each alone on both servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis
from redis_process import RedisProcess

import services.eviction
from services.core.eviction.priority import BASE_MS, EXPIRE_LIMIT_MS

FOLDER = Path(services.eviction.__file__).parent


def unlink(client: redis.Redis, expiries: dict[str, int], token: str = "7 me ") -> Any:
    """unlink.lua under a lease of epoch 7."""
    client.set("lease", "7 me 3 0")
    script = (FOLDER / "unlink.lua").read_text()
    return client.eval(script, 1 + len(expiries), "lease", *expiries, token, *expiries.values())


def lease(client: redis.Redis, holder: str, epoch: int, clock: int, stale: str = "") -> tuple[int, str]:
    """lease.lua on the key "lease"."""
    script = (FOLDER / "lease.lua").read_text()
    has_it, value = client.eval(script, 1, "lease", holder, epoch, clock, stale)
    return has_it, value.decode()


def test_unlink_compares_before_it_unlinks(redis_server: RedisProcess) -> None:
    with redis_server.client() as client:
        client.set("same", "x" * 1_000_000, pxat=BASE_MS + 7)
        client.set("newer", "x", pxat=BASE_MS + 8)
        client.set("immortal", "x")
        wanted = {"same": BASE_MS + 7, "newer": BASE_MS + 7, "immortal": BASE_MS + 7, "gone": BASE_MS + 7}
        before, after, answers = unlink(client, wanted)
        assert answers == [0, BASE_MS + 8, -1, -2]
        assert sorted(client.keys()) == [b"immortal", b"lease", b"newer"]
        assert 900_000 <= before - after < 1_200_000
        counted = client.info("memory")
        assert abs(after - (counted["used_memory"] - counted["mem_not_counted_for_evict"])) < 200_000


def test_unlink_tells_the_highest_expiries_apart(redis_server: RedisProcess) -> None:
    """Lua compares doubles: exact below 2**53."""
    with redis_server.client() as client:
        client.set("k", "x", pxat=EXPIRE_LIMIT_MS - 1)
        assert unlink(client, {"k": EXPIRE_LIMIT_MS - 2})[2] == [EXPIRE_LIMIT_MS - 1]
        assert unlink(client, {"k": EXPIRE_LIMIT_MS - 1})[2] == [0]


@pytest.mark.parametrize("token", ["6 me ", "8 me ", "7 you ", "7 m "])
def test_unlink_is_refused_under_another_lease(redis_server: RedisProcess, token: str) -> None:
    with redis_server.client() as client:
        client.set("k", "x", pxat=BASE_MS + 7)
        with pytest.raises(redis.ResponseError, match="FENCED the lease is 7 me 3 0"):
            unlink(client, {"k": BASE_MS + 7}, token)
        assert client.exists("k")


def test_the_lease_goes_to_one_at_a_time(redis_server: RedisProcess) -> None:
    with redis_server.client() as client:
        assert lease(client, "a", 0, 40) == (1, "1 a 1 40")
        assert lease(client, "b", 0, 90) == (0, "1 a 1 40")
        assert lease(client, "a", 1, 30) == (1, "1 a 2 40"), "the clock never falls"
        assert lease(client, "b", 1, 0, stale="1 a 1 40") == (0, "1 a 2 40"), "it has moved since"
        assert lease(client, "b", 1, 0, stale="1 a 2 40") == (1, "2 b 1 40")
        assert lease(client, "a", 1, 0) == (0, "2 b 1 40"), "the old term is over"
        assert lease(client, "-", 2, 50, stale="2 b 1 40") == (1, "3 - 1 50"), "given up"
        assert lease(client, "a", 1, 0) == (1, "4 a 1 50")
        client.flushall()
        assert lease(client, "a", 4, 60) == (1, "5 a 1 60"), "epochs rise past a flush"
        assert client.pttl("lease") == -1


def test_a_lease_that_is_none_is_taken_when_it_stays(redis_server: RedisProcess) -> None:
    with redis_server.client() as client:
        client.set("lease", "something else")
        assert lease(client, "a", 3, 5) == (0, "something else")
        assert lease(client, "a", 3, 5, stale="something else") == (1, "4 a 1 5")


def test_describe_tells_expiry_size_and_cost(redis_server: RedisProcess) -> None:
    with redis_server.client() as client:
        client.set("k", "x" * 1_000, pxat=BASE_MS + 5)
        client.hset("immortal", mapping={"cost_us": 1_234, "other": "5"})
        client.hset("words", "cost_us", "dear")
        names = ("k", "immortal", "words", "gone")
        script = (FOLDER / "describe.lua").read_text()
        sizes = [client.memory_usage(k, samples=0) for k in names]
        answers = client.eval(script, 4, *names, "cost_us")
        assert answers == [BASE_MS + 5, sizes[0], -1, -1, sizes[1], 1_234, -1, sizes[2], -1, -2, 0, -1]
        assert client.eval(script, 4, *names, "")[2::3] == [-1] * 4


def test_scripts_run_when_memory_is_refused(redis_server: RedisProcess) -> None:
    with redis_server.client() as client:
        client.set("k", "x", pxat=BASE_MS + 5)
        client.set("lease", "7 me 3 0")
        client.config_set("maxmemory", 1)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            client.set("other", "x")
        client.eval((FOLDER / "describe.lua").read_text(), 1, "k", "")
        assert lease(client, "me", 7, 0) == (1, "7 me 4 0")
        script = (FOLDER / "unlink.lua").read_text()
        assert client.eval(script, 2, "lease", "k", "7 me ", BASE_MS + 5)[2] == [0]
