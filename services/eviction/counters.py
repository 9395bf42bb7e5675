"""Metrics of the sidecar; GetStats reads the same counters."""

from __future__ import annotations

from prometheus_client import Counter

from services.eviction.ledger import Ledger
from services.eviction.store import Memory
from services.runtime.metrics import Metrics

REBUILDS = START, RESTARTED, VANISHED, TAKEN_OVER = (
    "start",
    "redis_restarted",
    "entries_vanished",
    "taken_over",
)
"""Why the order was learnt anew: at start, Redis is another process, more than half of it is gone, or the
lease of another sidecar has ended."""


class Counters:
    """Everything that the sidecar counts."""

    def __init__(self, metrics: Metrics) -> None:
        self.events = metrics.counter("events_total", "Events received.")
        self.dropped = metrics.counter("events_dropped_total", "Writes not taken because the ledger is full.")
        self.evicted = metrics.counter("evicted_total", "Entries evicted by the sidecar.")
        self.skipped = metrics.counter(
            "skipped_total",
            "Victims that were not unlinked: written since, gone, or found without an expiry.",
            ("reason",),
            ("changed", "gone", "immortal"),
        )
        self.backstop = metrics.counter(
            "backstop_evicted_total", "Keys evicted by Redis itself; alert above 1 % of all evictions."
        )
        self.freed_bytes = metrics.counter(
            "freed_bytes_total", "Bytes freed by evictions, as Redis measured."
        )
        self.rises = metrics.counter("rises_total", "Priorities raised in Redis.")
        self.found = metrics.counter("found_total", "Entries found by scanning that no report told of.")
        self.repaired = metrics.counter("repaired_total", "Keys without an expiry that were given one.")
        self.pinned = metrics.counter("pinned_total", "Expiries taken from keys of a pinned class.")
        self.leading = metrics.gauge("leading", "1 while this sidecar holds the lease of its prefix.")
        self.tick = metrics.histogram("tick_seconds", "Time of one enforcement tick.")
        self._rebuilds = metrics.counter(
            "rebuilds_total", "Orders learnt anew by scanning Redis.", ("reason",), REBUILDS
        )
        self._rebuild_seconds = metrics.gauge("rebuild_seconds", "Time of the last rebuild.")
        self._entries = metrics.gauge("entries", "Entries in the order.")
        self._entry_bytes = metrics.gauge("entry_bytes", "Estimated bytes of the entries.")
        self._rising = metrics.gauge("waiting_rises", "Priorities that Redis is to hold higher.")
        self._clock = metrics.gauge("priority_clock_units", "Priority clock L, priority units.")
        self.streams = metrics.gauge("report_streams", "Report streams that are open.")
        self.queued = metrics.gauge("queued_events", "Events received and not yet applied.")
        self.unknown_hits = metrics.counter(
            "unknown_hits_total", "Reported reads of entries that the order does not hold."
        )
        self._used = metrics.gauge("redis_used_bytes", "Redis memory that counts against maxmemory.")
        self._resident = metrics.gauge("redis_resident_bytes", "Resident memory of Redis.")
        self._high = metrics.gauge("high_watermark_bytes", "Above this the sidecar evicts.")
        self._low = metrics.gauge("low_watermark_bytes", "Down to this it evicts.")
        self._max = metrics.gauge("redis_max_bytes", "Redis maxmemory.")
        self._paused = metrics.gauge("paused", "1 while evictions are paused because they free too little.")
        self.last_rebuilt = 0

    def observe(
        self, ledger: Ledger, memory: Memory, used_bytes: int, watermarks: tuple[int, int], paused: bool
    ) -> None:
        """Sets the gauges; watermarks are low and high."""
        self._entries.set(len(ledger))
        self._entry_bytes.set(ledger.order.total_bytes)
        self._clock.set(ledger.order.clock)
        self._rising.set(ledger.waiting_rises)
        self.unknown_hits.inc(ledger.unknown_hits)
        ledger.unknown_hits = 0
        for gauge, bytes_ in zip((self._low, self._high), watermarks, strict=True):
            gauge.set(bytes_)
        self._used.set(used_bytes)
        self._resident.set(memory.resident_bytes)
        self._max.set(memory.max_bytes)
        self._paused.set(paused)

    def rebuilt(self, reason: str, entries: int, duration_s: float) -> None:
        """Notes a rebuild: one of REBUILDS, entries found, seconds taken."""
        self._rebuilds.labels(reason).inc()
        self.last_rebuilt = entries
        self._rebuild_seconds.set(duration_s)


def total(counter: Counter) -> int:
    """The value of a counter, over all its labels."""
    samples = next(iter(counter.collect())).samples
    return int(sum(sample.value for sample in samples if sample.name.endswith("_total")))
