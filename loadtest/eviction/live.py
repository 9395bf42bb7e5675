"""Real servers under real requests: one cache server a policy, the client that people use, a sidecar.

Every policy gets a fresh server with the same maxmemory, the same requests in the same order, and the same
client: `frugalads.client.cache`, one request at a time, which on a miss writes the value with its priority as
expiry (the policies `allkeys-lru` and `allkeys-lfu` pay for expiries that they do not need). The computation
returns at once and counts as what the cost model says. Another process sends GETs meanwhile and keeps what it
waited.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import redis
from numpy.typing import NDArray

from frugalads.client.cache import Cache
from services.runtime.errors import UserError
from services.stack import leash, valkey
from services.stack.ports import HOST, free_base
from services.stack.probes import grpc_health

LRU, LFU, BACKSTOP, SIDECAR = POLICIES = ("allkeys-lru", "allkeys-lfu", "backstop", "sidecar")
"""Redis' own two best, our expiries without a sidecar, and with it."""

PREFIX = "bench:"
COST_UNIT_US = 44
"""Of a cost of 1, as GD-Wheel's authors measured it (EuroSys 2015, section 6.1)."""

_PROBE_KEY = "probe"
_PROBE_EVERY_S = 0.002
_TIMEOUT_S = 2.0
_START_S = 240.0  # the first start of a new version compiles
_SAMPLED_KEYS = 5_000
_EVICTION = "frugalads.eviction.v1.EvictionService"


class Work(NamedTuple):
    """Requests for keys 0..n-1 (int32), with a cost and the bytes of the value of each key (int64)."""

    keys: NDArray[np.int32]
    costs: NDArray[np.int64]
    value_bytes: NDArray[np.int64]


class Usage(NamedTuple):
    """What a server says of itself. cpu_s: of its process, in user and system mode."""

    keys: int
    used_bytes: int
    cpu_s: float
    oom_errors: int


class Waits(NamedTuple):
    """The 99th percentile of waiting for a GET, microseconds, and its 95 % interval."""

    p99_us: float
    low_us: float
    high_us: float


class Server:
    """A cache server of its own for the time of a block."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"redis://{HOST}:{port}/0"
        self.admin: Any = redis.Redis(port=port, socket_timeout=10)

    def set_policy(self, policy: str, max_bytes: int) -> None:
        """The policy, and Redis' own best sample size for all alike; our rows evict by `volatile-ttl`."""
        name = policy if policy in (LRU, LFU) else "volatile-ttl"
        self.admin.config_set("maxmemory-policy", name)
        self.admin.config_set("maxmemory-samples", 10)
        self.admin.config_set("maxmemory", max_bytes)

    def usage(self) -> Usage:
        """Keys, the memory that counts against maxmemory, CPU time so far, writes refused for memory."""
        info = self.admin.info("everything")
        oom = info.get("errorstat_OOM", {}).get("count", 0)
        return Usage(
            int(self.admin.dbsize()),
            int(info["used_memory"]) - int(info["mem_not_counted_for_evict"]),
            float(info["used_cpu_user"]) + float(info["used_cpu_sys"]),
            int(oom),
        )


@contextlib.contextmanager
def running_server(binary: Path) -> Iterator[Server]:
    """A fresh server; raises UserError when it does not answer."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_base()
        config = folder / "server.conf"
        valkey.write_config("cache", config, host=HOST, port=port, folder=folder, cache_mb=1024)
        process = subprocess.Popen(_tied(str(binary), str(config)), stdout=subprocess.DEVNULL)
        server = Server(port)
        try:
            _await_ping(server, process)
            yield server
        finally:
            server.admin.close()
            process.kill()
            process.wait()


def _tied(*argv: str) -> list[str]:
    """The same program, ended by the kernel when this process ends, however that happens."""
    return [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), *argv]


def _await_ping(server: Server, process: subprocess.Popen[bytes]) -> None:
    ends_s = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < ends_s:
        with contextlib.suppress(redis.ConnectionError):
            server.admin.ping()
            return
        time.sleep(0.02)
    raise UserError(f"the cache server did not answer on port {server.port}")


class Sidecar(NamedTuple):
    """A sidecar process and where it listens."""

    target: str
    process: subprocess.Popen[bytes]


@contextlib.contextmanager
def running_sidecar(server: Server) -> Iterator[Sidecar]:
    """`python -m services.eviction` with its defaults, ready; raises UserError when it does not become so."""
    port = free_base(server.port + 100)
    options = {"redis_url": server.url, "key_prefix": PREFIX, "host": HOST, "port": port}
    options |= {"metrics_port": port + 1, "log_level": "error"}
    environ = {f"FRUGALADS_EVICTION_{name.upper()}": str(value) for name, value in options.items()}
    argv = _tied(sys.executable, "-m", "services.eviction")
    process = subprocess.Popen(argv, env=os.environ | environ)

    async def ready() -> bool:
        serves = grpc_health(HOST, port, _EVICTION)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_S):
                while process.poll() is None:
                    if await serves():
                        return True
                    await asyncio.sleep(0.05)
        return False

    try:
        if not asyncio.run(ready()):
            raise UserError("the sidecar did not become ready")
        yield Sidecar(f"{HOST}:{port}", process)
    finally:
        process.kill()
        process.wait()


class Load:
    """A client that replays requests. failed: requests that raised."""

    def __init__(self, cache: Cache, work: Work) -> None:
        self._cache = cache
        self._work = work
        self._payload = bytes(int(work.value_bytes.max()))
        self._missed = False
        self._bytes = 0
        self.failed = 0

    def replay(self, first: int, count: int) -> NDArray[np.bool_]:
        """Sends requests first..first+count-1; bool[count], which of them had to compute."""
        keys, get = self._work.keys[first : first + count].tolist(), self._cache.get_or_compute
        costs, sizes = self._work.costs, self._work.value_bytes
        missed = np.zeros(len(keys), np.bool_)
        for i, key in enumerate(keys):
            self._missed, self._bytes = False, int(sizes[key])
            try:
                get(f"{key:012d}", self._compute, cost=int(costs[key]) * COST_UNIT_US)
            except Exception:
                self.failed += 1
            missed[i] = self._missed
        return missed

    def _compute(self) -> bytes:
        self._missed = True
        return self._payload[: self._bytes]


def client(server: Server, sidecar: Sidecar | None) -> Cache:
    """The cache client of every row; only the sidecar's has somebody to report to."""
    return Cache(
        server.url, PREFIX, sidecar=None if sidecar is None else sidecar.target, timeout_s=_TIMEOUT_S
    )


def bytes_for(binary: Path, work: Work, entries: int) -> int:
    """The maxmemory that holds about so many entries: an empty server, and the mean of up to 5,000 keys."""
    keys = np.unique(work.keys)
    sample = np.random.default_rng(0).choice(keys, min(len(keys), _SAMPLED_KEYS), replace=False)
    with running_server(binary) as server, client(server, None) as cache:
        load = Load(cache, work._replace(keys=sample))
        load.replay(0, 1)
        empty = server.usage()
        load.replay(1, len(sample) - 1)
        full = server.usage()
    per_entry = (full.used_bytes - empty.used_bytes) / (full.keys - empty.keys)
    return round(empty.used_bytes + entries * per_entry)


class Prober:
    """A process that sends a GET every 2 ms to one server at a time, and keeps what it waited."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def turn_to(self, server: Server | None) -> None:
        """From now on it asks this server, or none; returns when it has turned."""
        self._tell(0 if server is None else server.port)

    def waits(self, server: Server) -> Waits:
        """Of all turns of a server."""
        waits_us: list[float] = self._tell(-server.port)
        return percentile(np.asarray(waits_us))

    def _tell(self, number: int) -> Any:
        try:
            self._pipe.send(number)
            return self._pipe.recv()
        except (EOFError, OSError):
            raise UserError("the process that measures GETs has ended") from None


@contextlib.contextmanager
def running_prober() -> Iterator[Prober]:
    """A prober that asks nobody as yet."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_probe, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Prober(ours)
    finally:
        ours.close()  # which ends it
        process.join(5)
        process.kill()


def _probe(pipe: Connection) -> None:
    """Told a port, asks there; 0: nobody; a negative one: answers with its waits, microseconds."""
    port, readers = 0, {}
    waits_us: dict[int, list[float]] = {}
    with contextlib.suppress(EOFError):
        while True:
            if pipe.poll(_PROBE_EVERY_S):
                number = pipe.recv()
                pipe.send(waits_us[-number] if number < 0 else None)
                port = max(number, 0)
                if port and port not in readers:
                    readers[port] = redis.Redis(port=port, socket_timeout=_TIMEOUT_S)
                    readers[port].get(_PROBE_KEY)
                    waits_us[port] = []
            elif port:
                began_ns = time.perf_counter_ns()
                readers[port].get(_PROBE_KEY)
                waits_us[port].append((time.perf_counter_ns() - began_ns) / 1000)


def percentile(waits_us: NDArray[np.float64], share: float = 0.99) -> Waits:
    """The percentile by nearest rank; its interval by the ranks that a binomial count would reach."""
    ordered, n = np.sort(waits_us), len(waits_us)
    half = 1.96 * math.sqrt(n * share * (1 - share))
    ranks = (math.ceil(share * n), math.floor(share * n - half), math.ceil(share * n + half))
    p99, low, high = (float(ordered[min(max(rank, 1), n) - 1]) for rank in ranks)
    return Waits(p99, low, high)
