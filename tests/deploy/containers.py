"""The compose file's containers as processes of this machine.

Each runs the entry point, arguments and environment that its container would have, as PID 1 of a PID
namespace: the kernel keeps signals from a PID 1 that has no handler for them, which is how containers come to
be killed after ten silent seconds. What only a container engine can give is translated: names and ports
become ports of the loopback address, volumes become folders.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import psutil
import pytest
from deploy.compose_file import built_image, environment, health_check, resolved
from deploy.image_files import ROOT, seconds
from redis_process import binary, wait_until

from services.stack import leash
from services.stack.ports import HOST, Ports, free_base

PID_1 = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
# Ends what it runs when this process ends, however that happens.
LEASHED = [sys.executable, "-I", "-S", leash.__file__]
CONTAINER_BASE = 7400
MONITORING = {"prometheus", "grafana"}


def require_namespaces() -> None:
    """Skips locally, fails in CI, where this machine gives no process namespaces."""
    try:
        done = subprocess.run([*PID_1, "true"], capture_output=True, text=True, timeout=30, check=False)
        why = done.stderr if done.returncode else ""
    except FileNotFoundError:
        why = "unshare is not installed"
    if why and os.environ.get("CI"):
        raise AssertionError(f"no process namespaces: {why}")
    if why:
        pytest.skip(f"no process namespaces: {why}")


class Containers:
    """The stack of the compose file over `folder`, on free ports."""

    def __init__(self, folder: Path, bundles: Path) -> None:
        model = resolved(FRUGALADS_BUNDLES=bundles)
        self.services: dict[str, dict[str, Any]] = {
            name: service for name, service in model["services"].items() if name not in MONITORING
        }
        self.ports = Ports(free_base(27_000))
        self._folder = folder
        self._running: dict[str, tuple[subprocess.Popen[bytes], psutil.Process]] = {}

    def order(self) -> list[str]:
        """Names of all that stay running, each after those it waits for."""
        needs = {name: set(service.get("depends_on", {})) for name, service in self.services.items()}
        return [name for name in TopologicalSorter(needs).static_order() if name != "seed"]

    def start(self, name: str) -> None:
        """Starts a container's process; returns when it runs."""
        with self._log(name).open("ab") as log:
            unshare = subprocess.Popen(
                [*LEASHED, str(os.getpid()), str(shutil.which(PID_1[0])), *PID_1[1:], *self._argv(name)],
                stdout=log,
                stderr=log,
                env=self._environment(name),
                cwd=self._working_folder(name),
            )
        parent = psutil.Process(unshare.pid)
        wait_until(lambda: bool(parent.children()), what=f"{name} ran")
        (process,) = parent.children()
        self._running[name] = (unshare, process)

    def until_healthy(self, name: str, timeout_s: float = 60) -> None:
        """Returns when the container's own health check passes."""
        wait_until(lambda: self.is_healthy(name), timeout_s, f"health of {name} ({self.said(name)})")

    def is_healthy(self, name: str) -> bool:
        """Runs the container's health check once."""
        assert self._running[name][0].poll() is None, self.said(name)
        check = health_check(self.services[name])
        assert check is not None
        argv = [self._here(name, word) for word in check.test]
        if argv[0] == "valkey-cli":
            argv[1:1] = ["-p", str(self.ports.of(name))]
        done = subprocess.run(
            [self._program(argv[0]), *argv[1:]], env=self._environment(name), capture_output=True, check=False
        )
        return done.returncode == 0

    def run(self, name: str) -> str:
        """Runs a one-shot container to its end; what it printed."""
        done = subprocess.run(
            [*PID_1, *self._argv(name)],
            env=self._environment(name),
            cwd=self._working_folder(name),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def execute(self, name: str, script: str) -> str:
        """`docker compose exec NAME python -` with this script; what it printed."""
        words = re.split(r'(")', script)  # texts of the script may be paths of the container
        done = subprocess.run(
            [sys.executable, "-"],
            input="".join(self._here(name, word) for word in words),
            env=self._environment(name),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def stop(self, name: str) -> tuple[int, float]:
        """`docker stop`: SIGTERM to PID 1, SIGKILL after the grace period. Exit code and seconds taken."""
        unshare, process = self._running.pop(name)
        grace_s = seconds(self.services[name]["stop_grace_period"])
        began_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        try:
            code = unshare.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            code = unshare.wait(10)
        return code, time.monotonic() - began_s

    def ended(self, name: str, timeout_s: float = 60) -> int:
        """Waits until a container ends by itself; its exit code."""
        return self._running.pop(name)[0].wait(timeout_s)

    def pause(self, name: str) -> None:
        """Freezes a container."""
        self._running[name][1].suspend()

    def resume(self, name: str) -> None:
        """Lets a frozen container go on."""
        self._running[name][1].resume()

    def kill(self, name: str) -> None:
        """Ends a container as a crash does."""
        unshare, process = self._running.pop(name)
        with contextlib.suppress(psutil.NoSuchProcess):  # it may have ended by itself
            process.kill()
        unshare.wait(10)

    def close(self) -> None:
        """Ends all that still runs."""
        for name in list(self._running):
            self.kill(name)

    def said(self, name: str) -> str:
        """The end of a container's log."""
        return self._log(name).read_text(encoding="utf-8")[-2000:]

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _argv(self, name: str) -> list[str]:
        service = self.services[name]
        built = built_image(service)
        words = [*(built.entrypoint if built else ()), *service["command"]]
        argv = [self._here(name, word) for word in words]
        if argv[0] == "valkey-server":
            argv += ["--bind", HOST, "--port", str(self.ports.of(name))]
        return [self._program(argv[0]), *argv[1:]]

    def _environment(self, name: str) -> dict[str, str]:
        said = {key: self._here(name, value) for key, value in environment(self.services[name]).items()}
        # The image has the code installed; here it lies in the repository.
        code = os.pathsep.join([str(ROOT), str(ROOT / "protos")])
        return said | {"PATH": os.environ["PATH"], "PYTHONPATH": code}

    def _program(self, name: str) -> str:
        if name == "python":
            return sys.executable
        return str(Path(binary("valkey")).with_name(name))

    def _working_folder(self, name: str) -> Path:
        folder = Path(self._here(name, self.services[name].get("working_dir", "/var/lib/frugalads")))
        return folder if folder.is_dir() else self._volume(f"empty-{name}")

    def _here(self, name: str, word: str) -> str:
        """A word of a command or an environment as it is on this machine."""
        for target, folder in self._folders(name).items():
            if word == target or word.startswith(f"{target}/"):
                return str(folder) + word.removeprefix(target)
        word = re.sub(r"\b(cache|state):6379\b", lambda m: f"{HOST}:{self.ports.of(m[1])}", word)
        names = "|".join(self.services)
        word = re.sub(rf"\b(?:{names}):(?=74\d\d\b)", f"{HOST}:", word).replace("0.0.0.0", HOST)
        return re.sub(r"\b74\d\d\b", lambda m: str(self.ports.base + int(m[0]) - CONTAINER_BASE), word)

    def _folders(self, name: str) -> Mapping[str, Path]:
        service = self.services[name]
        mounted = {
            volume["target"]: Path(volume["source"])
            if volume["type"] == "bind"
            else self._volume(volume["source"])
            for volume in service.get("volumes", [])
        }
        for mount in service.get("tmpfs", []):
            target = mount.partition(":")[0]
            mounted.setdefault(target, self._volume(f"tmpfs-{name}{target.replace('/', '-')}"))
        return mounted

    def _volume(self, name: str) -> Path:
        folder = self._folder / "volumes" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder
