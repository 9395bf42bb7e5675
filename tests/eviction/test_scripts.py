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


def evaluate(client: redis.Redis, name: str, expiries: dict[str, int]) -> Any:
    return client.eval((FOLDER / name).read_text(), len(expiries), *expiries, *expiries.values())


def test_unlink_compares_before_it_unlinks(redis_server: RedisProcess) -> None:
    with redis_server.client() as client:
        client.set("same", "x" * 1_000_000, pxat=BASE_MS + 7)
        client.set("newer", "x", pxat=BASE_MS + 8)
        client.set("immortal", "x")
        wanted = {"same": BASE_MS + 7, "newer": BASE_MS + 7, "immortal": BASE_MS + 7, "gone": BASE_MS + 7}
        before, after, answers = evaluate(client, "unlink.lua", wanted)
        assert answers == [0, BASE_MS + 8, -1, -2]
        assert sorted(client.keys()) == [b"immortal", b"newer"]
        assert 900_000 <= before - after < 1_200_000
        counted = client.info("memory")
        assert abs(after - (counted["used_memory"] - counted["mem_not_counted_for_evict"])) < 200_000


def test_unlink_tells_the_highest_expiries_apart(redis_server: RedisProcess) -> None:
    """Lua compares doubles: exact below 2**53."""
    with redis_server.client() as client:
        client.set("k", "x", pxat=EXPIRE_LIMIT_MS - 1)
        assert evaluate(client, "unlink.lua", {"k": EXPIRE_LIMIT_MS - 2})[2] == [EXPIRE_LIMIT_MS - 1]
        assert evaluate(client, "unlink.lua", {"k": EXPIRE_LIMIT_MS - 1})[2] == [0]


def test_rise_only_raises(redis_server: RedisProcess) -> None:
    with redis_server.client() as client:
        client.set("low", "x", pxat=BASE_MS + 5)
        client.set("high", "x", pxat=BASE_MS + 50)
        client.set("immortal", "x")
        wanted = dict.fromkeys(("low", "high", "immortal", "gone"), BASE_MS + 9)
        assert evaluate(client, "rise.lua", wanted) == [0, BASE_MS + 50, -1, -2]
        assert [client.pexpiretime(k) for k in wanted] == [BASE_MS + 9, BASE_MS + 50, -1, -2]
        assert evaluate(client, "rise.lua", {"low": BASE_MS + 9}) == [BASE_MS + 9], "again changes nothing"


def test_describe_tells_expiry_and_size(redis_server: RedisProcess) -> None:
    with redis_server.client() as client:
        client.set("k", "x" * 1_000, pxat=BASE_MS + 5)
        client.set("immortal", "x")
        answers = client.eval((FOLDER / "describe.lua").read_text(), 3, "k", "immortal", "gone")
        sizes = [client.memory_usage(k, samples=0) for k in ("k", "immortal")]
        assert answers == [BASE_MS + 5, sizes[0], -1, sizes[1], -2, 0]


@pytest.mark.parametrize("name", ["unlink.lua", "rise.lua", "describe.lua"])
def test_scripts_run_when_memory_is_refused(redis_server: RedisProcess, name: str) -> None:
    with redis_server.client() as client:
        client.set("k", "x", pxat=BASE_MS + 5)
        client.config_set("maxmemory", 1)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            client.set("other", "x")
        evaluate(client, name, {"k": BASE_MS + 5})
