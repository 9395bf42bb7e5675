"""What answers tell the metrics: where lists came from, what the auction did with them, where time went."""

from __future__ import annotations

from collections.abc import Sequence

from frugalads.scoring.v1 import scoring_pb2
from services.core.auction import DROPS, Placement
from services.runtime.metrics import Metrics

_AGE_BUCKETS_S = (1, 10, 60, 300, 1800, 7200, 43_200, 86_400, 604_800)
_MICROS = 1_000_000
_HIT = scoring_pb2.CACHE_STATE_HIT


class AnswerMetrics:
    """Counts RankAds answers. Event-loop only."""

    def __init__(self, metrics: Metrics) -> None:
        states, reasons = scoring_pb2.CacheState.items(), scoring_pb2.DegradedReason.items()
        answers = metrics.counter("answers_total", "RankAds answers.", ("cache_state",))
        self._answers = {
            number: answers.labels(name.removeprefix("CACHE_STATE_").lower())
            for name, number in states
            if number
        }
        degraded = metrics.counter(
            "degraded_answers_total", "RankAds answers that lack something.", ("reason",)
        )
        self._degraded = {
            number: degraded.labels(name.removeprefix("DEGRADED_REASON_").lower())
            for name, number in reasons
            if number
        }
        self._age = metrics.histogram(
            "reused_list_age_seconds", "Age of the lists that were reused.", buckets=_AGE_BUCKETS_S
        )
        phases = metrics.histogram(
            "answer_phase_seconds", "Time of the parts of every answer.", ("phase",), ("cache", "auction")
        )
        self._cache, self._auction = phases.labels("cache"), phases.labels("auction")
        slots = metrics.counter("slots_total", "Ad positions asked for.", ("outcome",))
        self._filled, self._empty = slots.labels("filled"), slots.labels("empty")
        self._adless = metrics.counter("adless_answers_total", "RankAds answers without any ad.")
        drops = metrics.counter(
            "auction_drops_total", "Candidates that took no part in an auction.", ("reason",), DROPS
        )
        self._drops = {reason: drops.labels(reason) for reason in DROPS}
        self._expected = metrics.counter(
            "expected_revenue_usd_total", "Click probability x price of the ads shown, US dollars."
        )

    def answered(
        self,
        state: scoring_pb2.CacheState.ValueType,
        reasons: Sequence[scoring_pb2.DegradedReason.ValueType],
        list_age_ms: int,
        cache_us: int,
        auction_us: int,
    ) -> None:
        """A call was answered."""
        self._answers[state].inc()
        for reason in reasons:
            self._degraded[reason].inc()
        if state == _HIT:
            self._age.observe(list_age_ms / 1000)
        self._cache.observe(cache_us / 1e6)
        self._auction.observe(auction_us / 1e6)

    def auctioned(self, placements: Sequence[Placement], slots: int, drops: dict[str, int]) -> None:
        """An auction filled some of `slots` positions; `drops` counts candidates that took no part."""
        self._filled.inc(len(placements))
        self._empty.inc(slots - len(placements))
        if not placements:
            self._adless.inc()
        for reason, count in drops.items():
            self._drops[reason].inc(count)
        self._expected.inc(sum(p.click_probability * p.price_micros for p in placements) / _MICROS)
