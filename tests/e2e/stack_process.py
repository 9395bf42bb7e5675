"""The real stack as its user runs it: `frugalads up` as a child process over a prepared work folder."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
from redis_process import wait_until

from services.stack.ports import Ports, free_base

SERVICES = ("retrieval", "inference", "eviction", "scoring")
# On a busy machine a healthy cache may take longer than its few milliseconds, and a hit becomes BYPASSED.
PATIENT = {"FRUGALADS_SCORING_CACHE_TIMEOUT_MS": "2000"}


def frugalads(
    *arguments: object, timeout_s: float = 300, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Runs a `frugalads` command to its end."""
    argv = [sys.executable, "-m", "services.cli", *map(str, arguments)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(argv)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


class Stack:
    """A running `frugalads up` and what it printed."""

    def __init__(self, data: Path, options: Sequence[str] = (), environ: Mapping[str, str] = PATIENT) -> None:
        self.data = data
        self.ports = Ports(free_base(preferred=20_000 + os.getpid() % 240 * 50))
        self.target = f"127.0.0.1:{self.ports.of('scoring')}"
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "services.cli", "up", "--data", str(data)),
                *("--base-port", str(self.ports.base), *options),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environ},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def wait_ready(self, timeout_s: float = 90) -> None:
        wait_until(
            lambda: "ready after" in self.output or not self.is_alive, timeout_s, "the stack was ready"
        )
        assert self.is_alive, self.output

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def pid(self, name: str) -> int:
        """The process id of a child: a service by its module, a Redis by its port, which it shows.

        Only of the supervisor's own children: what a service starts has its command line at first.
        """
        wanted = re.compile(rf"services\.{name}$" if name in SERVICES else rf":{self.ports.of(name)}$")
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if any(wanted.search(part.strip()) for part in child.cmdline()):
                    return child.pid
        raise AssertionError(f"{name} is not running")

    def successor(self, name: str, killed: int) -> int | None:
        """The process id of the child that took the place of a killed one; None until there is one."""
        with contextlib.suppress(AssertionError, psutil.NoSuchProcess):
            pid = self.pid(name)
            return pid if pid != killed else None
        return None

    def metric(self, name: str, sample: str) -> float:
        """One sample of a service's Prometheus page; 0 when it has none yet."""
        address = f"http://127.0.0.1:{self.ports.of(f'{name} metrics')}/metrics"
        page: bytes = urllib.request.urlopen(address, timeout=5).read()
        values = [line.rsplit(" ", 1) for line in page.decode().splitlines()]
        return next((float(value) for key, value in values if key == sample), 0.0)

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signals it and returns its exit code."""
        if self.is_alive:
            self.process.send_signal(number)
        code = self.process.wait(timeout=60)
        self._reader.join(timeout=5)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@contextlib.contextmanager
def running_stack(
    data: Path, options: Sequence[str] = (), environ: Mapping[str, str] = PATIENT
) -> Iterator[Stack]:
    """A ready stack for the time of a block; nothing of it survives the block."""
    stack = Stack(data, options, environ)
    try:
        stack.wait_ready()
        yield stack
    finally:
        children = stack.descendants() if stack.is_alive else []
        stack.stop()
        _, alive = psutil.wait_procs(children, timeout=10)
        for orphan in alive:
            orphan.kill()
        assert not alive, f"orphans: {alive}"
