"""The blocking client of the scoring service."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import grpc

from frugalads.client.channels import Endpoint
from frugalads.client.options import Options
from frugalads.scoring.v1 import scoring_pb2
from frugalads.scoring.v1.scoring_pb2_grpc import ScoringServiceStub


class Client:
    """Asks for ads and reports clicks. One serves all threads of a process.

        with Client("127.0.0.1:7400") as client:
            answer = client.rank_ads("laser printer toner", user=User(device=DEVICE_MOBILE))
            for ad in answer.ads:
                print(ad.title, ad.price_usd)
            client.record_clicks([Click(click_id=str(uuid4()), click_token=answer.ads[0].click_token)])

    It connects on the first call. So a client made before a fork works in the children as long as the parent
    has not called it; if it has, calls of the children raise RuntimeError.

    Every method returns the response message of `frugalads.scoring.v1`. `timeout_s` is the time for all tries
    together, by default that of the options. UNAVAILABLE is retried, which is safe for all four methods.
    A failed call raises FrugalAdsError by kind (tree in `frugalads.client.errors`), a bad `timeout_s` or a
    number that the message cannot hold ValueError, and a closed client RuntimeError.
    """

    def __init__(self, target: str, options: Options | None = None) -> None:
        """Takes an address as `frugalads.client.targets` describes it.

        Raises ValueError or OSError when the address or a TLS file is bad.
        """
        self._endpoint = Endpoint(target, options)
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._stub: ScoringServiceStub | None = None
        self._closed = False

    def rank_ads(
        self,
        query: str,
        *,
        user: scoring_pb2.User | None = None,
        slots: int = 4,
        timeout_s: float | None = None,
    ) -> scoring_pb2.RankAdsResponse:
        """The ads to show for what a user typed: at most `slots`, best position first."""
        request = scoring_pb2.RankAdsRequest(query=query, user=user, slots=slots)
        return self._scoring().RankAds(request, timeout=timeout_s)

    def record_clicks(
        self, clicks: Iterable[scoring_pb2.Click], *, timeout_s: float | None = None
    ) -> scoring_pb2.RecordClicksResponse:
        """Charges clicks, all or none; durable once it returns. A repeated `click_id` is charged once."""
        request = scoring_pb2.RecordClicksRequest(clicks=clicks)
        return self._scoring().RecordClicks(request, timeout=timeout_s)

    def update_ads(
        self,
        *,
        ads: Iterable[scoring_pb2.Ad] = (),
        changes: Iterable[scoring_pb2.AdChange] = (),
        delete_ad_ids: Iterable[int] = (),
        advertisers: Iterable[scoring_pb2.Advertiser] = (),
        timeout_s: float | None = None,
    ) -> scoring_pb2.UpdateAdsResponse:
        """Changes live ads and accounts, all or none; durable once it returns, shown within a second."""
        request = scoring_pb2.UpdateAdsRequest(
            ads=ads, changes=changes, delete_ad_ids=delete_ad_ids, advertisers=advertisers
        )
        return self._scoring().UpdateAds(request, timeout=timeout_s)

    def info(self, *, timeout_s: float | None = None) -> scoring_pb2.GetInfoResponse:
        """Versions, limits, and which dependencies of the server answer."""
        return self._scoring().GetInfo(scoring_pb2.GetInfoRequest(), timeout=timeout_s)

    def close(self) -> None:
        """Ends calls that run in other threads, and the connection. May be called again."""
        with self._lock:
            self._closed = True
            if self._channel is not None:
                self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _scoring(self) -> ScoringServiceStub:
        with self._lock:
            if self._closed:
                raise RuntimeError("the client is closed")
            if self._stub is None:
                self._channel = self._endpoint.open()
                self._stub = ScoringServiceStub(self._channel)
            return self._stub
