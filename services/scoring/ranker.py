"""Finding the scored list of a query: cache, refresh decision, computation, write.

    cache answers   list found, reuse               HIT
                    list found, refresh due         REFRESHED by the caller that found it due; while that runs
                                                    the others get the cached list as HIT
                    refresh failed, takes long,
                    or is cooling                   HIT with REFRESH_FAILED: the cached list, however old
                    no list                         MISS, one computation shared by all callers
    cache silent    BYPASSED with CACHE_UNAVAILABLE, computations shared as for a miss

A failed computation without a list to fall back to is the caller's error; it names the dependency at fault.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from frugalads.scoring.v1 import scoring_pb2
from services.core.ads_list import AdsList, Versions, merge
from services.core.refresh.policy import RefreshPolicy, similarity
from services.core.single_flight import SHARES, CoolDowns, SingleFlight, TooManyComputations
from services.runtime.deadlines import Deadline
from services.runtime.errors import ResourceExhausted, ServiceError, Unavailable
from services.runtime.metrics import Metrics
from services.scoring.cache import CacheUnavailable, ListCache
from services.scoring.replica import Replica
from services.scoring.reporter import Reporter
from services.scoring.tasks import end
from services.scoring.upstream import Cascade

HIT = scoring_pb2.CACHE_STATE_HIT
MISS = scoring_pb2.CACHE_STATE_MISS
REFRESHED = scoring_pb2.CACHE_STATE_REFRESHED
BYPASSED = scoring_pb2.CACHE_STATE_BYPASSED

_FIRST_COOL_DOWN_S = 1.0
_LONGEST_COOL_DOWN_S = 30.0
_WRITE_S = 0.5  # beyond the cascade's deadline a computation has this long to end and to write its list
_RETRY_AFTER_MS = 100


class Found(NamedTuple):
    """A list and how it came about; phases in microseconds, 0 where they did not run."""

    entry: AdsList
    state: scoring_pb2.CacheState.ValueType
    predicted_loss_usd: float
    degraded: tuple[scoring_pb2.DegradedReason.ValueType, ...]
    cache_us: int
    embed_us: int = 0
    retrieve_us: int = 0
    score_us: int = 0


class _Computed(NamedTuple):
    entry: AdsList
    embed_us: int
    retrieve_us: int
    score_us: int


class Ranker:
    """Finds or computes lists. Event-loop only."""

    def __init__(
        self,
        cache: ListCache,
        cascade: Cascade,
        replica: Replica,
        policy: RefreshPolicy,
        reporter: Reporter,
        metrics: Metrics,
        *,
        list_capacity: int,
        compute_timeout_ms: int,
        max_computations: int,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._cache = cache
        self._cascade = cascade
        self._replica = replica
        self._policy = policy
        self._reporter = reporter
        self._list_capacity = list_capacity
        self._timeout_s = compute_timeout_ms / 1000
        self._max_computations = max_computations
        self._wall_ms = wall_ms
        self._cool_downs = CoolDowns(_FIRST_COOL_DOWN_S, _LONGEST_COOL_DOWN_S)
        self._flights: SingleFlight[_Computed] = SingleFlight(
            self._timeout_s + _WRITE_S,
            max_computations,
            self._cool_downs,
            observe=lambda share: self._callers.labels(share).inc(),
        )
        self._writing: set[asyncio.Task[None]] = set()
        self.newest_versions = Versions()
        self._decisions = metrics.counter(
            "refresh_decisions_total",
            "Hits by what was decided: reuse, refresh; or reuse although a refresh was due, because one is"
            " running or has failed lately (cooling).",
            ("decision",),
            ("reuse", "refresh", "running", "cooling"),
        )
        self._callers = metrics.counter(
            "computation_callers_total",
            "Callers in need of a computed list: who started a computation, joined one, got one just"
            " finished, or was refused.",
            ("share",),
            SHARES,
        )
        self._computed = metrics.counter(
            "computations_total", "Lists computed.", ("outcome",), ("inserted", "refreshed", "failed")
        )
        self._phases = metrics.histogram(
            "computation_phase_seconds",
            "Time of the parts of a computation.",
            ("phase",),
            ("embed", "retrieve", "score"),
        )
        self._writes = metrics.counter(
            "cache_writes_total",
            "Computed lists by what became of them in the cache; overtaken: a newer one was there.",
            ("outcome",),
            ("new", "replaced", "overtaken", "failed"),
        )
        self._cost = metrics.histogram("computation_seconds", "Time that computing a list took.")
        metrics.gauge("running_computations", "Lists being computed.").set_function(
            lambda: len(self._flights)
        )

    async def find(self, key_text: str, fingerprint: bytes, deadline: Deadline) -> Found:
        """The list of a query, cached under a fingerprint.

        Raises ServiceError when there is none and none can be computed.
        """
        began_s = time.monotonic()
        try:
            cached = await self._cache.get(fingerprint)
        except CacheUnavailable:
            cache_us = _since_us(began_s)
            # The list is written beside the answer: this caller would wait for the same silence twice.
            computed = await self._compute_shared(
                key_text, fingerprint, None, began_s, deadline, waits_for_write=False
            )
            degraded = (scoring_pb2.DEGRADED_REASON_CACHE_UNAVAILABLE,)
            return _found(computed, BYPASSED, degraded, cache_us)
        cache_us = _since_us(began_s)
        if cached is None:
            computed = await self._compute_shared(key_text, fingerprint, None, began_s, deadline)
            return _found(computed, MISS, (), cache_us)
        decision = self._policy.on_hit(fingerprint, cached, self._wall_ms())
        loss_usd = decision.predicted_loss_usd
        if not decision.refresh or self._flights.is_running(fingerprint):
            self._decisions.labels("running" if decision.refresh else "reuse").inc()
            self._reporter.hit(self._cache.key(fingerprint))
            return Found(cached, HIT, loss_usd, (), cache_us)
        if self._cool_downs.is_cooling(fingerprint):
            self._decisions.labels("cooling").inc()
        else:
            self._decisions.labels("refresh").inc()
            try:
                # A list is at hand: an upstream that hangs must not cost this caller its answer.
                async with asyncio.timeout(min(self._timeout_s, deadline.remaining_s()) / 2):
                    computed = await self._compute_shared(key_text, fingerprint, cached, began_s, deadline)
            except (ServiceError, TimeoutError):
                pass
            else:
                return _found(computed, REFRESHED, (), cache_us, loss_usd)
        self._reporter.hit(self._cache.key(fingerprint))
        return Found(cached, HIT, loss_usd, (scoring_pb2.DEGRADED_REASON_REFRESH_FAILED,), cache_us)

    async def close(self) -> None:
        """Cancel computations and writes that still run."""
        await self._flights.close()
        await end(*self._writing)

    async def _compute_shared(
        self,
        key_text: str,
        fingerprint: bytes,
        cached: AdsList | None,
        began_s: float,
        deadline: Deadline,
        waits_for_write: bool = True,
    ) -> _Computed:
        deadline.check("computing the list")
        if not self._flights.is_running(fingerprint):
            self._cascade.check_health()
        try:
            return await self._flights.run(
                fingerprint, lambda: self._compute(key_text, fingerprint, cached, waits_for_write), began_s
            )
        except TooManyComputations as error:
            raise ResourceExhausted(
                "TOO_MANY_COMPUTATIONS",
                f"{self._max_computations} lists are being computed",
                _RETRY_AFTER_MS,
                limit=self._max_computations,
            ) from error
        except TimeoutError as error:
            raise Unavailable(
                "COMPUTATION_TIMEOUT", "the list could not be computed in time", _RETRY_AFTER_MS
            ) from error

    async def _compute(
        self, key_text: str, fingerprint: bytes, cached: AdsList | None, waits_for_write: bool
    ) -> _Computed:
        began_s = time.monotonic()
        try:
            scored = await self._cascade.compute(key_text, self._replica.ads, Deadline.after(self._timeout_s))
        except Exception:
            self._computed.labels("failed").inc()
            raise
        cost_us = _since_us(began_s)
        self._computed.labels("refreshed" if cached is not None else "inserted").inc()
        self._cost.observe(cost_us / 1e6)
        phases = {"embed": scored.embed_us, "retrieve": scored.retrieve_us, "score": scored.score_us}
        for phase, phase_us in phases.items():
            self._phases.labels(phase).observe(phase_us / 1e6)
        # A refresh is newer than the list it replaces, whatever the clock of the process that wrote that one:
        # with a clock ahead by an hour its list could otherwise not be replaced for an hour.
        written_at_ms = self._wall_ms() if cached is None else max(self._wall_ms(), cached.written_at_ms + 1)
        fresh = AdsList(
            scored.ad_ids,
            scored.click_probabilities,
            written_at_ms,
            cost_us,
            scored.versions,
            scored.retrieval_degraded,
        )
        entry = merge(cached, fresh, self._list_capacity)
        likeness = None if cached is None else similarity(cached.ad_ids, fresh.ad_ids)
        self.newest_versions = entry.versions
        writing = asyncio.create_task(self._write(fingerprint, entry, likeness))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        if waits_for_write:
            await writing
        return _Computed(entry, scored.embed_us, scored.retrieve_us, scored.score_us)

    async def _write(self, fingerprint: bytes, entry: AdsList, likeness: float | None) -> None:
        """Write a list; `likeness` is its similarity to the one it replaces, None where it replaces none."""
        priority = self._reporter.priority(self._cache.key(fingerprint), entry.cost_us)
        try:
            written = await self._cache.put(fingerprint, entry, priority.expire_at_ms)
        except CacheUnavailable:
            written = None  # the answer does not depend on it
            self._writes.labels("failed").inc()
        else:
            outcome = "overtaken" if written is None else "new" if written.is_new else "replaced"
            self._writes.labels(outcome).inc()
        if written is not None:
            self._policy.on_write(fingerprint, entry, likeness)
            self._reporter.written(written, entry.cost_us, priority)


def _found(
    computed: _Computed,
    state: scoring_pb2.CacheState.ValueType,
    degraded: tuple[scoring_pb2.DegradedReason.ValueType, ...],
    cache_us: int,
    loss_usd: float = 0.0,
) -> Found:
    entry, embed_us, retrieve_us, score_us = computed
    return Found(entry, state, loss_usd, degraded, cache_us, embed_us, retrieve_us, score_us)


def _since_us(began_s: float) -> int:
    return int((time.monotonic() - began_s) * 1e6)
