"""Prometheus metrics of one server, on a registry of its own.

Names are `frugalads_<service>_<what>_<unit>`: the unit is a base unit (seconds, bytes, usd) or the plural of
what is counted, counters end in `_total`, and a gauge that is 0 or 1 ends in what is then true (ready, up,
open, paused). Every server has the same few for its calls and its readiness; a service adds its own through
`counter`, `gauge` and `histogram`.

Values of a label that are known beforehand are exported as 0 from the start. A fault that has not happened
is then a fact and not a gap, and `rate` sees the first one, which it cannot when a series begins at 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from wsgiref.simple_server import WSGIServer

import prometheus_client
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)

from services.runtime.errors import UserError

LATENCY_BUCKETS_S = (
    0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip

CODES = (
    "OK",
    "CANCELLED",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "INTERNAL",
    "UNAVAILABLE",
)
"""Codes with which the calls of every method may end; others appear when they happen."""

# A second gauge for every counter, with the time of its birth, would double the page and nothing reads it.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The registry of one server."""

    def __init__(self, service: str) -> None:
        self.registry = CollectorRegistry()
        self._prefix = f"frugalads_{service}_"
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.calls = self.counter("calls_total", "Calls ended.", ("method", "code"))
        self.latency = self.histogram("call_seconds", "Time from arrival to answer.", ("method",))
        self.in_flight = self.gauge("in_flight_calls", "Calls served or waiting.")
        self.call_limit = self.gauge("max_in_flight_calls", "Calls above this are refused.")
        self.ready = self.gauge("ready", "1 while the service can answer calls.")
        self._dependencies = self.gauge("dependency_up", "1 while a dependency answers.", ("dependency",))

    def method(self, name: str) -> None:
        """Announces a method, so that its calls count from 0 under every code."""
        for code in CODES:
            self.calls.labels(name, code)

    def dependency(self, name: str, is_up: Callable[[], bool]) -> None:
        """Announces a dependency; `is_up` is asked at each scrape, from another thread."""
        self._dependencies.labels(name).set_function(is_up)

    def counter(
        self, name: str, meaning: str, labels: Sequence[str] = (), known: Sequence[str] = ()
    ) -> Counter:
        """A counter of this service; `known` values of its only label count from 0."""
        counter = Counter(self._prefix + name, meaning, labels, registry=self.registry)
        for value in known:
            counter.labels(value)
        return counter

    def gauge(self, name: str, meaning: str, labels: Sequence[str] = ()) -> Gauge:
        """A gauge of this service."""
        return Gauge(self._prefix + name, meaning, labels, registry=self.registry)

    def histogram(
        self,
        name: str,
        meaning: str,
        labels: Sequence[str] = (),
        known: Sequence[str] = (),
        buckets: Sequence[float] = LATENCY_BUCKETS_S,
    ) -> Histogram:
        """A histogram of this service; buckets are in the unit of its name, `known` as for a counter."""
        name = self._prefix + name
        histogram = Histogram(name, meaning, labels, registry=self.registry, buckets=buckets)
        for value in known:
            histogram.labels(value)
        return histogram


class MetricsEndpoint:
    """The HTTP endpoint that Prometheus scrapes, on a thread of its own."""

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        try:
            self._server: WSGIServer
            self._server, self._thread = start_http_server(port, host, metrics.registry)
        except OSError as error:
            raise UserError(f"metrics port {port} of {host} cannot be opened: {error.strerror}") from error
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stops serving; returns when the port is free."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
