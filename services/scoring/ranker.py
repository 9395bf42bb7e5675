"""Finding the scored list of a query: cache, refresh decision, computation, write.

    cache answers   list found, reuse               HIT
                    list found, refresh due         REFRESHED by the caller that found it due; while that runs
                                                    the others get the cached list as HIT
                    refresh failed, takes long,
                    or is cooling                   HIT with REFRESH_FAILED: the cached list, however old
                    what computes is down           every HIT with UPSTREAM
                    no list                         MISS, one computation shared by all callers
    cache silent    BYPASSED with CACHE_UNAVAILABLE, computations shared as for a miss

A refresh is due when the policy says so, when a newer model or index serves (at a pace: `succession`), and on
every hit of the control group (`control_group`). A failed computation without a list to fall back to is the
caller's error; it names the dependency at fault.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from frugalads.scoring.v1 import scoring_pb2
from services.core.ads_list import AdsList, merge
from services.core.refresh.policy import REUSE, Decision
from services.core.single_flight import SHARES, CoolDowns, SingleFlight, TooManyComputations
from services.runtime.deadlines import Deadline
from services.runtime.errors import ResourceExhausted, ServiceError, Unavailable
from services.runtime.metrics import Metrics
from services.scoring.asked import Asked
from services.scoring.cache import CacheUnavailable, ListCache
from services.scoring.control_group import ControlGroup
from services.scoring.refresher import Refresher
from services.scoring.reporter import Reporter
from services.scoring.succession import Succession
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
    """A list and how it came about; phases in microseconds, 0 where they did not run.

    fresh: what was computed, before it was merged into `entry`; None on a hit. decision: what the policy made
    of a cached list, REUSE where there was none.
    """

    entry: AdsList
    state: scoring_pb2.CacheState.ValueType
    decision: Decision
    degraded: tuple[scoring_pb2.DegradedReason.ValueType, ...]
    cache_us: int
    embed_us: int = 0
    retrieve_us: int = 0
    score_us: int = 0
    fresh: AdsList | None = None


class _Computed(NamedTuple):
    entry: AdsList
    fresh: AdsList
    embed_us: int
    retrieve_us: int
    score_us: int


class Ranker:
    """Finds or computes lists. Event-loop only."""

    def __init__(
        self,
        cache: ListCache,
        cascade: Cascade,
        refresher: Refresher,
        reporter: Reporter,
        succession: Succession,
        control: ControlGroup,
        metrics: Metrics,
        *,
        list_capacity: int,
        compute_timeout_ms: int,
        max_computations: int,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._cache = cache
        self._cascade = cascade
        self._refresher = refresher
        self._reporter = reporter
        self._succession = succession
        self._control = control
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
        self._decisions = metrics.counter(
            "refresh_decisions_total",
            "Hits by what was decided: reuse; refresh by the policy, to measure a loss (probe), because a"
            " newer model or index serves (outdated), or for the control group; or reuse although a refresh"
            " was due, because one is running or has failed lately (cooling).",
            ("decision",),
            ("reuse", "refresh", "probe", "outdated", "control", "running", "cooling"),
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

    async def find(self, asked: Asked, deadline: Deadline) -> Found:
        """The list of a query. Raises ServiceError when there is none and none can be computed."""
        fingerprint = asked.fingerprint
        began_s = time.monotonic()
        try:
            cached = await self._cache.get(fingerprint)
        except CacheUnavailable:
            cache_us = _since_us(began_s)
            # The list is written beside the answer: this caller would wait for the same silence twice.
            computed = await self._compute_shared(
                asked, None, REUSE, began_s, deadline, waits_for_write=False
            )
            degraded = (scoring_pb2.DEGRADED_REASON_CACHE_UNAVAILABLE,)
            return _found(computed, BYPASSED, degraded, cache_us)
        cache_us = _since_us(began_s)
        if cached is None:
            computed = await self._compute_shared(asked, None, REUSE, began_s, deadline)
            return _found(computed, MISS, (), cache_us)
        decision = self._refresher.on_hit(cached, asked)
        due = self._due(decision, fingerprint, cached)
        if not due or self._flights.is_running(fingerprint):
            self._decisions.labels("running" if due else "reuse").inc()
            return self._hit(fingerprint, cached, decision, (), cache_us)
        if self._cool_downs.is_cooling(fingerprint):
            self._decisions.labels("cooling").inc()
        else:
            self._decisions.labels(due).inc()
            try:
                # A list is at hand: an upstream that hangs must not cost this caller its answer.
                async with asyncio.timeout(min(self._timeout_s, deadline.remaining_s()) / 2):
                    computed = await self._compute_shared(asked, cached, decision, began_s, deadline)
            except (ServiceError, TimeoutError):
                pass
            else:
                return _found(computed, REFRESHED, (), cache_us, decision)
        degraded = (scoring_pb2.DEGRADED_REASON_REFRESH_FAILED,)
        return self._hit(fingerprint, cached, decision, degraded, cache_us)

    def _due(self, decision: Decision, fingerprint: bytes, cached: AdsList) -> str:
        """Why a cached list is to be computed anew; empty when it is not."""
        if decision.refresh:
            return "refresh" if decision.probed_usd is None else "probe"
        if self._control.takes_hit(fingerprint):
            return "control"
        return "outdated" if self._succession.is_due(cached.versions) else ""

    def _hit(
        self,
        fingerprint: bytes,
        cached: AdsList,
        decision: Decision,
        degraded: tuple[scoring_pb2.DegradedReason.ValueType, ...],
        cache_us: int,
    ) -> Found:
        self._reporter.hit(self._cache.key(fingerprint))
        if self._cascade.is_known_down:
            degraded = (*degraded, scoring_pb2.DEGRADED_REASON_UPSTREAM)
        return Found(cached, HIT, decision, degraded, cache_us)

    async def close(self) -> None:
        """Cancel computations and writes that still run."""
        await self._flights.close()
        await end(*self._writing)

    async def _compute_shared(
        self,
        asked: Asked,
        cached: AdsList | None,
        decision: Decision,
        began_s: float,
        deadline: Deadline,
        waits_for_write: bool = True,
    ) -> _Computed:
        fingerprint = asked.fingerprint
        deadline.check("computing the list")
        if not self._flights.is_running(fingerprint):
            self._cascade.check_health()
        try:
            return await self._flights.run(
                fingerprint, lambda: self._compute(asked, cached, decision, waits_for_write), began_s
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
        self, asked: Asked, cached: AdsList | None, decision: Decision, waits_for_write: bool
    ) -> _Computed:
        began_s = time.monotonic()
        try:
            scored = await self._cascade.compute(asked.key_text, asked.ads, Deadline.after(self._timeout_s))
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
        held = None if self._control.has(asked.fingerprint) else cached
        entry = merge(held, fresh, self._list_capacity)
        self._succession.newest = entry.versions
        writing = asyncio.create_task(self._write(asked, entry, fresh, cached, decision))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        if waits_for_write:
            await writing
        return _Computed(entry, fresh, scored.embed_us, scored.retrieve_us, scored.score_us)

    async def _write(
        self, asked: Asked, entry: AdsList, fresh: AdsList, cached: AdsList | None, decision: Decision
    ) -> None:
        """Write the list that a fresh one and the cached one, if any, made."""
        priority = self._reporter.priority(self._cache.key(asked.fingerprint), entry.cost_us)
        try:
            written = await self._cache.put(asked.fingerprint, entry, priority.expire_at_ms)
        except CacheUnavailable:
            written = None  # the answer does not depend on it
            self._writes.labels("failed").inc()
        else:
            outcome = "overtaken" if written is None else "new" if written.is_new else "replaced"
            self._writes.labels(outcome).inc()
        if written is not None:
            self._refresher.on_write(entry, fresh, cached, asked, decision)
            self._reporter.written(written, entry.cost_us, priority)


def _found(
    computed: _Computed,
    state: scoring_pb2.CacheState.ValueType,
    degraded: tuple[scoring_pb2.DegradedReason.ValueType, ...],
    cache_us: int,
    decision: Decision = REUSE,
) -> Found:
    entry, fresh, embed_us, retrieve_us, score_us = computed
    return Found(entry, state, decision, degraded, cache_us, embed_us, retrieve_us, score_us, fresh)


def _since_us(began_s: float) -> int:
    return int((time.monotonic() - began_s) * 1e6)
