"""Metrics of the batcher: how large batches are, why they were released, how long calls waited."""

from __future__ import annotations

import structlog

from services.core.batching import Batch, Release
from services.inference.batcher import Tokens
from services.runtime.metrics import Metrics

_ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class BatchMetrics:
    """The batcher's Observer."""

    def __init__(self, metrics: Metrics, log: structlog.stdlib.BoundLogger) -> None:
        self._log = log
        self._rows = metrics.histogram("batch_rows", "Texts of an encoder run.", buckets=_ROW_BUCKETS)
        self._seconds = metrics.histogram("batch_seconds", "Time of an encoder run.")
        self._tokens = metrics.counter("tokens_total", "Padded tokens encoded.")
        self._releases = metrics.counter(
            "batch_releases_total",
            "Encoder runs by why their batch was closed: rows, tokens, drained.",
            ("reason",),
            [release.value for release in Release],
        )
        self._waited = metrics.histogram("queue_seconds", "Time from queueing to the first run of a call.")
        self._dropped = metrics.counter(
            "dropped_calls_total",
            "Calls that left the queue unanswered (expired, cancelled) or found no room in it (refused).",
            ("reason",),
            ("expired", "cancelled", "refused"),
        )
        self._queued = metrics.gauge("queued_texts", "Texts that wait for the encoder.")
        self._failed = metrics.counter("failed_texts_total", "Texts that could not be encoded.")

    def batch(self, batch: Batch[Tokens], seconds: float) -> None:
        """A batch ran."""
        self._rows.observe(len(batch.rows))
        self._seconds.observe(seconds)
        self._tokens.inc(batch.width * len(batch.rows))
        self._releases.labels(batch.release.value).inc()

    def queued(self, texts: int) -> None:
        """So many texts wait."""
        self._queued.set(texts)

    def waited(self, seconds: float) -> None:
        """A call waited this long for its first row to run."""
        self._waited.observe(seconds)

    def dropped(self, why: str) -> None:
        """A call left the queue unanswered, or was refused."""
        self._dropped.labels(why).inc()

    def failed(self, error: Exception) -> None:
        """A text failed by itself."""
        self._failed.inc()
        self._log.error("text_failed", exc_info=error)
