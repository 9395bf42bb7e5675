"""What searches tell the metrics: how far each went and why it stopped, and where its time went."""

from __future__ import annotations

from services.retrieval.search import Answers
from services.runtime.metrics import Metrics

_LISTS_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16_384)


class SearchMetrics:
    """Counts searches, one a row of a batch. Event-loop only."""

    def __init__(self, metrics: Metrics) -> None:
        searches = metrics.counter("searches_total", "Vectors searched.", ("stop_reason",))
        self._exhausted, self._budget = searches.labels("exhausted"), searches.labels("budget")
        self._lists = metrics.histogram(
            "search_lists", "Inverted lists that a search visited.", buckets=_LISTS_BUCKETS
        )
        self._codes = metrics.counter("codes_scanned_total", "Ads compared with a query.")
        self._widened = metrics.counter(
            "widened_searches_total", "Searches that visited more lists than planned, to find k ads."
        )
        self._truncated = metrics.counter(
            "truncated_searches_total", "Searches that found fewer ads than asked for."
        )
        phases = metrics.histogram("search_phase_seconds", "Time of the parts of a search.", ("phase",))
        self._queue, self._filter, self._scan = map(phases.labels, ("queue", "filter", "scan"))

    def searched(self, answers: Answers, queue_us: int) -> None:
        """A request was searched, `queue_us` after it was handed to the threads."""
        self._queue.observe(queue_us / 1e6)
        self._filter.observe(answers.filter_us / 1e6)
        self._scan.observe(answers.scan_us / 1e6)
        for row in answers.rows:
            (self._exhausted if row.exhausted else self._budget).inc()
            self._lists.observe(row.lists_visited)
            self._codes.inc(row.codes_scanned)
            if row.lists_visited > row.lists_planned:
                self._widened.inc()
            if row.truncated:
                self._truncated.inc()
