"""`frugalads evict`: the same sidecar from the command line."""

from __future__ import annotations

import argparse
import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from eviction.sidecar import Sidecar, serving_port
from redis_process import RedisProcess

from services.commands import evict
from services.runtime.errors import UserError


def parse(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    evict.register(parser.add_subparsers())
    return parser.parse_args(["evict", *argv])


def test_serves_the_given_redis_until_sigterm(valkey_server: RedisProcess) -> None:
    with valkey_server.client() as client:
        client.config_set("maxmemory", 64 << 20)
        client.set("mine:1", "x")
        client.set("mine:dear:1", "x")
        client.set("mine:vip:1", "x")
        client.hset("mine:hash", "us", "700")
    code = (
        "import argparse, sys; from services.commands import evict; parser = argparse.ArgumentParser();"
        "evict.register(parser.add_subparsers()); args = parser.parse_args(); sys.exit(args.run(args))"
    )
    argv = ["evict", "--redis", valkey_server.url, "--prefix", "mine:", "--port", "0"]
    argv += ["--order", "gdsf", "--classes", "dear:=5000, vip:=pin", "--cost-field", "us"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *argv],
        cwd=Path(__file__).parents[2],
        stderr=subprocess.PIPE,
    )

    async def scenario() -> None:
        async with grpc.aio.insecure_channel(target := f"127.0.0.1:{serving_port(process)}") as channel:
            it = Sidecar(channel, target)
            await it.until_ready()
            assert [entry.key for entry in await it.order()] == [b"mine:1", b"mine:hash", b"mine:dear:1"]
            assert (await it.stats()).order == "gdsf"

    try:
        asyncio.run(scenario())
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 0
        assert b"Traceback" not in said
    finally:
        process.kill()


def test_a_redis_that_cannot_be_managed_is_an_error(valkey_server: RedisProcess) -> None:
    args = parse("--redis", valkey_server.url)
    with pytest.raises(UserError, match="maxmemory is 0"):
        args.run(args)


def test_wrong_options_name_themselves() -> None:
    args = parse("--redis", "http://example")
    with pytest.raises(UserError, match="redis_url"):
        args.run(args)
    args = parse("--classes", "vip")
    with pytest.raises(UserError, match="key_classes: 'vip' must end in pin"):
        args.run(args)
    args = parse("--order", "lru")
    with pytest.raises(UserError, match="ORDER: 'lru' is not one of ours"):
        args.run(args)
    args = parse("--prefix", "")
    with pytest.raises(UserError, match="key_prefix"):
        args.run(args)
