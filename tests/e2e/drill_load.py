"""A load that runs beside a drill, remembers every outcome, and closes the books on money at the end."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import grpc
import redis
from grpc_health.v1 import health_pb2, health_pb2_grpc
from machine_witness import Witness
from redis_process import wait_until
from stack_process import Stack

from frugalads.client import AsyncClient, Client, FrugalAdsError, Options, ResourceExhaustedError
from frugalads.scoring.v1 import scoring_pb2

RECOVERY_S = 5.0
CALM_S = 1.0  # the stack has recovered once every call that began in such a time ended as usual
CALL_S = 3.0
CACHE_ADDS_US = 20_000

HIT = scoring_pb2.CACHE_STATE_HIT
BYPASSED = scoring_pb2.CACHE_STATE_BYPASSED
REFRESH_FAILED = scoring_pb2.DEGRADED_REASON_REFRESH_FAILED
CACHE_UNAVAILABLE = scoring_pb2.DEGRADED_REASON_CACHE_UNAVAILABLE
STALE_ADS = scoring_pb2.DEGRADED_REASON_STALE_ADS

_PRODUCTS = ("laptop", "headphones", "coffee machine", "running shoes", "garden chair", "camera")
WARM = tuple(f"{product} {kind}" for product in _PRODUCTS for kind in ("cheap", "best", "new"))

_serial = itertools.count()


def fresh_query() -> str:
    """A query that nobody asked before."""
    return f"{_PRODUCTS[next(_serial) % len(_PRODUCTS)]} model {uuid.uuid4().hex[:10]}"


class Outcome(NamedTuple):
    """How a call ended; times are of time.monotonic()."""

    kind: str  # warm: a query whose list is cached; fresh: one that must be computed; click
    began_s: float
    ended_s: float
    code: str
    answer: scoring_pb2.RankAdsResponse | None = None

    @property
    def is_usual(self) -> bool:
        """Answered as if nothing were wrong."""
        answer = self.answer
        return self.code == "OK" and (
            answer is None or (not answer.degraded_reasons and answer.cache_state != BYPASSED)
        )


class Load:
    """RankAds at a fixed rate, whatever the answers do, and a click on every third answer with ads."""

    def __init__(self, stack: Stack, rate: float = 40.0) -> None:
        self.outcomes: list[Outcome] = []
        self._stack = stack
        self._rate = rate
        self._clicks: list[tuple[scoring_pb2.Click, int]] = []  # all that were sent, with micro-dollars
        self._charged: set[str] = set()  # click ids that were acknowledged
        self._stopping = threading.Event()
        self._state = redis.Redis(port=stack.ports.of("state"), socket_timeout=5)
        self._spent_before = self._spent()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.machine = Witness()

    def start(self) -> None:
        """Fills the cache with the warm queries, then sends."""
        with Client(self._stack.target, Options(timeout_s=10)) as client:
            for query in WARM:
                client.rank_ads(query)
        self._thread.start()
        wait_until(lambda: len(self.outcomes) > self._rate / 2, 10, "the load ran")

    def stop(self) -> None:
        """Sends no more and waits for the calls that run."""
        self._stopping.set()
        self._thread.join(timeout=30)
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        running: set[asyncio.Task[None]] = set()
        async with AsyncClient(self._stack.target, Options(timeout_s=CALL_S, attempts=1)) as client:
            began_s = time.monotonic()
            for number in itertools.count():
                if self._stopping.is_set():
                    break
                task = asyncio.create_task(self._call(client, number))
                running.add(task)
                task.add_done_callback(running.discard)
                await asyncio.sleep(max(0.0, began_s + (number + 1) / self._rate - time.monotonic()))
            await asyncio.gather(*running)

    async def _call(self, client: AsyncClient, number: int) -> None:
        kind, query = ("fresh", fresh_query()) if number % 4 == 0 else ("warm", WARM[number % len(WARM)])
        began_s = time.monotonic()
        try:
            answer = await client.rank_ads(query)
        except FrugalAdsError as error:
            self._note(kind, began_s, error.code.name)
            return
        self._note(kind, began_s, "OK", answer)
        if number % 3 or not answer.ads:
            return
        ad = answer.ads[0]
        click = scoring_pb2.Click(click_id=uuid.uuid4().hex, click_token=ad.click_token)
        self._clicks.append((click, round(ad.price_usd * 1_000_000)))
        began_s = time.monotonic()
        try:
            response = await client.record_clicks([click])
        except FrugalAdsError as error:
            self._note("click", began_s, error.code.name)
            return
        self._note("click", began_s, "OK")
        assert list(response.outcomes) == [scoring_pb2.CLICK_OUTCOME_CHARGED]
        self._charged.add(click.click_id)

    def _note(
        self, kind: str, began_s: float, code: str, answer: scoring_pb2.RankAdsResponse | None = None
    ) -> None:
        self.outcomes.append(Outcome(kind, began_s, time.monotonic(), code, answer))

    def since(self, began_s: float, kind: str = "") -> list[Outcome]:
        """Outcomes of calls that ended after an instant."""
        return [o for o in list(self.outcomes) if o.ended_s >= began_s and (not kind or o.kind == kind)]

    def seen(self, began_s: float, kind: str) -> Counter[str]:
        """What clients saw after an instant: codes, and degraded reasons of answers."""
        seen: Counter[str] = Counter()
        for outcome in self.since(began_s, kind):
            reasons = outcome.answer.degraded_reasons if outcome.answer else ()
            names = [scoring_pb2.DegradedReason.Name(r).removeprefix("DEGRADED_REASON_") for r in reasons]
            seen.update(names or [outcome.code])
        return seen

    def check_seen(
        self,
        began_s: float,
        kind: str,
        *allowed: str,
        strays: tuple[str, ...] = ("CACHE_UNAVAILABLE", "STALE_ADS"),
    ) -> Counter[str]:
        """Clients saw nothing but `allowed`; returns what they saw.

        One answer in fifty may stray, and as many more as the machine itself held processes up: one whose
        cores are all busy keeps the cache from answering in its 15 ms, and that query is computed, or the
        copy of live ads from being renewed each second. Clicks never stray.
        """
        seen = self.seen(began_s, kind)
        others = {name: count for name, count in seen.items() if name not in allowed}
        assert seen, kind
        if others:
            assert kind != "click", seen
            assert set(others) <= set(strays), seen
            assert sum(others.values()) <= self.strays(began_s, seen.total()), seen
        return seen

    def strays(self, began_s: float, calls: int) -> float:
        """How many of `calls` calls may stray since an instant."""
        return 1 + calls * max(0.02, 4 * self.machine.share(began_s))

    def check_usual(self, began_s: float) -> None:
        """Every call went as if nothing were wrong."""
        for kind in ("warm", "fresh", "click"):
            self.check_seen(began_s, kind, "OK")

    def recovered_s(self, fault_s: float, timeout_s: float = 20.0) -> float:
        """Waits until all goes as usual again; seconds from the fault to the last call that did not."""

        def calm() -> bool:
            now = time.monotonic()
            begun = [o for o in list(self.outcomes) if o.began_s > now - CALM_S]
            ended = [o for o in list(self.outcomes) if o.ended_s > now - CALM_S]
            kinds = {o.kind for o in begun}
            return kinds == {"warm", "fresh", "click"} and all(o.is_usual for o in (*begun, *ended))

        wait_until(
            lambda: time.monotonic() > fault_s + CALM_S and calm(), timeout_s, "everything was as usual again"
        )
        return max((o.ended_s - fault_s for o in self.since(fault_s) if not o.is_usual), default=0.0)

    def check_books(self) -> None:
        """No acknowledged click is lost, and none is charged twice.

        Every click is sent again. An acknowledged one must be known. One without an answer may have been
        charged or not, and is charged by now; so what the state holds is the sum of all prices, exactly.
        """
        with Client(self._stack.target, Options(timeout_s=10)) as client:
            for start in range(0, len(self._clicks), 100):
                batch = [click for click, _ in self._clicks[start : start + 100]]
                for click, outcome in zip(batch, client.record_clicks(batch).outcomes, strict=True):
                    if click.click_id in self._charged:
                        assert outcome == scoring_pb2.CLICK_OUTCOME_DUPLICATE, "an acknowledged click is lost"
        assert self._charged, "the load clicked"
        assert self._spent() - self._spent_before == sum(micros for _, micros in self._clicks)

    def _spent(self) -> int:
        days = self._state.scan_iter("frugalads:state:spend:*")
        return sum(int(micros) for day in days for micros in self._state.hvals(day))

    def close(self) -> None:
        """Stops and frees the connection."""
        if not self._stopping.is_set():
            self.stop()
        self.machine.stop()
        self._state.close()


@contextmanager
def loaded(stack: Stack, rate: float = 40.0) -> Iterator[Load]:
    """A load for the time of a block. At its end it stops, and the books are checked."""
    load = Load(stack, rate)
    load.start()
    try:
        yield load
        load.stop()
        load.check_books()
    finally:
        load.close()


def burst(target: str, queries: Sequence[str], timeout_s: float = 10.0) -> Counter[str]:
    """Asks all at once; outcomes by code. A refusal must say when to come back."""

    async def ask(client: AsyncClient, query: str) -> str:
        try:
            await client.rank_ads(query)
        except ResourceExhaustedError as error:
            return error.code.name if error.retry_after_s else "RESOURCE_EXHAUSTED without a delay"
        except FrugalAdsError as error:
            return error.code.name
        return "OK"

    async def ask_all() -> Counter[str]:
        async with AsyncClient(target, Options(timeout_s=timeout_s, attempts=1)) as client:
            return Counter(await asyncio.gather(*(ask(client, query) for query in queries)))

    return asyncio.run(ask_all())


def added_at_most_us(load: Load, since_s: float) -> float:
    """What a silent cache may add to a single answer: 20 ms, and twice what the machine itself stood still
    (once before the timer of the caller's process fires, once before the answer leaves).
    """
    return CACHE_ADDS_US + 2 * load.machine.worst_us(since_s)


def median_and_worst(values: Sequence[float]) -> tuple[float, float]:
    """The median, and the greatest."""
    return statistics.median(values), max(values)


def seconds_until(condition: Callable[[], bool], timeout_s: float, what: str) -> float:
    """Polls a condition; how long it took to hold."""
    began_s = time.monotonic()
    wait_until(condition, timeout_s, what)
    return time.monotonic() - began_s


def is_serving(stack: Stack, name: str) -> bool:
    """Whether a service says SERVING within a second."""
    with grpc.insecure_channel(f"127.0.0.1:{stack.ports.of(name)}") as channel:
        service = f"frugalads.{name}.v1.{name.capitalize()}Service"
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=1
            )
        except grpc.RpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
