"""Child processes that live and die together.

Every child has its own session, so that a Ctrl-C in the terminal reaches the supervisor alone, which then
ends the children in the reverse of their order. Invariants:

- No child is started before those it comes `after` are ready; children that need nothing start at once.
- A child that ends on its own is a crash, whatever its status. It is named, shown with the end of its log,
  and restarted after 0.5, 1, 2, ... seconds. At the third crash of one child within 60 s the stack fails. It
  fails at once when a child that was never ready ends with status 2: a configuration mistake, which a restart
  cannot mend.
- A child that is not ready in time is killed, which is a crash; one that cannot be started (no log, no
  memory, no process) has crashed too.
- After `stop` no child runs, and nothing that a child left in its session. A supervisor that dies without
  stopping takes its children along (`leash`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

from services.stack.probes import Probe, until_ready

_LEASH = Path(__file__).with_name("leash.py")
_CONFIG_MISTAKE = 2
_TAIL_BYTES = 4096
_TAIL_LINES = 12

Result = TypeVar("Result")


@dataclass(frozen=True)
class Child:
    """A process to keep running. `env` adds to the supervisor's environment."""

    name: str
    argv: Sequence[str]
    address: str
    probe: Probe
    env: Mapping[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Limits:
    """What the supervisor puts up with."""

    start_s: float = 60.0
    grace_s: float = 10.0
    crashes: int = 3
    window_s: float = 60.0
    first_delay_s: float = 0.5
    longest_delay_s: float = 10.0


class StackError(Exception):
    """A child cannot be kept running; the text names it and shows the end of its log."""


class Stopped(Exception):
    """A signal asked for the end."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class _Kept:
    def __init__(self, child: Child, log: Path) -> None:
        self.child = child
        self.log = log
        self.process: asyncio.subprocess.Process | None = None
        self.ready = asyncio.Event()
        self.ready_s = 0.0
        self.crashes: deque[float] = deque()

    def tail(self) -> str:
        """The last lines of the log, indented."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = file.read().decode("utf-8", "replace").splitlines()[-_TAIL_LINES:]
        except OSError as error:
            lines = [f"(the log cannot be read: {error})"]
        return "\n".join(f"    {line}" for line in lines) or "    (nothing logged)"


class Supervisor:
    """Keeps `children` running between `__aenter__` and `__aexit__`; logs go to `folder`/<name>.log.

    `say` is told of every crash and of every child that is ready again.
    """

    def __init__(
        self,
        children: Sequence[Child],
        folder: Path,
        say: Callable[[str], None],
        limits: Limits | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._say = say
        self._kept = {child.name: _Kept(child, folder / f"{child.name}.log") for child in children}
        self._tasks: list[asyncio.Task[NoReturn]] = []
        self._hurry = asyncio.Event()
        folder.mkdir(parents=True, exist_ok=True)

    async def __aenter__(self) -> Self:
        for kept in self._kept.values():
            kept.log.write_bytes(b"")
        self._tasks = [
            asyncio.create_task(self._keep(kept), name=f"keep {name}") for name, kept in self._kept.items()
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def ready(self) -> None:
        """Returns once every child is ready."""
        for kept in self._kept.values():
            await kept.ready.wait()

    async def failed(self) -> NoReturn:
        """Raises StackError when a child cannot be kept; otherwise never returns."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        raise AssertionError("a child is kept until it fails")

    def status(self) -> list[tuple[str, str, int, float]]:
        """Name, address, process id and seconds from start to ready of each child that runs."""
        return [
            (name, kept.child.address, kept.process.pid, kept.ready_s)
            for name, kept in self._kept.items()
            if kept.process is not None
        ]

    def hurry(self) -> None:
        """Makes the running or next `stop` kill at once."""
        self._hurry.set()

    async def stop(self) -> None:
        """Ends the children in reverse order: SIGTERM, and SIGKILL after the grace."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for kept in reversed(self._kept.values()):
            if kept.process is not None:
                await self._end(kept.child.name, kept.process)

    async def _keep(self, kept: _Kept) -> NoReturn:
        child, limits = kept.child, self._limits
        for name in child.after:
            await self._kept[name].ready.wait()
        ever_ready = False
        while True:
            try:
                fault, status = await self._run_once(kept)
            except OSError as error:  # no log, no memory, no process: may pass, and counts as a crash
                fault, status = f"could not be started ({error})", 1
            ever_ready = ever_ready or kept.ready.is_set()
            kept.ready.clear()
            now = time.monotonic()
            kept.crashes.append(now)
            while now - kept.crashes[0] > limits.window_s:
                kept.crashes.popleft()
            count = len(kept.crashes)
            if status == _CONFIG_MISTAKE and not ever_ready:
                raise StackError(f"{child.name} {fault}; its last lines:\n{kept.tail()}")
            if count >= limits.crashes:
                raise StackError(
                    f"{child.name} {fault}, crash {count} within {limits.window_s:g} s; "
                    f"its last lines:\n{kept.tail()}"
                )
            delay_s = min(limits.first_delay_s * 2 ** (count - 1), limits.longest_delay_s)
            self._say(f"{child.name} {fault}; restarting in {delay_s:g} s; its last lines:\n{kept.tail()}")
            await asyncio.sleep(delay_s)

    async def _run_once(self, kept: _Kept) -> tuple[str, int]:
        """Starts a child and returns how it ended, in words and as exit status."""
        child, started = kept.child, time.monotonic()
        with kept.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *leashed(child.argv),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **child.env},
                start_new_session=True,
            )
        kept.process = process
        exited = asyncio.create_task(process.wait())
        probing = asyncio.create_task(until_ready(child.probe))
        try:
            done, _ = await asyncio.wait(
                {exited, probing}, timeout=self._limits.start_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                await self._end(child.name, process, grace_s=0)
                return f"was not ready within {self._limits.start_s:g} s", await exited
            if exited not in done:
                probing.result()
                kept.ready_s = time.monotonic() - started
                kept.ready.set()
                if kept.crashes:
                    self._say(f"{child.name} is ready again")
            status = await exited
        finally:
            exited.cancel()
            probing.cancel()
            if process.returncode is not None:
                _kill_session(process.pid)
                kept.process = None
        return _ending(status), status

    async def _end(
        self, name: str, process: asyncio.subprocess.Process, grace_s: float | None = None
    ) -> None:
        exited = asyncio.create_task(process.wait())
        hurry = asyncio.create_task(self._hurry.wait())
        grace_s = self._limits.grace_s if grace_s is None else grace_s
        try:
            if process.returncode is None and grace_s > 0:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
                await asyncio.wait({exited, hurry}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
                if not exited.done() and not hurry.done():
                    self._say(f"{name} did not stop within {grace_s:g} s and was killed")
            _kill_session(process.pid)
            await exited
        finally:
            hurry.cancel()


async def supervise(
    supervisor: Supervisor, work: Callable[[Supervisor], Coroutine[Any, Any, Result]]
) -> Result:
    """Runs `work` while the children live, then stops them; returns what `work` returned.

    Raises StackError when a child cannot be kept, and Stopped when SIGINT, SIGTERM or SIGHUP comes; a second
    signal makes the stop kill at once. Takes over those signals of the running loop.
    """
    loop = asyncio.get_running_loop()
    signalled: asyncio.Future[int] = loop.create_future()

    def on_signal(signum: int) -> None:
        if signalled.done():
            supervisor.hurry()
        else:
            signalled.set_result(signum)

    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        signals.append(signal.SIGHUP)
    for signum in signals:
        loop.add_signal_handler(signum, on_signal, signum)
    try:
        async with supervisor:
            failing = asyncio.create_task(supervisor.failed())
            working = asyncio.create_task(work(supervisor))
            awaited: set[asyncio.Future[Any]] = {failing, working, signalled}
            done, _ = await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            failing.cancel()
            working.cancel()
            await asyncio.gather(failing, working, return_exceptions=True)
            if signalled in done:
                raise Stopped(signalled.result())
            return working.result() if working in done else failing.result()
    finally:
        for signum in signals:
            loop.remove_signal_handler(signum)


def leashed(argv: Sequence[str]) -> list[str]:
    """The command that runs `argv` as a child which cannot outlive this process, see `leash`."""
    return [sys.executable, "-I", "-S", str(_LEASH), str(os.getpid()), *argv]


def _kill_session(pid: int) -> None:
    """Kills what is left of a child's session; the child leads it, so its id is the group's."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _ending(status: int) -> str:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"
