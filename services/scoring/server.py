"""The gRPC layer of the scoring service, and what wires its parts together."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import grpc
from redis.asyncio import Redis

from frugalads.scoring.v1 import scoring_pb2, scoring_pb2_grpc
from services.core.auction import Placement
from services.core.personalisation import is_personal, personal, phrase_of
from services.core.query import fingerprint
from services.runtime.channels import open_channel
from services.runtime.deadlines import Deadline
from services.runtime.errors import ConfigError
from services.runtime.health import Dependency
from services.runtime.redis_client import connect
from services.runtime.server import Runtime
from services.runtime.tls import peer_tls
from services.runtime.tracing import request_id
from services.scoring import click_token, probes, validation
from services.scoring.asked import Asked
from services.scoring.cache import RedisCache
from services.scoring.config import ScoringConfig, check
from services.scoring.control_group import ControlGroup
from services.scoring.observer import AnswerMetrics
from services.scoring.policies import refresh_policy, warm_up
from services.scoring.ranker import HIT, REFRESHED, Found, Ranker
from services.scoring.refresher import Refresher
from services.scoring.replica import Replica, to_micros
from services.scoring.reporter import Reporter
from services.scoring.state import State
from services.scoring.succession import Succession
from services.scoring.tasks import end
from services.scoring.upstream import Cascade, CascadeOptions

_CHARGED = scoring_pb2.CLICK_OUTCOME_CHARGED
_DUPLICATE = scoring_pb2.CLICK_OUTCOME_DUPLICATE
_STALE_ADS = scoring_pb2.DEGRADED_REASON_STALE_ADS
_RETRIEVAL = scoring_pb2.DEGRADED_REASON_RETRIEVAL
_REFRESH_MODEL = scoring_pb2.DEGRADED_REASON_REFRESH_MODEL
_DECIDED = frozenset({HIT, REFRESHED})
_MICROS = 1_000_000
_STATE_CONNECTIONS = 16

Context = grpc.aio.ServicerContext[Any, Any]


class ScoringService(scoring_pb2_grpc.ScoringServiceServicer):
    """Serves frugalads.scoring.v1.ScoringService."""

    name = "scoring"

    def __init__(self, config: ScoringConfig, runtime: Runtime[ScoringConfig]) -> None:
        check(config)
        self._config = config
        self._secret = config.click_secret.encode()
        self._reserve_micros = to_micros(config.reserve_usd)
        tls, size = peer_tls(config), config.max_message_bytes
        self._inference = open_channel(config.inference_target, tls, size)
        self._retrieval = open_channel(config.retrieval_target, tls, size)
        self._eviction = open_channel(config.eviction_target, tls, size) if config.eviction_target else None
        # As many connections as calls: a caller never waits for a connection, only for the cache.
        client = _connect("cache_url", config.cache_url, None, config.max_concurrent)
        self._cache = RedisCache(
            client, config.key_prefix, runtime.metrics, timeout_ms=config.cache_timeout_ms
        )
        client = _connect("state_url", config.state_url, config.state_timeout_ms, _STATE_CONNECTIONS)
        self._state = State(client, max_writes=max(1, config.max_concurrent // 2))
        self._control = ControlGroup(
            Path(config.control_log) if config.control_log else None,
            config.control_share,
            config.control_per_s,
            config.control_log_bytes,
            runtime.metrics,
            runtime.log,
        )
        self._replica = Replica(self._state, runtime.metrics, runtime.log, on_click=self._control.clicked)
        self._reporter = Reporter(self._eviction, runtime.metrics, runtime.log)
        self._refresher = Refresher(
            refresh_policy(config, self._earns),
            Path(config.refresh_model) if config.refresh_model else None,
            config.refresh_cost_ratio,
            runtime.metrics,
            runtime.log,
        )
        warm_up(refresh_policy(config, self._earns))
        self._health = runtime.health
        # Answers go on from the replica without the state, and without the cache; see the module `ranker`.
        cache, state = self._health.dependency("cache", False), self._health.dependency("state", False)
        retrieval = self._health.dependency("retrieval", True)
        inference = self._health.dependency("inference", True)
        self._probes: list[tuple[Dependency, probes.Probe]] = [
            (cache, self._cache.ping),
            (state, self._state.ping),
            (retrieval, probes.health_probe(self._retrieval, "frugalads.retrieval.v1.RetrievalService")),
            (inference, probes.health_probe(self._inference, "frugalads.inference.v1.InferenceService")),
        ]
        if self._eviction is not None:
            probe = probes.health_probe(self._eviction, "frugalads.eviction.v1.EvictionService")
            self._probes.append((self._health.dependency("eviction", False), probe))
        options = CascadeOptions(config.candidates, config.recall_target, config.min_similarity)
        self._succession = Succession(config.outdated_refreshes_per_s)
        self._ranker = Ranker(
            self._cache,
            Cascade(self._inference, self._retrieval, (inference, retrieval), options, runtime.metrics),
            self._refresher,
            self._reporter,
            self._succession,
            self._control,
            runtime.metrics,
            list_capacity=config.list_capacity,
            compute_timeout_ms=config.compute_timeout_ms,
            max_computations=config.max_concurrent_computations,
        )
        self._watchers: list[asyncio.Task[None]] = []
        self._observer = AnswerMetrics(runtime.metrics)
        self._charged = runtime.metrics.counter(
            "clicks_total", "Clicks recorded.", ("outcome",), ("charged", "duplicate")
        )
        self._updated = runtime.metrics.counter("updates_total", "Changes of live ads and budgets.")
        self._revenue = runtime.metrics.counter("revenue_usd_total", "Revenue charged, US dollars.")

    def register(self, server: Any, admin: Any) -> list[str]:
        """Adds the public service."""
        scoring_pb2_grpc.add_ScoringServiceServicer_to_server(self, server)
        return [scoring_pb2.DESCRIPTOR.services_by_name["ScoringService"].full_name]

    async def start(self) -> None:
        """Loads the live ads; waits for the state Redis as long as it takes."""
        for dependency, probe in self._probes:
            self._watchers.append(asyncio.create_task(probes.watch(dependency, probe)))
        await self._reporter.start()
        await self._replica.start()
        await self._control.start()
        await self._refresher.start()
        # The ads live long. Without this, a full garbage collection would now and then walk all of them while
        # every answer waits: 26 ms for 100,000.
        gc.freeze()

    async def stop(self) -> None:
        """Stops every task and closes every connection."""
        await end(*self._watchers)
        await self._ranker.close()
        await self._reporter.stop()
        await self._replica.stop()
        await self._control.stop()
        await self._refresher.stop()
        await self._cache.close()
        await self._state.close()
        for channel in (self._inference, self._retrieval, self._eviction):
            if channel is not None:
                await channel.close()

    async def RankAds(
        self, request: scoring_pb2.RankAdsRequest, context: Context
    ) -> scoring_pb2.RankAdsResponse:
        """The list, from the cache or computed, then the live auction over it."""
        began = time.perf_counter_ns()
        key_text = validation.key_text(request, self._config.max_query_chars, self._config.max_slots)
        viewer = validation.viewer(request)
        key = fingerprint(key_text)
        if is_personal(self._config.cache_key, self._earns(key)):
            key = personal(key, viewer.location, viewer.gender, viewer.age_band)
        arrived_ms = time.time_ns() // 1_000_000
        asked = Asked(key_text, key, viewer, request.slots, self._reserve_micros, self._replica, arrived_ms)
        found = await self._ranker.find(asked, Deadline.of(context))
        auction_at = time.perf_counter_ns()
        entry = found.entry
        drops: defaultdict[str, int] = defaultdict(int)
        placements = asked.auction(entry, drops)
        now_ms = time.time_ns() // 1_000_000
        answer_id = os.urandom(16)
        head = phrase_of(key)
        versions = entry.versions
        response = scoring_pb2.RankAdsResponse(
            ads=[self._ranked(placement, answer_id, head, now_ms) for placement in placements],
            cache_state=found.state,
            predicted_loss_usd=found.decision.predicted_loss_usd,
            degraded_reasons=self._degraded_reasons(found),
            versions=scoring_pb2.Versions(
                index=versions.index, encoder=versions.encoder, scorer=versions.scorer
            ),
            request_id=request_id(),
            list_age_ms=max(0, now_ms - entry.written_at_ms),
        )
        ended = time.perf_counter_ns()
        timings = response.timings
        timings.cache_us = found.cache_us
        timings.embed_us = found.embed_us
        timings.retrieve_us = found.retrieve_us
        timings.score_us = found.score_us
        timings.auction_us = (ended - auction_at) // 1000
        timings.total_us = (ended - began) // 1000
        self._observer.auctioned(placements, request.slots, drops)
        if found.fresh is not None and self._control.has(key):
            self._control.answered(answer_id, asked, found.fresh, placements, found.decision)
        self._observer.answered(
            found.state, response.degraded_reasons, response.list_age_ms, found.cache_us, timings.auction_us
        )
        return response

    async def RecordClicks(
        self, request: scoring_pb2.RecordClicksRequest, context: Context
    ) -> scoring_pb2.RecordClicksResponse:
        """Charges clicks, all or none; answered after the state Redis has them."""
        now_ms = time.time_ns() // 1_000_000
        clicks = validation.clicks(request, self._config.max_clicks, self._secret, now_ms)
        Deadline.of(context).check("charging")
        charged = await self._state.record_clicks(clicks, now_ms)
        self._replica.nudge()
        for (_, shown), is_new in zip(clicks, charged, strict=True):
            self._charged.labels("charged" if is_new else "duplicate").inc()
            if is_new:
                self._revenue.inc(shown.price_micros / _MICROS)
        return scoring_pb2.RecordClicksResponse(outcomes=[_CHARGED if new else _DUPLICATE for new in charged])

    async def UpdateAds(
        self, request: scoring_pb2.UpdateAdsRequest, context: Context
    ) -> scoring_pb2.UpdateAdsResponse:
        """Applies changes, all or none; answered after the state Redis has them."""
        updates = validation.updates(request, self._config.max_updates)
        Deadline.of(context).check("updating")
        await self._state.update(updates)
        self._updated.inc(len(updates))
        self._replica.nudge()
        return scoring_pb2.UpdateAdsResponse(applied=len(updates))

    async def GetInfo(
        self, request: scoring_pb2.GetInfoRequest, context: Context
    ) -> scoring_pb2.GetInfoResponse:
        """Versions, limits and dependencies."""
        versions = self._succession.newest
        config = self._config
        return scoring_pb2.GetInfoResponse(
            versions=scoring_pb2.Versions(
                index=versions.index, encoder=versions.encoder, scorer=versions.scorer
            ),
            ads=len(self._replica.ads),
            ads_age_ms=self._replica.age_ms,
            refresh_policy=self._refresher.name,
            dependencies={d.name: d.is_up for d in self._health.dependencies.values()},
            limits=scoring_pb2.Limits(
                max_query_chars=config.max_query_chars,
                max_slots=config.max_slots,
                max_clicks=config.max_clicks,
                max_updates=config.max_updates,
                max_message_bytes=config.max_message_bytes,
                max_concurrent=config.max_concurrent,
            ),
            refresh_model=self._refresher.fingerprint,
            refresh_model_fault=self._refresher.fault,
        )

    def _earns(self, key: bytes) -> bool:
        """Whether the query of a cache key has earned."""
        return phrase_of(key) in self._replica.earning

    def _ranked(
        self, placement: Placement, answer_id: bytes, head: bytes, now_ms: int
    ) -> scoring_pb2.RankedAd:
        ad, click_probability, bid_micros, price_micros = placement
        advertiser = ad.account.advertiser
        shown = click_token.Shown(answer_id, ad.ad_id, price_micros, now_ms, head, advertiser)
        return scoring_pb2.RankedAd(
            ad_id=ad.ad_id,
            title=ad.title,
            advertiser=advertiser,
            click_probability=click_probability,
            bid_usd=bid_micros / _MICROS,
            price_usd=price_micros / _MICROS,
            click_token=click_token.issue(self._secret, shown),
        )

    def _degraded_reasons(self, found: Found) -> list[scoring_pb2.DegradedReason.ValueType]:
        reasons = list(found.degraded)
        if self._replica.is_stale:
            reasons.append(_STALE_ADS)
        if found.entry.retrieval_degraded:
            reasons.append(_RETRIEVAL)
        if self._refresher.fault and found.state in _DECIDED:
            reasons.append(_REFRESH_MODEL)
        return reasons


def _connect(key: str, url: str, timeout_ms: int | None, max_connections: int) -> Redis:
    try:
        return connect(url, timeout_ms, max_connections)
    except ValueError as error:
        raise ConfigError(f"scoring: {key}: {error}") from error


def build(config: ScoringConfig, runtime: Runtime[ScoringConfig]) -> ScoringService:
    """The scoring service of one process. Raises ConfigError."""
    return ScoringService(config, runtime)
