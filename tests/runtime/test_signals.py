from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from redis_process import wait_until

from services.runtime.config import SERVICES


def handles(pid: int, number: signal.Signals) -> bool:
    """Whether a process catches a signal, as Linux tells."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("service", SERVICES)
def test_a_signal_that_comes_during_the_imports_ends_the_server_well(
    service: str, number: signal.Signals
) -> None:
    """As PID 1 it would be lost otherwise: the kernel gives that process no default action."""
    # The import of grpc never ends, so that the signal comes in time however fast the machine is.
    program = (
        "import runpy, sys, threading\n"
        "class Stuck:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'grpc':\n"
        "            print('importing', flush=True)\n"
        "            threading.Event().wait()\n"
        "sys.meta_path.insert(0, Stuck())\n"
        f"runpy.run_module('services.{service}', run_name='__main__')\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"importing\n"
        wait_until(lambda: handles(process.pid, number))
        process.send_signal(number)
        assert process.wait(timeout=10) == 0
