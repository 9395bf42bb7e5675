"""Prometheus metrics of one server, on a registry of its own.

Names are `frugalads_<service>_<what>_<unit>`, counters end in `_total`. Every server has the same three for
its calls; a service adds its own through `counter`, `gauge` and `histogram`.
"""

from __future__ import annotations

from collections.abc import Sequence
from wsgiref.simple_server import WSGIServer

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


class Metrics:
    """The registry of one server."""

    def __init__(self, service: str) -> None:
        self.registry = CollectorRegistry()
        self._prefix = f"frugalads_{service}_"
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.calls = self.counter("calls_total", "Calls ended.", ("method", "code"))
        self.latency = self.histogram("call_seconds", "Time from arrival to answer.", ("method",))
        self.in_flight = self.gauge("calls_in_flight", "Calls served or waiting.")

    def counter(self, name: str, meaning: str, labels: Sequence[str] = ()) -> Counter:
        """A counter of this service."""
        return Counter(self._prefix + name, meaning, labels, registry=self.registry)

    def gauge(self, name: str, meaning: str, labels: Sequence[str] = ()) -> Gauge:
        """A gauge of this service."""
        return Gauge(self._prefix + name, meaning, labels, registry=self.registry)

    def histogram(
        self,
        name: str,
        meaning: str,
        labels: Sequence[str] = (),
        buckets: Sequence[float] = LATENCY_BUCKETS_S,
    ) -> Histogram:
        """A histogram of this service; buckets are in the unit of its name."""
        return Histogram(self._prefix + name, meaning, labels, registry=self.registry, buckets=buckets)


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
