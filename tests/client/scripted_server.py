"""A real gRPC server on a socket whose answers are scripted, call by call."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as PackedDetail
from google.protobuf.message import Message
from google.rpc import status_pb2

from frugalads.eviction.v1 import eviction_pb2
from frugalads.eviction.v1.eviction_pb2_grpc import (
    EvictionServiceServicer,
    add_EvictionServiceServicer_to_server,
)
from frugalads.scoring.v1 import scoring_pb2
from frugalads.scoring.v1.scoring_pb2_grpc import ScoringServiceServicer, add_ScoringServiceServicer_to_server


@dataclass(frozen=True)
class Fail:
    """Ends a call with an error."""

    code: grpc.StatusCode
    message: str = "scripted"
    details: tuple[Message, ...] = ()
    trailers: tuple[tuple[str, str | bytes], ...] = ()


@dataclass(frozen=True)
class Hang:
    """Does not answer until the call has ended at the client's side."""


@dataclass(frozen=True)
class Seen:
    """A call that arrived."""

    method: str
    request: Message
    at_s: float
    time_remaining_s: float


@dataclass
class ScriptedServer(ScoringServiceServicer, EvictionServiceServicer):
    """Answers each call by the next step of `script`, and with an ordinary response when that is empty."""

    script: deque[Fail | Hang] = field(default_factory=deque)
    seen: list[Seen] = field(default_factory=list)
    target: str = ""
    arrived: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def RankAds(self, request: scoring_pb2.RankAdsRequest, context: Any) -> scoring_pb2.RankAdsResponse:
        self._play(request, context)
        ads = [scoring_pb2.RankedAd(ad_id=slot, title=request.query) for slot in range(request.slots)]
        return scoring_pb2.RankAdsResponse(ads=ads, cache_state=scoring_pb2.CACHE_STATE_HIT)

    def RecordClicks(
        self, request: scoring_pb2.RecordClicksRequest, context: Any
    ) -> scoring_pb2.RecordClicksResponse:
        self._play(request, context)
        return scoring_pb2.RecordClicksResponse(
            outcomes=[scoring_pb2.CLICK_OUTCOME_CHARGED for _ in request.clicks]
        )

    def UpdateAds(self, request: scoring_pb2.UpdateAdsRequest, context: Any) -> scoring_pb2.UpdateAdsResponse:
        self._play(request, context)
        changes = (request.ads, request.changes, request.delete_ad_ids, request.advertisers)
        return scoring_pb2.UpdateAdsResponse(applied=sum(len(kind) for kind in changes))

    def GetInfo(self, request: scoring_pb2.GetInfoRequest, context: Any) -> scoring_pb2.GetInfoResponse:
        self._play(request, context)
        return scoring_pb2.GetInfoResponse(limits=scoring_pb2.Limits(max_slots=20))

    def Report(
        self, request_iterator: Iterator[eviction_pb2.ReportRequest], context: Any
    ) -> Iterator[eviction_pb2.ReportResponse]:
        for request in request_iterator:
            self._play(request, context)
            yield eviction_pb2.ReportResponse(acknowledged_batch=request.batch)

    def _play(self, request: Message, context: Any) -> None:
        self.seen.append(Seen(type(request).__name__, request, time.monotonic(), context.time_remaining()))
        step = self.script.popleft() if self.script else None
        if isinstance(step, Fail):
            context.set_trailing_metadata((*step.trailers, *packed(step)))
            context.abort(step.code, step.message)
        if isinstance(step, Hang):
            context.add_callback(self.ended.set)
            self.arrived.set()
            self.ended.wait(timeout=30)


def packed(step: Fail) -> tuple[tuple[str, bytes], ...]:
    """The trailer that carries error details, made with the messages of google.rpc."""
    if not step.details:
        return ()
    status = status_pb2.Status(code=step.code.value[0], message=step.message)
    for detail in step.details:
        anything = PackedDetail()
        anything.Pack(detail)
        status.details.append(anything)
    return (("grpc-status-details-bin", status.SerializeToString()),)


@contextlib.contextmanager
def serving(
    credentials: grpc.ServerCredentials | None = None, address: str = "127.0.0.1:0"
) -> Iterator[ScriptedServer]:
    """A scripted server on a free port of loopback, or on `address`."""
    scripted = ScriptedServer()  # type: ignore[abstract]
    with ThreadPoolExecutor(max_workers=8) as threads:
        server = grpc.server(threads, options=[("grpc.so_reuseport", 0)])
        add_ScoringServiceServicer_to_server(scripted, server)
        add_EvictionServiceServicer_to_server(scripted, server)
        host = address.rpartition(":")[0]
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
        scripted.target = f"{host}:{port}"
        server.start()
        try:
            yield scripted
        finally:
            scripted.ended.set()
            server.stop(grace=None).wait()
