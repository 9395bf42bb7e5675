"""`python -m services.runtime.healthcheck` against real servers, as a container's HEALTHCHECK runs it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client.certificate_files import issued_files
from deploy.image_files import DOCKERFILE, HealthCheck, image
from redis_process import free_port

from services.runtime.config import ServerConfig
from services.runtime.health import Dependency
from services.runtime.healthcheck import ANSWER_S, main, unready
from services.runtime.server import Runtime, start_server


class Quiet:
    """A service without methods that is ready when it is told to be."""

    name = "eviction"

    def __init__(self, runtime: Runtime[ServerConfig]) -> None:
        self.loaded = asyncio.Event()
        self.needed: Dependency = runtime.health.dependency("redis", required=True)

    def register(self, server: Any, admin: Any) -> list[str]:
        return ["frugalads.eviction.v1.EvictionService"]

    async def start(self) -> None:
        await self.loaded.wait()
        self.needed.up()

    async def stop(self) -> None:
        pass


async def said_of(port: int) -> str:
    return await asyncio.to_thread(unready, f"127.0.0.1:{port}", "eviction")


@contextlib.contextmanager
def silent() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_readiness_follows_load_dependency_and_drain() -> None:
    async def scenario() -> None:
        held: list[Quiet] = []

        def build(config: ServerConfig, runtime: Runtime[ServerConfig]) -> Quiet:
            held.append(Quiet(runtime))
            return held[0]

        port = free_port()
        config = ServerConfig(port=port, log_level="error")
        serving, leave = asyncio.Event(), asyncio.Event()

        async def serve() -> None:
            async with start_server("eviction", config, build):
                serving.set()
                await leave.wait()

        server = asyncio.create_task(serve())
        while "UNAVAILABLE" in (said := await said_of(port)):
            pass  # until the port is open
        assert said == "NOT_SERVING"  # it loads
        held[0].loaded.set()
        await serving.wait()
        assert await said_of(port) == ""
        held[0].needed.down("gone")
        assert await said_of(port) == "NOT_SERVING"
        leave.set()
        await server
        assert (await said_of(port)).startswith("UNAVAILABLE")

    asyncio.run(scenario())


def test_as_a_process_it_exits_with_0_or_1_and_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    argv = [sys.executable, "-m", "services.runtime.healthcheck", f"127.0.0.1:{port}", "scoring"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"scoring at 127.0.0.1:{port}: UNAVAILABLE")

    async def scenario() -> int:
        def build(config: ServerConfig, runtime: Runtime[ServerConfig]) -> Quiet:
            quiet = Quiet(runtime)
            quiet.loaded.set()
            return quiet

        async with start_server("eviction", ServerConfig(log_level="error"), build) as running:
            argv[-2:] = [f"127.0.0.1:{running.port}", "eviction"]
            process = await asyncio.create_subprocess_exec(*argv)
            ready = await process.wait()
            # A name that this server does not serve is not ready, whatever else is.
            assert await asyncio.to_thread(main, [f"127.0.0.1:{running.port}", "scoring"]) == 1
            return ready

    assert asyncio.run(scenario()) == 0
    assert "NOT_FOUND" in capfd.readouterr().err


def test_a_server_that_never_answers_is_given_up_in_time() -> None:
    with silent() as port:
        began_s = time.monotonic()
        assert "DEADLINE_EXCEEDED" in unready(f"127.0.0.1:{port}", "retrieval")
        assert time.monotonic() - began_s < ANSWER_S + 0.5


def test_with_tls_the_admin_port_answers(tmp_path: Path) -> None:
    files = issued_files(tmp_path)

    async def scenario() -> tuple[str, str]:
        def build(config: ServerConfig, runtime: Runtime[ServerConfig]) -> Quiet:
            quiet = Quiet(runtime)
            quiet.loaded.set()
            return quiet

        config = ServerConfig(
            tls_cert=str(files.server_cert), tls_key=str(files.server_key), log_level="error"
        )
        async with start_server("eviction", config, build) as running:
            return await said_of(running.port), await said_of(running.admin_port)

    public, admin = asyncio.run(scenario())
    assert "UNAVAILABLE" in public
    assert admin == ""


class Container:
    """Health as dockerd keeps it (Dockerfile reference, HEALTHCHECK), on a clock of its own."""

    def __init__(self, check: HealthCheck) -> None:
        self._check = check
        self.status = "starting"
        self.age_s = 0.0
        self._failures = 0

    def probe(self, fault: str) -> None:
        """One check and the wait before it; within the start period only success counts."""
        starting = self.status == "starting" and self.age_s < self._check.start_period_s
        self.age_s += self._check.start_interval_s if starting else self._check.interval_s
        if not fault:
            self.status, self._failures = "healthy", 0
        elif not starting:
            self._failures += 1
            if self._failures >= self._check.retries:
                self.status = "unhealthy"


def test_a_slow_index_is_waited_for_and_a_crash_starts_anew() -> None:
    """docker/compose #11474, #11131; agenticos #1831."""
    check = image(DOCKERFILE.read_text(encoding="utf-8"), "retrieval").health
    assert check is not None

    loading, ready, gone = "NOT_SERVING", "", "UNAVAILABLE"
    slow = Container(check)
    while slow.age_s < 299:
        slow.probe(gone if slow.age_s < 2 else loading)
        assert slow.status == "starting"
    slow.probe(ready)
    assert slow.status == "healthy"
    for _ in range(check.retries - 1):  # one lost answer is no outage
        slow.probe(gone)
        assert slow.status == "healthy"
    slow.probe(gone)
    assert slow.status == "unhealthy"

    again = Container(check)  # a restarted container has no past
    for fault in (gone, loading, loading):
        again.probe(fault)
        assert again.status == "starting"
    again.probe(ready)
    assert again.status == "healthy"
    assert again.age_s <= 4

    broken = Container(check)
    while broken.status == "starting":
        broken.probe(loading)
    assert broken.status == "unhealthy"
    assert broken.age_s <= check.start_period_s + check.retries * check.interval_s
