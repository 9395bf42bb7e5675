"""Sends RankAds on a schedule and keeps every sample.

Open loop: each request is sent at its scheduled time, whatever happened to earlier ones, and its latency
runs from that scheduled time to its answer, so a stall of the server (or of this program) counts against
every request that was due meanwhile. Nothing is left out: failed calls are samples with their code, and a
request that found `max_in_flight` others waiting is kept as unsent. The deadline, too, runs from the
scheduled time.

The randomness of a run (user contexts, clicks) is drawn before it begins, one number a request and position,
so two runs with one seed meet the same users, whatever the server answers.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import numpy as np
from numpy.typing import NDArray

from frugalads.scoring.v1 import scoring_pb2, scoring_pb2_grpc
from loadtest.arrivals import poisson_schedule
from loadtest.files import read_text
from services.runtime.channels import open_channel
from services.runtime.errors import UserError

UNSENT = -1  # in `Samples.code`: never sent, because too many were in flight
_MAX_MESSAGE_BYTES = 4 << 20
_UNKNOWN_SHARE = 0.2
_LOCATIONS = ("US-CA", "US-NY", "US-TX", "US-FL", "US-WA")
_GENDERS = (scoring_pb2.GENDER_FEMALE, scoring_pb2.GENDER_MALE)
_AGE_BANDS = (
    scoring_pb2.AGE_BAND_18_24,
    scoring_pb2.AGE_BAND_25_34,
    scoring_pb2.AGE_BAND_35_49,
    scoring_pb2.AGE_BAND_50_64,
    scoring_pb2.AGE_BAND_65_PLUS,
)
_DEVICES = (scoring_pb2.DEVICE_DESKTOP, scoring_pb2.DEVICE_MOBILE, scoring_pb2.DEVICE_TABLET)


@dataclass(frozen=True)
class Load:
    """What to send."""

    queries: Sequence[str]
    rate_per_s: float
    requests: int
    slots: int = 4
    seed: int = 1
    clicks: bool = False
    timeout_s: float = 5.0
    max_in_flight: int = 1000


@dataclass
class Samples:
    """One row a request, in schedule order. Times are seconds from the start of the run; NaN means never.

    `query` is the first line of the query list that holds the query, `code` a gRPC status code or UNSENT,
    `cache_state` a scoring.v1 CacheState (0 without an answer),
    `compute_us` what embedding, retrieving and scoring took for the answer's list (0 when it was reused),
    `revenue_usd` the answer's expected revenue: the sum of click probability x price over its ads,
    `first_click` the click probability of its first ad. `degraded_reasons` counts answers by reason,
    `example_error` is the message of the first call that failed.
    """

    query: NDArray[np.int32]
    scheduled_s: NDArray[np.float64]
    sent_s: NDArray[np.float64]
    answered_s: NDArray[np.float64]
    code: NDArray[np.int16]
    cache_state: NDArray[np.int8]
    compute_us: NDArray[np.int64]
    revenue_usd: NDArray[np.float64]
    ads: NDArray[np.int16]
    first_click: NDArray[np.float64]
    degraded: NDArray[np.bool_]
    timeout_s: float
    clicks: dict[str, int] = field(default_factory=dict)
    degraded_reasons: Counter[str] = field(default_factory=Counter)
    example_error: str = ""

    def latency_ms(self) -> NDArray[np.float64]:
        """Milliseconds from the scheduled send to the end of the call; NaN for the unsent."""
        return (self.answered_s - self.scheduled_s) * 1e3


def ended(samples: Samples) -> Samples:
    """Of an interrupted run: the requests that had ended, and those due before then that stayed unsent."""
    sent, answered = np.isfinite(samples.sent_s), np.isfinite(samples.answered_s)
    last_s = samples.answered_s[answered].max(initial=-np.inf)
    kept = (samples.scheduled_s <= last_s) & (answered | ~sent)
    arrays = {name: value[kept] for name, value in vars(samples).items() if isinstance(value, np.ndarray)}
    return replace(samples, **arrays)


async def replay(
    target: str,
    load: Load,
    on_progress: Callable[[int, Samples], None] = lambda _ended, _samples: None,
    connect_s: float = 5.0,
) -> Samples:
    """Runs `load` against the scoring service at `target` (loopback only) and returns the samples.

    `on_progress` is called with the number of ended requests and the samples so far. The clock starts once
    the connection stands. Raises UserError when none stands within `connect_s`, for a target that is not
    loopback, an empty list of queries, and values out of bounds.
    """
    require_loopback(target)
    _check(load)
    rng = np.random.default_rng(load.seed)
    schedule_s = poisson_schedule(load.rate_per_s, load.requests, rng)
    run = _Run(load, schedule_s, rng, on_progress)
    async with open_channel(target, None, _MAX_MESSAGE_BYTES) as channel:
        try:
            async with asyncio.timeout(connect_s):
                await channel.channel_ready()
        except TimeoutError as error:
            raise UserError(f"nothing answers at {target} within {connect_s:g} s") from error
        await run.execute(scoring_pb2_grpc.ScoringServiceStub(channel))
    return run.samples


def read_queries(file: Path) -> list[str]:
    """The requests of a file (.gz too), one a line, in order. Raises UserError that says what is wrong."""
    lines = read_text(file).removesuffix("\n").split("\n")
    if lines == [""]:
        raise UserError(f"{file}: no queries")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise UserError(f"{file}: line {number} is empty; each line is a query")
    return lines


def require_loopback(target: str) -> None:
    """Raises UserError unless `target` is host:port on this machine: a load test must not leave it."""
    host, colon, port = target.rpartition(":")
    host = host.strip("[]")
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not colon or not port.isdigit() or not loopback:
        raise UserError(f"--target: {target!r} is not host:port of a loopback address such as 127.0.0.1:7400")


def _check(load: Load) -> None:
    if not load.queries:
        raise UserError("the list of queries is empty")
    for name, value, limit in (
        ("--slots", load.slots, 1000),
        ("--timeout", load.timeout_s, 600),
        ("--max-in-flight", load.max_in_flight, 100_000),
    ):
        if not 0 < value <= limit:
            raise UserError(f"{name}: {value:g} is not in 0 < value <= {limit}")


def first_lines(queries: Sequence[str]) -> NDArray[np.int32]:
    """For each line the first line with the same query, so that repeats in a stream count as one query."""
    first: dict[str, int] = {}
    return np.array([first.setdefault(query, line) for line, query in enumerate(queries)], np.int32)


class _Run:
    def __init__(
        self,
        load: Load,
        schedule_s: NDArray[np.float64],
        rng: np.random.Generator,
        on_progress: Callable[[int, Samples], None],
    ) -> None:
        count = load.requests
        self.load = load
        self.users = _Users(rng, count)
        self.luck = rng.random((count, load.slots)) if load.clicks else None
        self.on_progress = on_progress
        self.samples = Samples(
            query=first_lines(load.queries)[np.arange(count) % len(load.queries)],
            scheduled_s=schedule_s,
            sent_s=np.full(count, np.nan),
            answered_s=np.full(count, np.nan),
            code=np.full(count, UNSENT, np.int16),
            cache_state=np.zeros(count, np.int8),
            compute_us=np.zeros(count, np.int64),
            revenue_usd=np.zeros(count),
            ads=np.zeros(count, np.int16),
            first_click=np.zeros(count),
            degraded=np.zeros(count, np.bool_),
            timeout_s=load.timeout_s,
            clicks={"drawn": 0, "charged": 0, "duplicate": 0, "failed": 0} if load.clicks else {},
        )
        self.run_id = uuid.uuid4().hex[:12]
        self.started_s = 0.0
        self.ended = 0

    def now_s(self) -> float:
        return time.monotonic() - self.started_s

    async def execute(self, stub: scoring_pb2_grpc.ScoringServiceAsyncStub) -> None:
        """Sends all requests; on cancellation cancels those in flight."""
        in_flight: set[asyncio.Task[None]] = set()
        self.started_s = time.monotonic()
        try:
            for i, due_s in enumerate(self.samples.scheduled_s.tolist()):
                if (wait_s := due_s - self.now_s()) > 0:
                    await asyncio.sleep(wait_s)
                elif i % 64 == 0:
                    await asyncio.sleep(0)  # behind schedule: let answers in
                if len(in_flight) >= self.load.max_in_flight:
                    self._progress()
                    continue
                task = asyncio.create_task(self._request(stub, i))
                in_flight.add(task)
                task.add_done_callback(in_flight.discard)
            if in_flight:
                await asyncio.gather(*in_flight)
        finally:
            for task in in_flight:
                task.cancel()
            await asyncio.gather(*in_flight, return_exceptions=True)

    async def _request(self, stub: scoring_pb2_grpc.ScoringServiceAsyncStub, i: int) -> None:
        samples, load = self.samples, self.load
        request = scoring_pb2.RankAdsRequest(
            query=load.queries[samples.query[i]], user=self.users[i], slots=load.slots
        )
        samples.sent_s[i] = self.now_s()
        remaining_s = load.timeout_s - (samples.sent_s[i] - samples.scheduled_s[i])
        try:
            answer = await stub.RankAds(request, timeout=max(remaining_s, 0.0))
        except grpc.aio.AioRpcError as error:
            samples.answered_s[i] = self.now_s()
            samples.code[i] = error.code().value[0]
            samples.example_error = samples.example_error or f"{error.code().name}: {error.details()}"
            self._progress()
            return
        samples.answered_s[i] = self.now_s()
        samples.code[i] = grpc.StatusCode.OK.value[0]
        samples.cache_state[i] = answer.cache_state
        timings = answer.timings
        samples.compute_us[i] = timings.embed_us + timings.retrieve_us + timings.score_us
        samples.revenue_usd[i] = sum(ad.click_probability * ad.price_usd for ad in answer.ads)
        samples.ads[i] = len(answer.ads)
        if answer.ads:
            samples.first_click[i] = answer.ads[0].click_probability
        samples.degraded[i] = bool(answer.degraded_reasons)
        samples.degraded_reasons.update(
            scoring_pb2.DegradedReason.Name(reason).removeprefix("DEGRADED_REASON_")
            for reason in answer.degraded_reasons
        )
        self._progress()
        if self.luck is not None:
            await self._click(stub, i, answer)

    async def _click(
        self, stub: scoring_pb2_grpc.ScoringServiceAsyncStub, i: int, answer: scoring_pb2.RankAdsResponse
    ) -> None:
        assert self.luck is not None
        clicks = [
            scoring_pb2.Click(click_id=f"{self.run_id}-{i}-{position}", click_token=ad.click_token)
            for position, (ad, luck) in enumerate(zip(answer.ads, self.luck[i], strict=False))
            if luck < ad.click_probability
        ]
        if not clicks:
            return
        counts = self.samples.clicks
        counts["drawn"] += len(clicks)
        try:
            reply = await stub.RecordClicks(
                scoring_pb2.RecordClicksRequest(clicks=clicks), timeout=self.load.timeout_s
            )
        except grpc.aio.AioRpcError:
            counts["failed"] += len(clicks)
            return
        for outcome in reply.outcomes:
            charged = outcome == scoring_pb2.CLICK_OUTCOME_CHARGED
            counts["charged" if charged else "duplicate"] += 1

    def _progress(self) -> None:
        self.ended += 1
        self.on_progress(self.ended, self.samples)


class _Users:
    """User contexts, drawn beforehand: each part unknown for a fifth of the requests, else evenly spread."""

    def __init__(self, rng: np.random.Generator, count: int) -> None:
        sizes = (len(_LOCATIONS), len(_GENDERS), len(_AGE_BANDS), len(_DEVICES))
        drawn = rng.integers(1, np.array(sizes) + 1, size=(count, len(sizes)), dtype=np.int8)
        drawn[rng.random(drawn.shape) < _UNKNOWN_SHARE] = 0
        self._drawn = drawn

    def __getitem__(self, i: int) -> scoring_pb2.User:
        location, gender, age_band, device = self._drawn[i].tolist()
        return scoring_pb2.User(
            location=("", *_LOCATIONS)[location],
            gender=(scoring_pb2.GENDER_UNSPECIFIED, *_GENDERS)[gender],
            age_band=(scoring_pb2.AGE_BAND_UNSPECIFIED, *_AGE_BANDS)[age_band],
            device=(scoring_pb2.DEVICE_UNSPECIFIED, *_DEVICES)[device],
        )
