"""What searches tell the metrics: how far each went and why it stopped, and where its time went."""

from __future__ import annotations

from services.retrieval.search import BUDGET, DEADLINE, EXHAUSTED, RULE, Answers
from services.runtime.metrics import Metrics

_LISTS_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16_384)
_ROWS_BUCKETS = (1, 2, 4, 8, 16, 32, 64)


class SearchMetrics:
    """Counts searches, one a row of a batch. Event-loop only."""

    def __init__(self, metrics: Metrics) -> None:
        searches = metrics.counter("searches_total", "Vectors searched.", ("stop_reason",))
        self._stopped = {reason: searches.labels(reason) for reason in (EXHAUSTED, BUDGET, RULE, DEADLINE)}
        degraded = metrics.counter("degraded_searches_total", "Searches that lacked something.", ("reason",))
        self._fixed_budget, self._deadline = degraded.labels("fixed_budget"), degraded.labels("deadline")
        self._lists = metrics.histogram(
            "search_lists", "Inverted lists that a search visited.", buckets=_LISTS_BUCKETS
        )
        self._codes = metrics.counter("codes_scanned_total", "Ads compared with a query.")
        self._calls = metrics.counter("stop_model_calls_total", "Evaluations of the stop model.")
        self._widened = metrics.counter(
            "widened_searches_total", "Searches that visited more lists than planned, to find k ads."
        )
        self._truncated = metrics.counter(
            "truncated_searches_total", "Searches that found fewer ads than asked for."
        )
        self._batch = metrics.histogram(
            "search_batch_rows", "Vectors searched together.", buckets=_ROWS_BUCKETS
        )
        phases = metrics.histogram("search_phase_seconds", "Time of the parts of a search.", ("phase",))
        self._queue, self._filter, self._scan = map(phases.labels, ("queue", "filter", "scan"))

    def batched(self, rows: int) -> None:
        """So many vectors were searched together."""
        self._batch.observe(rows)

    def searched(self, answers: Answers, queue_us: int) -> None:
        """A request was searched, `queue_us` after it was handed to the threads."""
        self._queue.observe(queue_us / 1e6)
        self._filter.observe(answers.filter_us / 1e6)
        self._scan.observe(answers.scan_us / 1e6)
        for row in answers.rows:
            self._stopped[row.stopped].inc()
            self._lists.observe(row.lists_visited)
            self._codes.inc(row.codes_scanned)
            self._calls.inc(row.model_calls)
            if row.fixed_budget:
                self._fixed_budget.inc()
            if row.stopped == DEADLINE:
                self._deadline.inc()
            if row.lists_visited > row.lists_planned:
                self._widened.inc()
            if row.truncated:
                self._truncated.inc()
