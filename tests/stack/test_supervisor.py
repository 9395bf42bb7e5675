import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from services.stack.probes import Probe
from services.stack.supervisor import Child, Limits, StackError, Stopped, Supervisor, supervise

FAST = Limits(start_s=10, grace_s=5, first_delay_s=0.02, longest_delay_s=0.1)
# Writes its pid where the probe looks, then waits; SIGTERM ends it with the default action.
STAYS = "import os, sys, time; open(sys.argv[1], 'a').write(f'{os.getpid()}\\n'); time.sleep(300)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + STAYS
CRASHES = "import sys; open(sys.argv[1], 'a').write('1\\n'); print('the tape broke'); sys.exit(7)"


def child(
    folder: Path, name: str, code: str, *, after: tuple[str, ...] = (), probe: Probe | None = None
) -> Child:
    marker = folder / f"{name}.pid"

    async def marked() -> bool:
        return marker.exists() and marker.read_text() != ""

    argv = (sys.executable, "-I", "-S", "-c", code, str(marker))
    return Child(name, argv, "nowhere", probe or marked, after=after)


def pids(folder: Path, name: str) -> list[int]:
    marker = folder / f"{name}.pid"
    return [int(line) for line in marker.read_text().split()] if marker.exists() else []


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(condition: Callable[[], bool], what: str, within_s: float = 20) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"not within {within_s} s: {what}"
        time.sleep(0.01)


async def until(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert condition(), what


async def never() -> bool:
    return False


def test_children_start_after_what_they_need_and_stop_with_the_block(tmp_path: Path) -> None:
    seen: list[tuple[str, bool]] = []
    base = child(tmp_path, "base", STAYS)

    async def probe_top() -> bool:
        seen.append(("top", bool(pids(tmp_path, "base"))))
        return bool(pids(tmp_path, "top"))

    top = child(tmp_path, "top", STAYS, after=("base",), probe=probe_top)

    async def work(supervisor: Supervisor) -> list[int]:
        await supervisor.ready()
        status = supervisor.status()
        assert [name for name, *_ in status] == ["base", "top"]
        return [pid for _, _, pid, _ in status]

    started = asyncio.run(supervise(Supervisor([base, top], tmp_path, print, FAST), work))
    assert started == pids(tmp_path, "base") + pids(tmp_path, "top")
    assert all(base_was_ready for _, base_was_ready in seen)
    assert not any(alive(pid) for pid in started)


def test_a_crashed_child_is_named_and_restarted(tmp_path: Path) -> None:
    said: list[str] = []

    async def work(supervisor: Supervisor) -> None:
        await supervisor.ready()
        os.kill(pids(tmp_path, "worker")[0], signal.SIGKILL)
        await until(lambda: len(said) == 2 and len(pids(tmp_path, "worker")) == 2, "restarted")

    children = [child(tmp_path, "worker", STAYS), child(tmp_path, "other", STAYS)]
    asyncio.run(supervise(Supervisor(children, tmp_path, said.append, FAST), work))
    assert said[1] == "worker is ready again"
    assert said[0].startswith("worker was ended by SIGKILL; restarting in 0.02 s")
    assert len(pids(tmp_path, "other")) == 1
    assert not any(alive(pid) for name in ("worker", "other") for pid in pids(tmp_path, name))


def test_three_crashes_stop_everything_and_show_the_log(tmp_path: Path) -> None:
    said: list[str] = []
    children = [child(tmp_path, "healthy", STAYS), child(tmp_path, "broken", CRASHES, probe=never)]

    async def work(supervisor: Supervisor) -> None:
        await supervisor.ready()

    with pytest.raises(StackError, match=r"broken ended with status 7, crash 3 within 60 s") as caught:
        asyncio.run(supervise(Supervisor(children, tmp_path, said.append, FAST), work))
    assert "the tape broke" in str(caught.value)
    assert len(pids(tmp_path, "broken")) == 3
    assert [line.partition("; restarting in ")[2].split(" s;")[0] for line in said] == ["0.02", "0.04"]
    assert not any(alive(pid) for pid in pids(tmp_path, "healthy"))


def test_crashes_outside_the_window_do_not_add_up(tmp_path: Path) -> None:
    limits = Limits(start_s=10, first_delay_s=0.05, longest_delay_s=0.05, crashes=3, window_s=0.04)

    async def work(supervisor: Supervisor) -> None:
        await until(lambda: len(pids(tmp_path, "broken")) >= 5, "five starts")

    broken = child(tmp_path, "broken", CRASHES, probe=never)
    asyncio.run(supervise(Supervisor([broken], tmp_path, lambda _line: None, limits), work))


def test_a_configuration_mistake_is_not_tried_again(tmp_path: Path) -> None:
    code = "import sys; open(sys.argv[1], 'a').write('1\\n'); sys.exit('port: 0') if 0 else sys.exit(2)"
    broken = child(tmp_path, "broken", code, probe=never)
    with pytest.raises(StackError, match="broken ended with status 2"):
        asyncio.run(supervise(Supervisor([broken], tmp_path, print, FAST), Supervisor.ready))
    assert len(pids(tmp_path, "broken")) == 1


def test_a_child_that_never_gets_ready_is_a_crash(tmp_path: Path) -> None:
    limits = Limits(start_s=0.2, first_delay_s=0.01)
    mute = child(tmp_path, "mute", STAYS, probe=never)
    with pytest.raises(StackError, match=r"mute was not ready within 0\.2 s, crash 3"):
        asyncio.run(supervise(Supervisor([mute], tmp_path, lambda _line: None, limits), Supervisor.ready))
    assert not any(alive(pid) for pid in pids(tmp_path, "mute"))


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    async def probe() -> bool:
        return False

    missing = Child("missing", ("/nonexistent/server",), "nowhere", probe)
    with pytest.raises(StackError, match=r"missing ended with status 1.*\n.*/nonexistent/server"):
        asyncio.run(supervise(Supervisor([missing], tmp_path, lambda _line: None, FAST), Supervisor.ready))


def test_a_failing_job_stops_the_children_and_keeps_its_error(tmp_path: Path) -> None:
    async def work(supervisor: Supervisor) -> None:
        await supervisor.ready()
        raise ValueError("the job's own")

    with pytest.raises(ValueError, match="the job's own"):
        asyncio.run(supervise(Supervisor([child(tmp_path, "one", STAYS)], tmp_path, print, FAST), work))
    assert not any(alive(pid) for pid in pids(tmp_path, "one"))


def test_a_grandchild_does_not_outlive_its_session(tmp_path: Path) -> None:
    spawns = (
        "import subprocess, sys, time; "
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)']); "
        "open(sys.argv[1], 'a').write(f'{p.pid}\\n'); time.sleep(300)"
    )
    asyncio.run(
        supervise(Supervisor([child(tmp_path, "parent", spawns)], tmp_path, print, FAST), Supervisor.ready)
    )
    wait_for(lambda: not alive(pids(tmp_path, "parent")[0]), "the grandchild ended")


def test_a_child_deaf_to_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    said: list[str] = []
    limits = Limits(grace_s=0.2)
    supervisor = Supervisor([child(tmp_path, "deaf", DEAF)], tmp_path, said.append, limits)
    asyncio.run(supervise(supervisor, Supervisor.ready))
    assert said == ["deaf did not stop within 0.2 s and was killed"]
    assert not any(alive(pid) for pid in pids(tmp_path, "deaf"))


def test_a_child_that_cannot_be_started_again_is_named(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    other, stays = child(tmp_path, "other", STAYS), child(tmp_path, "stays", STAYS)

    async def work(supervisor: Supervisor) -> None:
        await supervisor.ready()
        shutil.rmtree(logs)  # as good as a full disk or a lost mount: no log can be opened
        os.kill(pids(tmp_path, "stays")[0], signal.SIGKILL)
        await asyncio.Event().wait()

    with pytest.raises(StackError, match=r"stays could not be started \(.*stays.log.*\), crash 3"):
        asyncio.run(supervise(Supervisor([other, stays], logs, print, FAST), work))
    assert not any(alive(pid) for name in ("other", "stays") for pid in pids(tmp_path, name))


# The rest needs a supervisor in a process of its own, to be signalled or killed from outside.
OUTSIDE = """
import asyncio, sys
from pathlib import Path
from services.stack.supervisor import Child, Limits, Stopped, Supervisor, supervise

folder, code, grace_s = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])

def child(name):
    marker = folder / f"{name}.pid"
    async def probe():
        return marker.exists() and marker.read_text() != ""
    return Child(name, (sys.executable, "-I", "-S", "-c", code, str(marker)), "nowhere", probe)

async def work(supervisor):
    await supervisor.ready()
    (folder / "ready").touch()
    await asyncio.Event().wait()

try:
    asyncio.run(supervise(Supervisor([child("a"), child("b")], folder, print, Limits(grace_s=grace_s)), work))
except Stopped as stopped:
    print("stopped by", stopped, flush=True)
"""


def outside(folder: Path, code: str, grace_s: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", OUTSIDE, str(folder), code, str(grace_s)], stdout=subprocess.PIPE, text=True
    )
    wait_for((folder / "ready").exists, "ready")
    return process


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_children(tmp_path: Path, signum: signal.Signals) -> None:
    process = outside(tmp_path, STAYS, grace_s=10)
    process.send_signal(signum)
    said, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert said == f"stopped by {signum.name}\n"
    assert not any(alive(pid) for name in "ab" for pid in pids(tmp_path, name))


def test_a_second_sigint_hurries(tmp_path: Path) -> None:
    process = outside(tmp_path, DEAF, grace_s=120)
    process.send_signal(signal.SIGINT)
    # Sent until it ends: two signals at once could arrive as one.
    wait_for(lambda: process.poll() is not None or process.send_signal(signal.SIGINT) is not None, "ended")
    process.communicate(timeout=20)
    assert not any(alive(pid) for name in "ab" for pid in pids(tmp_path, name))


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux only")
def test_no_child_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    process = outside(tmp_path, DEAF, grace_s=10)
    process.kill()
    process.communicate(timeout=20)
    children = [pid for name in "ab" for pid in pids(tmp_path, name)]
    assert len(children) == 2
    wait_for(lambda: not any(alive(pid) for pid in children), "children gone")


def test_stopped_names_the_signal() -> None:
    assert str(Stopped(signal.SIGTERM)) == "SIGTERM"
