"""How long the machine itself kept a ready process waiting, so that a busy machine is not taken for a fault.

A child process wakes every millisecond and does nothing else. Whatever it comes late, any process of the
stack may come late as well, through no fault of its own.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import NamedTuple

_PROGRAM = """
import time
while True:
    due = time.monotonic() + 0.001
    time.sleep(0.001)
    late = time.monotonic() - due
    if late > 0.002:
        print(time.monotonic(), late, flush=True)
"""


class _Stall(NamedTuple):
    ended_s: float  # of time.monotonic(), which all processes share
    seconds: float


class Witness:
    """Watches from construction to `stop`."""

    def __init__(self) -> None:
        self._stalls: list[_Stall] = []
        self._process = subprocess.Popen([sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            ended_s, seconds = map(float, line.split())
            self._stalls.append(_Stall(ended_s, seconds))

    def worst_us(self, since_s: float) -> float:
        """The longest that a ready process waited since an instant of time.monotonic()."""
        return max((s.seconds * 1e6 for s in list(self._stalls) if s.ended_s >= since_s), default=0.0)

    def share(self, since_s: float) -> float:
        """The share of the time since then that a ready process spent waiting, 0..1."""
        waited_s = sum(s.seconds for s in list(self._stalls) if s.ended_s >= since_s)
        return min(1.0, waited_s / max(1e-9, time.monotonic() - since_s))

    def stop(self) -> None:
        """Ends the child."""
        self._process.kill()
        self._process.wait(timeout=10)
        self._reader.join(timeout=5)
        assert self._process.stdout is not None
        self._process.stdout.close()
