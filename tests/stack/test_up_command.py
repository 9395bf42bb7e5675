"""`frugalads up` and `frugalads query` with the real services, as a user runs them."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from services.stack.ports import HOST, Ports, free_base, is_free

COMMAND = (sys.executable, "-m", "services.cli")
PROCESSES = ("cache", "state", "retrieval", "inference", "eviction", "scoring")


def frugalads(*arguments: str | Path | int) -> subprocess.CompletedProcess[str]:
    argv = [*COMMAND, *(str(argument) for argument in arguments)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder with a model, a small catalogue and its index."""
    folder = tmp_path_factory.mktemp("up")
    model, catalogue, sample = folder / "models" / "scorer", folder / "catalogue", folder / "sample.jsonl"
    for arguments in (
        ("model", "build", "--out", model),
        ("catalogue", "sample", "--ads", 400, "--out", sample),
        ("catalogue", "import", sample, "--out", catalogue),
        ("index", "build", "--catalogue", catalogue, "--model", model, "--out", folder / "index"),
    ):
        done = frugalads(*arguments)
        assert done.returncode == 0, done.stderr
    return folder


class Up:
    """A running `frugalads up`."""

    def __init__(self, data: Path) -> None:
        self.ports = Ports(free_base(24_000))
        self.said = data / "said"
        with self.said.open("w") as said:
            self.process = subprocess.Popen(
                [*COMMAND, "up", "--data", str(data), "--base-port", str(self.ports.base)],
                stdout=said,
                stderr=subprocess.STDOUT,
            )
        self.wait_for(r"^ready after")

    def wait_for(self, pattern: str, within_s: float = 60) -> None:
        end = time.monotonic() + within_s
        while not re.search(pattern, self.said.read_text(), re.MULTILINE):
            assert self.process.poll() is None, self.said.read_text()
            assert time.monotonic() < end, f"no {pattern!r} within {within_s} s: {self.said.read_text()}"
            time.sleep(0.05)

    def pid(self, name: str) -> int:
        match = re.search(rf"^{name} +\S+ +(\d+) ", self.said.read_text(), re.MULTILINE)
        assert match is not None
        return int(match[1])

    def query(self, text: str) -> str:
        done = frugalads("query", text, "--target", f"{HOST}:{self.ports.of('scoring')}")
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def up(data: Path) -> Iterator[Up]:
    running = Up(data)
    yield running
    if running.process.poll() is None:
        running.process.terminate()
    running.process.wait(30)


def test_a_query_is_answered_and_then_reused(up: Up, data: Path) -> None:
    first, second = up.query("laser printer toner"), up.query("laser printer toner")
    assert "MISS" in first
    assert "HIT" in second
    assert [line for line in first.splitlines() if line.startswith("1 ")] == [
        line for line in second.splitlines() if line.startswith("1 ")
    ]
    assert frugalads("info", "--base-port", up.ports.base).returncode == 0
    # Two stacks must not write one state.
    other = frugalads("up", "--data", data, "--base-port", free_base(26_000))
    assert other.returncode == 2
    assert f"a stack already runs from {data} (process {up.process.pid})" in other.stderr


def test_a_crashed_service_comes_back_and_sigterm_leaves_nothing(up: Up) -> None:
    pids = {name: up.pid(name) for name in PROCESSES}
    os.kill(pids["inference"], signal.SIGKILL)
    up.wait_for(r"inference was ended by SIGKILL; restarting in 0\.5 s")
    up.wait_for(r"inference is ready again")
    assert "p(click)" in up.query("gaming laptop")
    children = psutil.Process(up.process.pid).children(recursive=True)
    assert len(children) == len(PROCESSES)
    up.process.terminate()
    assert up.process.wait(30) == 0
    assert psutil.wait_procs(children, timeout=0)[1] == []
    assert all(is_free(port) for port in up.ports.all().values())


def test_three_crashes_end_the_stack_and_name_the_child(up: Up) -> None:
    for number in range(1, 4):
        port = up.ports.of("cache")
        listening = [
            c
            for c in psutil.net_connections("tcp")
            if c.laddr and c.laddr[1] == port and c.status == "LISTEN"
        ]
        (pid,) = {connection.pid for connection in listening}
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        if number < 3:
            up.wait_for(rf"(cache is ready again(.|\n)*){{{number}}}")
    assert up.process.wait(30) == 1
    assert "the stack stopped: cache was ended by SIGKILL, crash 3 within 60 s" in up.said.read_text()


def test_a_given_redis_is_asked_before_anything_starts(data: Path) -> None:
    done = frugalads("up", "--data", data, "--cache-url", "redis://127.0.0.1:1/0")
    assert done.returncode == 2
    assert "frugalads: error: --cache-url: no answer to PING: " in done.stderr
    assert done.stdout == ""


def test_an_occupied_port_is_named_and_nothing_starts(data: Path) -> None:
    base = free_base(25_000)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.bind((HOST, base + 1))
        server.listen()
        done = frugalads("up", "--data", data, "--base-port", base)
    assert done.returncode == 2
    assert f"port {base + 1} (retrieval) on {HOST} already in use" in done.stderr
    assert done.stdout == ""
