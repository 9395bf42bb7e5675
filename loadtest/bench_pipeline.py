"""Throughput of RankAds on a hit, against a bare handler that GETs the same entry and returns the same bytes.

Both servers run in one process, one after the other on the same event loop, over the same Redis, each behind
its own gRPC socket; clients run in a process of their own, so that they take no time of the server's loop.
The bare handler has no validation, auction, tokens, metrics or admission: what it lacks is the price of the
product.

A round measures one server, then the other; the ratio is that of the medians over rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import redis

from frugalads.scoring.v1 import scoring_pb2, scoring_pb2_grpc
from loadtest.report import run_header
from services.core.ads_list import AdsList, Versions
from services.core.eviction.priority import BASE_MS
from services.core.query import fingerprint, normalise
from services.runtime.errors import UserError
from services.runtime.metrics import Metrics
from services.runtime.redis_client import connect
from services.runtime.server import start_server
from services.scoring.cache import RedisCache
from services.scoring.config import ScoringConfig
from services.scoring.server import build
from services.scoring.state import State, Update
from services.stack import valkey
from services.stack.ports import free_base
from services.stack.tables import text_table

_METHOD = "/frugalads.scoring.v1.ScoringService/RankAds"
_BARE_METHOD = "/bench.Bare/Get"
_NOBODY = "127.0.0.1:1"  # a hit calls no upstream
_TIMEOUT_MS = 1000
_START_S = 10.0


@dataclass(frozen=True)
class HitThroughput:
    """Medians over rounds of calls per second and server processor time per call, and the conditions."""

    rank_ads_per_s: float
    bare_per_s: float
    rank_ads_cpu_us: float
    bare_cpu_us: float
    rounds: int
    concurrency: int
    keys: int
    candidates: int
    response_bytes: int
    errors: int

    @property
    def ratio(self) -> float:
        """Throughput of RankAds relative to the bare handler."""
        return self.rank_ads_per_s / self.bare_per_s

    @property
    def cpu_ratio(self) -> float:
        """The same by processor time of a call, which other load on the machine disturbs less."""
        return self.bare_cpu_us / self.rank_ads_cpu_us


def main(calls: int, rounds: int, json_file: str | None) -> int:
    """Measures with an embedded server, prints a table and, on request, writes one JSON document."""
    if calls < 10 or rounds < 1:
        raise UserError(f"requests {calls} must be 10 or more, rounds {rounds} 1 or more")
    with embedded_server() as port:
        url = f"redis://127.0.0.1:{port}"
        result = hit_throughput(f"{url}/0", f"{url}/1", rounds=rounds, calls=calls, progress=_say)
    rows = [
        ("RankAds on a hit", f"{result.rank_ads_per_s:.0f}", f"{result.rank_ads_cpu_us:.0f}"),
        ("bare handler", f"{result.bare_per_s:.0f}", f"{result.bare_cpu_us:.0f}"),
        ("ratio", f"{result.ratio:.2f}", f"{result.cpu_ratio:.2f}"),
    ]
    _say(text_table(("server", "calls/s", "CPU us/call"), rows))
    _say(f"medians of {rounds} rounds, {result.concurrency} callers, {result.errors} errors")
    if json_file is not None:
        header = run_header({"requests": calls, "rounds": rounds}, seed=0)
        row = {**asdict(result), "ratio": result.ratio, "cpu_ratio": result.cpu_ratio}
        Path(json_file).write_text(json.dumps({"header": header, "rows": [row]}, indent=2), encoding="utf-8")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@contextlib.contextmanager
def embedded_server() -> Iterator[int]:
    """An embedded Redis for the time of a block; its port."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_base()
        valkey.write_config(
            "cache", folder / "valkey.conf", host="127.0.0.1", port=port, folder=folder, cache_mb=256
        )
        process = subprocess.Popen(
            [str(valkey.server_binary()), str(folder / "valkey.conf")], stdout=subprocess.DEVNULL
        )
        try:
            _await_answer(port, process)
            yield port
        finally:
            process.kill()
            process.wait()


def _await_answer(port: int, process: subprocess.Popen[bytes]) -> None:
    ends_s = time.monotonic() + _START_S
    with contextlib.closing(redis.Redis(port=port)) as client:
        while process.poll() is None and time.monotonic() < ends_s:
            with contextlib.suppress(redis.ConnectionError):
                client.ping()
                return
            time.sleep(0.02)
    raise UserError(f"the embedded Redis server did not answer on port {port}")


def hit_throughput(
    cache_url: str,
    state_url: str,
    *,
    rounds: int = 3,
    calls: int = 4000,
    concurrency: int = 32,
    keys: int = 256,
    candidates: int = 48,
    slots: int = 4,
    progress: Callable[[str], None] = lambda _: None,
) -> HitThroughput:
    """Measures both servers in turns. The two Redis databases should be empty; what is written stays there.

    calls: length of one measurement, after a tenth as many for warm-up. Raises RuntimeError when the first
    answer was no hit.
    """
    return asyncio.run(
        _measure(cache_url, state_url, rounds, calls, concurrency, keys, candidates, slots, progress)
    )


async def _measure(
    cache_url: str,
    state_url: str,
    rounds: int,
    calls: int,
    concurrency: int,
    keys: int,
    candidates: int,
    slots: int,
    progress: Callable[[str], None],
) -> HitThroughput:
    queries = [f"query number {i}" for i in range(keys)]
    config = ScoringConfig(
        cache_url=cache_url,
        state_url=state_url,
        retrieval_target=_NOBODY,
        inference_target=_NOBODY,
        click_secret="only for this measurement",
        refresh_every=1_000_000,
        cache_timeout_ms=_TIMEOUT_MS,
        log_level="error",
    )
    await fill(config, queries, candidates)
    async with (
        start_server("scoring", config, build) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        stub = scoring_pb2_grpc.ScoringServiceStub(channel)
        requests = [scoring_pb2.RankAdsRequest(query=query, slots=slots) for query in queries]
        answer = await stub.RankAds(requests[0])
        if answer.cache_state != scoring_pb2.CACHE_STATE_HIT:
            raise RuntimeError("the first answer was no hit")
        payload = answer.SerializeToString()
        bare = _Bare(config, queries, payload)
        bare_port = await bare.start()
        targets = {
            "rank_ads": (running.port, _METHOD, [r.SerializeToString() for r in requests]),
            "bare": (bare_port, _BARE_METHOD, [str(i).encode() for i in range(keys)]),
        }
        rates: dict[str, list[float]] = {name: [] for name in targets}
        cpu_us: dict[str, list[float]] = {name: [] for name in targets}
        errors = 0
        try:
            for number in range(rounds):
                for name, (port, method, payloads) in targets.items():
                    cpu_s = time.process_time()
                    load = await send_load(port, method, payloads, calls, concurrency)
                    rates[name].append(load.calls_per_s)
                    cpu_us[name].append((time.process_time() - cpu_s) * 1e6 / load.calls)
                    errors += load.failed
                    progress(
                        f"round {number + 1}/{rounds}: {name} {load.calls_per_s:.0f} calls/s, "
                        f"{cpu_us[name][-1]:.0f} us of processor time each"
                    )
        finally:
            await bare.stop()
    return HitThroughput(
        statistics.median(rates["rank_ads"]),
        statistics.median(rates["bare"]),
        statistics.median(cpu_us["rank_ads"]),
        statistics.median(cpu_us["bare"]),
        rounds,
        concurrency,
        keys,
        candidates,
        len(payload),
        errors,
    )


async def fill(config: ScoringConfig, queries: list[str], candidates: int) -> None:
    """Puts live ads into the state Redis and a list a query into the cache."""
    state = State(connect(config.state_url, _TIMEOUT_MS, 4))
    cache = RedisCache(connect(config.cache_url, _TIMEOUT_MS, 4), config.key_prefix, Metrics("bench"))
    ads = [
        scoring_pb2.Ad(
            ad_id=i,
            title=f"Toner cartridge, black, {i} pages",
            advertiser=f"Merchant {i % 40}",
            bid_usd=1 + i % 7 / 10,
        )
        for i in range(1, 2 * candidates + 1)
    ]
    await state.update(
        [Update("ad", ad.ad_id, ad.SerializeToString(), round(ad.bid_usd * 1_000_000), 0) for ad in ads]
    )
    versions = Versions("1" * 64, "2" * 64, "3" * 64)
    for number, query in enumerate(queries):
        ids = tuple(1 + (number + i) % (2 * candidates) for i in range(candidates))
        entry = AdsList(
            ids, tuple(0.2 / (1 + i) for i in range(candidates)), time.time_ns() // 1_000_000, 9000, versions
        )
        await cache.put(fingerprint(normalise(query)), entry, BASE_MS)
    await state.close()
    await cache.close()


class Load(NamedTuple):
    """What a load process reached, its warm-up among `calls` and `failed`."""

    calls_per_s: float
    calls: int
    failed: int


class _Bare:
    """A grpc.aio handler that reads an entry with the client of the product and returns bytes of the same
    size.
    """

    def __init__(self, config: ScoringConfig, queries: list[str], payload: bytes) -> None:
        self._client = connect(config.cache_url, config.cache_timeout_ms, config.max_concurrent)
        self._keys = [config.key_prefix.encode() + fingerprint(normalise(q)).hex().encode() for q in queries]
        self._payload = payload
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])

    async def start(self) -> int:
        handler: Any = grpc.unary_unary_rpc_method_handler(self._get)
        handlers = grpc.method_handlers_generic_handler("bench.Bare", {"Get": handler})
        self._server.add_generic_rpc_handlers((handlers,))
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return port

    async def stop(self) -> None:
        await self._server.stop(None)
        await self._client.aclose()

    async def _get(self, request: bytes, context: Any) -> bytes:
        if await self._client.get(self._keys[int(request)]) is None:
            raise RuntimeError("the entry is gone")
        return self._payload


async def send_load(port: int, method: str, payloads: list[bytes], calls: int, concurrency: int) -> Load:
    """What a closed loop of `concurrency` callers in another process reaches."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_client, args=(sender, port, method, payloads, calls, concurrency))
    process.start()
    sender.close()  # so that the death of the process ends the wait
    try:
        load: Load = await asyncio.to_thread(receiver.recv)
    except EOFError:
        raise RuntimeError("the load process ended without a result") from None
    finally:
        process.kill()
        process.join()
        receiver.close()
    return load


def _client(sender: Any, port: int, method: str, payloads: list[bytes], calls: int, concurrency: int) -> None:
    sender.send(asyncio.run(_closed_loop(port, method, payloads, calls, concurrency)))


async def _closed_loop(port: int, method: str, payloads: list[bytes], calls: int, concurrency: int) -> Load:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary(method)
        failed = 0

        async def caller(numbers: Iterator[int]) -> None:
            nonlocal failed
            for number in numbers:
                try:
                    await call(payloads[number % len(payloads)])
                except grpc.aio.AioRpcError:
                    failed += 1

        async def rush(count: int) -> float:
            numbers = iter(range(count))  # shared: each caller takes the next one
            began_s = time.monotonic()
            await asyncio.gather(*(caller(numbers) for _ in range(concurrency)))
            return time.monotonic() - began_s

        warm_up = calls // 10
        await rush(warm_up)
        return Load(calls / await rush(calls), warm_up + calls, failed)
