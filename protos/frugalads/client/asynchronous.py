"""The asyncio client of the scoring service."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self

import grpc

from frugalads.client.channels import Endpoint
from frugalads.client.options import Options
from frugalads.scoring.v1 import scoring_pb2
from frugalads.scoring.v1.scoring_pb2_grpc import ScoringServiceStub

if TYPE_CHECKING:
    from frugalads.scoring.v1.scoring_pb2_grpc import ScoringServiceAsyncStub


class AsyncClient:
    """`Client` for asyncio: the same methods, messages and errors, awaited. One serves all tasks of a loop.

        async with AsyncClient("127.0.0.1:7400") as client:
            answers = await asyncio.gather(*(client.rank_ads(query) for query in queries))

    It connects on the first call, and belongs to the event loop of that call; from another loop it raises
    RuntimeError. Cancelling a task that waits for a call cancels the call on the server too. To limit time
    prefer `timeout_s`: grpcio, at least up to 1.85, leaks a few KB with every cancelled asyncio call
    (https://github.com/grpc/grpc/issues/43360).
    """

    def __init__(self, target: str, options: Options | None = None) -> None:
        """As `Client`; needs no running event loop."""
        self._endpoint = Endpoint(target, options)
        self._channel: grpc.aio.Channel | None = None
        self._stub: ScoringServiceAsyncStub | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def rank_ads(
        self,
        query: str,
        *,
        user: scoring_pb2.User | None = None,
        slots: int = 4,
        timeout_s: float | None = None,
    ) -> scoring_pb2.RankAdsResponse:
        """See `Client.rank_ads`."""
        request = scoring_pb2.RankAdsRequest(query=query, user=user, slots=slots)
        return await self._scoring().RankAds(request, timeout=timeout_s)

    async def record_clicks(
        self, clicks: Iterable[scoring_pb2.Click], *, timeout_s: float | None = None
    ) -> scoring_pb2.RecordClicksResponse:
        """See `Client.record_clicks`."""
        request = scoring_pb2.RecordClicksRequest(clicks=clicks)
        return await self._scoring().RecordClicks(request, timeout=timeout_s)

    async def update_ads(
        self,
        *,
        ads: Iterable[scoring_pb2.Ad] = (),
        changes: Iterable[scoring_pb2.AdChange] = (),
        delete_ad_ids: Iterable[int] = (),
        advertisers: Iterable[scoring_pb2.Advertiser] = (),
        timeout_s: float | None = None,
    ) -> scoring_pb2.UpdateAdsResponse:
        """See `Client.update_ads`."""
        request = scoring_pb2.UpdateAdsRequest(
            ads=ads, changes=changes, delete_ad_ids=delete_ad_ids, advertisers=advertisers
        )
        return await self._scoring().UpdateAds(request, timeout=timeout_s)

    async def info(self, *, timeout_s: float | None = None) -> scoring_pb2.GetInfoResponse:
        """See `Client.info`."""
        return await self._scoring().GetInfo(scoring_pb2.GetInfoRequest(), timeout=timeout_s)

    async def close(self) -> None:
        """Ends running calls and the connection. May be called again."""
        self._closed = True
        if self._channel is not None:
            await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _scoring(self) -> ScoringServiceAsyncStub:
        if self._closed:
            raise RuntimeError("the client is closed")
        loop = asyncio.get_running_loop()
        if self._stub is None:
            self._loop = loop
            self._channel = self._endpoint.open_async()
            self._stub = ScoringServiceStub(self._channel)
        elif loop is not self._loop:
            raise RuntimeError("the client belongs to another event loop: make one a loop")
        return self._stub
