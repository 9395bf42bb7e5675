"""Upstream services on real sockets whose answers and faults a test decides, and a scoring server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from frugalads.errors.v1 import errors_pb2
from frugalads.eviction.v1 import eviction_pb2, eviction_pb2_grpc
from frugalads.inference.v1 import inference_pb2, inference_pb2_grpc
from frugalads.retrieval.v1 import retrieval_pb2, retrieval_pb2_grpc
from frugalads.scoring.v1 import scoring_pb2, scoring_pb2_grpc
from services.runtime.server import RunningServer, start_server
from services.scoring.config import ScoringConfig
from services.scoring.server import build

SECRET = "a secret of the tests"
ENCODER, SCORER, INDEX = "encoder-1", "scorer-1", "index-1"


class Faults:
    """What a stand-in does instead of answering: fail with a code, or wait until released."""

    def __init__(self) -> None:
        self.code: grpc.StatusCode | None = None
        self.open = asyncio.Event()
        self.open.set()
        self.calls: list[Any] = []

    async def meet(self, request: Any, context: Any) -> None:
        self.calls.append(request)
        await self.open.wait()
        if self.code is not None:
            await context.abort(self.code, "told to fail")


class Inference(inference_pb2_grpc.InferenceServiceServicer):
    """Embeds everything alike; an ad's click probability is given by `probability`."""

    def __init__(self) -> None:
        self.embed, self.score = Faults(), Faults()
        self.encoder, self.scorer = ENCODER, SCORER
        self.inputs = [inference_pb2.SCORE_INPUT_SIMILARITIES]
        self.probability: Callable[[int], float] = lambda ad_id: 1 / (1 + ad_id)
        self.infos = 0

    @property
    def versions(self) -> inference_pb2.Versions:
        return inference_pb2.Versions(encoder=self.encoder, scorer=self.scorer)

    async def Embed(self, request: Any, context: Any) -> Any:
        await self.embed.meet(request, context)
        return inference_pb2.EmbedResponse(vectors=[0.6, 0.8], dimension=2, versions=self.versions)

    async def Score(self, request: Any, context: Any) -> Any:
        await self.score.meet(request, context)
        probabilities = [self.probability(ad_id) for ad_id in request.ad_ids]
        return inference_pb2.ScoreResponse(click_probabilities=probabilities, versions=self.versions)

    async def GetInfo(self, request: Any, context: Any) -> Any:
        self.infos += 1
        return inference_pb2.GetInfoResponse(
            versions=self.versions,
            score_inputs=self.inputs,
            limits=inference_pb2.Limits(max_text_chars=200, max_candidates=256),
        )


class Retrieval(retrieval_pb2_grpc.RetrievalServiceServicer):
    """Finds `found` whatever is asked: similarity by ad id, most similar first."""

    def __init__(self) -> None:
        self.search = Faults()
        self.found: dict[int, float] = {1: 0.9, 2: 0.8, 3: 0.7}
        self.degraded: list[Any] = []
        self.encoder, self.index = ENCODER, INDEX

    async def Search(self, request: Any, context: Any) -> Any:
        await self.search.meet(request, context)
        return retrieval_pb2.SearchResponse(
            ad_ids=list(self.found)[: request.k],
            similarities=list(self.found.values())[: request.k],
            degraded_reasons=self.degraded,
            versions=retrieval_pb2.Versions(index=self.index),
        )

    async def GetInfo(self, request: Any, context: Any) -> Any:
        return retrieval_pb2.GetInfoResponse(
            versions=retrieval_pb2.Versions(index=self.index),
            encoder=self.encoder,
            limits=retrieval_pb2.Limits(max_k=1000),
        )


class Eviction(eviction_pb2_grpc.EvictionServiceServicer):
    """Keeps what is reported and tells `clock`."""

    def __init__(self) -> None:
        self.clock = 0
        self.rule: eviction_pb2.PriorityRule | None = None
        self.hints: dict[bytes, int] = {}
        self.max_events_per_s = 0
        self.batches: list[Any] = []
        self.streams = 0

    @property
    def events(self) -> list[Any]:
        return [event for batch in self.batches for event in batch.events]

    async def Report(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        self.streams += 1
        async for request in requests:
            self.batches.append(request)
            yield eviction_pb2.ReportResponse(
                acknowledged_batch=request.batch,
                clock=self.clock,
                max_events_per_s=self.max_events_per_s,
                rule=self.rule,
                frequency_hints=[
                    eviction_pb2.FrequencyHint(key=key, frequency=uses) for key, uses in self.hints.items()
                ],
            )


class Upstreams:
    """Retrieval, inference and eviction, each on a port of its own."""

    def __init__(self) -> None:
        self.inference = Inference()
        self.retrieval = Retrieval()  # type: ignore[abstract]
        self.eviction = Eviction()  # type: ignore[abstract]
        self.ports = {"inference": 0, "retrieval": 0, "eviction": 0}
        self._servers: dict[str, grpc.aio.Server] = {}
        self._health: dict[str, Any] = {}

    async def start(self, name: str) -> None:
        """Start one of them, on the port it had before."""
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        health = health_aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        self._health[name] = health
        await self.set_health(name, serving=True)
        if name == "inference":
            inference_pb2_grpc.add_InferenceServiceServicer_to_server(self.inference, server)
        elif name == "retrieval":
            retrieval_pb2_grpc.add_RetrievalServiceServicer_to_server(self.retrieval, server)
        else:
            eviction_pb2_grpc.add_EvictionServiceServicer_to_server(self.eviction, server)
        self.ports[name] = server.add_insecure_port(f"127.0.0.1:{self.ports[name]}")
        await server.start()
        self._servers[name] = server

    async def set_health(self, name: str, *, serving: bool) -> None:
        """What its health service answers from now on."""
        kinds = health_pb2.HealthCheckResponse
        service = f"frugalads.{name}.v1.{name.capitalize()}Service"
        await self._health[name].set(service, kinds.SERVING if serving else kinds.NOT_SERVING)

    async def stop(self, name: str) -> None:
        await self._servers.pop(name).stop(None)

    async def stop_all(self) -> None:
        for name in list(self._servers):
            await self.stop(name)

    def target(self, name: str) -> str:
        return f"127.0.0.1:{self.ports[name]}"


class World:
    """A scoring server, what it calls, and a client of it."""

    def __init__(self, upstreams: Upstreams, running: RunningServer, channel: grpc.aio.Channel) -> None:
        self.upstreams = upstreams
        self.inference, self.retrieval, self.eviction = (
            upstreams.inference,
            upstreams.retrieval,
            upstreams.eviction,
        )
        self.running = running
        self.channel = channel
        self.stub = scoring_pb2_grpc.ScoringServiceStub(channel)

    async def rank(self, query: str = "laser printer toner", slots: int = 4, **options: Any) -> Any:
        request = scoring_pb2.RankAdsRequest(query=query, slots=slots)
        return await self.stub.RankAds(request, timeout=10, **options)

    async def answers(self, state: Any, query: str = "laser printer toner") -> bool:
        """Whether an answer has this cache state; false also for UNAVAILABLE."""
        try:
            return bool((await self.rank(query)).cache_state == state)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False

    async def add_ads(self, *ads: Any, **changes: Any) -> None:
        """Update live ads and wait until answers see them."""
        before = len(self.replica.ads)
        await self.stub.UpdateAds(scoring_pb2.UpdateAdsRequest(ads=ads, **changes), timeout=10)
        wanted = before + len({ad.ad_id for ad in ads} - set(self.replica.ads))
        await eventually(lambda: len(self.replica.ads) >= wanted)

    @property
    def replica(self) -> Any:
        service: Any = self.running.service
        return service._replica


def ad(ad_id: int, bid_usd: float = 1.0, advertiser: str = "", **fields: Any) -> scoring_pb2.Ad:
    return scoring_pb2.Ad(
        ad_id=ad_id, title=f"Ad {ad_id}", advertiser=advertiser or f"Adv {ad_id}", bid_usd=bid_usd, **fields
    )


async def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Polls a condition, at most `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 what tests wait for happens in code that signals nothing
            await asyncio.sleep(0.01)


async def until(reached: Callable[[], Awaitable[bool]], timeout_s: float = 10.0) -> None:
    """Asks until the answer is yes, at most `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not await reached():  # noqa: ASYNC110 as above
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def world(cache_url: str, state_url: str, ads: int = 3, **options: Any) -> AsyncIterator[World]:
    """A scoring server over real servers and stand-in upstreams, with the ads 1..`ads` live."""
    upstreams = Upstreams()
    for name in upstreams.ports:
        await upstreams.start(name)
    defaults: dict[str, Any] = {
        "cache_url": cache_url,
        "state_url": state_url,
        "click_secret": SECRET,
        "cache_timeout_ms": 500,
        "grace_ms": 200,
        "log_level": "error",
        **{f"{name}_target": upstreams.target(name) for name in upstreams.ports},
    }
    try:
        async with (
            start_server("scoring", ScoringConfig(**(defaults | options)), build) as running,
            grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
        ):
            made = World(upstreams, running, channel)
            await eventually(lambda: running.health.is_ready)
            if ads:
                await made.add_ads(*(ad(i) for i in range(1, ads + 1)))
            yield made
    finally:
        await upstreams.stop_all()


def urls(server: Any) -> tuple[str, str]:
    """Cache and state as two databases of one server."""
    return f"redis://127.0.0.1:{server.port}/0", f"redis://127.0.0.1:{server.port}/1"


def status_of(error: grpc.aio.AioRpcError) -> tuple[grpc.StatusCode, errors_pb2.ErrorInfo, list[str]]:
    """Code, ErrorInfo and the fields at fault of a failed call."""
    trailers = dict(error.trailing_metadata() or ())
    status = errors_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    info, fields = errors_pb2.ErrorInfo(), []
    for detail in status.details:
        if detail.type_url.endswith("ErrorInfo"):
            info = errors_pb2.ErrorInfo.FromString(detail.value)
        if detail.type_url.endswith("BadRequest"):
            fields = [v.field for v in errors_pb2.BadRequest.FromString(detail.value).field_violations]
    return error.code(), info, fields


async def failure(call: Any) -> tuple[grpc.StatusCode, errors_pb2.ErrorInfo, list[str]]:
    """How a call failed."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return status_of(error)
    raise AssertionError("the call succeeded")
