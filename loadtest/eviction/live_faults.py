"""What must not turn into failures: a killed sidecar, uneven sizes, a client that does not read its replies.

Each is tried on a fresh server with a sidecar, and reported in figures. Reports of other systems that it goes
back to: dragonfly#1936 and #8149 (memory limits missed with uneven sizes), redis#1618 (output buffers of
readers evict keys).
"""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from loadtest.eviction.live import (
    SIDECAR,
    Load,
    Server,
    Work,
    client,
    running_server,
    running_sidecar,
)
from services.stack.ports import HOST

_REQUESTS = 20_000
_MAX_BYTES = 256 << 20
_SMALLEST, _LARGEST = 50, 1_000_000
_WRITES = 5_000
_LOOK_EVERY = 10
_SETTLE_S = 2.0
_STALLED_S = 3.0
_STALLED_REPLIES = 2_000
_STALLED_VALUE_BYTES = 200_000


@dataclass(frozen=True)
class Faults:
    """Figures of the three.

    kill_requests, kill_failed, kill_oom_errors: requests after `kill -9` of the sidecar, how many raised, and
    writes that Redis refused for memory; kill_used: memory used in the end, as a share of maxmemory.
    budget_most, budget_settled: the most memory that was seen in use while values of 50 B to 1 MB were
    written, and after it, as shares of maxmemory; budget_backstop: how many of the entries that left Redis
    evicted by itself. stalled_kept: share of the keys that stayed while a client asked for 400 MB and read
    nothing; unlimited_kept: the same without `maxmemory-clients`, which the sidecar sets.
    """

    kill_requests: int
    kill_failed: int
    kill_oom_errors: int
    kill_used: float
    budget_most: float
    budget_settled: float
    budget_backstop: float
    stalled_kept: float
    unlimited_kept: float

    def lines(self) -> list[str]:
        """For a terminal."""
        return [
            f"kill -9 of the sidecar: {self.kill_requests} requests after it, {self.kill_failed} failed,"
            f" {self.kill_oom_errors} writes refused for memory, {self.kill_used:.3f} of maxmemory used",
            f"values of 50 B to 1 MB: at most {self.budget_most:.3f} of maxmemory used,"
            f" {self.budget_settled:.3f} settled; Redis itself evicted {self.budget_backstop:.2%}",
            f"a client that does not read: {self.stalled_kept:.1%} of the keys kept,"
            f" {self.unlimited_kept:.1%} without maxmemory-clients",
        ]


def try_faults(binary: Path, work: Work, max_bytes: int) -> Faults:
    """Tries all three; about half a minute."""
    sent, failed, oom_errors, used = _kill(binary, work, max_bytes)
    most, settled, backstop, kept, unlimited = _sizes_and_stall(binary)
    return Faults(sent, failed, oom_errors, used, most, settled, backstop, kept, unlimited)


def _kill(binary: Path, work: Work, max_bytes: int) -> tuple[int, int, int, float]:
    half = min(len(work.keys) // 2, _REQUESTS)
    with running_server(binary) as server:
        server.set_policy(SIDECAR, max_bytes)
        with running_sidecar(server) as sidecar, client(server, sidecar) as cache:
            load = Load(cache, work)
            load.replay(0, half)
            os.kill(sidecar.process.pid, signal.SIGKILL)
            sent = len(load.replay(half, half))
        usage = server.usage()
    return sent, load.failed, usage.oom_errors, usage.used_bytes / max_bytes


def _sizes_and_stall(binary: Path) -> tuple[float, float, float, float, float]:
    draw = random.Random(0)
    with running_server(binary) as server:
        server.set_policy(SIDECAR, _MAX_BYTES)
        with running_sidecar(server) as sidecar, client(server, sidecar) as cache:
            most = 0
            for number in range(_WRITES):
                size = round(_SMALLEST * (_LARGEST / _SMALLEST) ** draw.random())
                cache.get_or_compute(f"{number}", bytes(size).__bytes__, cost=draw.randrange(1, 1_000_000))
                if number % _LOOK_EVERY == 0:
                    most = max(most, server.usage().used_bytes)
            time.sleep(_SETTLE_S)
            settled = server.usage()
            backstop = int(server.admin.info("stats")["evicted_keys"]) / (_WRITES - settled.keys)
            kept = _kept_behind_a_stalled_client(server)
        server.admin.config_set("maxmemory-clients", 0)
        unlimited = _kept_behind_a_stalled_client(server)
    return most / _MAX_BYTES, settled.used_bytes / _MAX_BYTES, backstop, kept, unlimited


def _kept_behind_a_stalled_client(server: Server) -> float:
    """The share of the keys that stay while a client asks for more than fits and reads nothing."""
    server.admin.set("large", bytes(_STALLED_VALUE_BYTES))  # without an expiry it is no victim
    before = server.usage().keys
    with socket.socket() as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect((HOST, server.port))
        stalled.sendall(b"GET large\r\n" * _STALLED_REPLIES)
        time.sleep(_STALLED_S)
        return server.usage().keys / before
