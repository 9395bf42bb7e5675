"""The identity of a request across services: its request id, and one OTLP span a call.

Two headers travel with a request. `x-request-id` is the caller's name for it, or one made here; it stands in
every log line of the call and in RankAdsResponse, and goes on with every call that is made for it.
`traceparent` (W3C Trace Context) joins the spans of all services to one trace; spans are recorded only where
`otlp_endpoint` is set, and the tracing libraries are loaded only then.

No answer waits for a span: spans go to a bounded queue that drops when full, and a thread of the exporter
sends them. A collector that is gone or silent costs spans, never a call; a fault inside tracing is counted
in `trace_faults_total` and swallowed, because a request that cannot be traced is still a request.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import grpc

from services.runtime.metrics import Metrics

REQUEST_ID_HEADER = "x-request-id"
TRACE_HEADER = "traceparent"

_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,64}")
_EXPORT_S = 2
_FLUSH_S = 1.0
_request_id: ContextVar[str] = ContextVar("frugalads_request_id", default="")


def request_id() -> str:
    """The id of the request that is being served; empty outside of one."""
    return _request_id.get()


class Tracing:
    """Begins and ends the identity of each call of one server."""

    def __init__(self, service: str, endpoint: str, share: float, metrics: Metrics) -> None:
        self._spans = _Spans(service, endpoint, share) if endpoint else None
        self._faults = metrics.counter("trace_faults_total", "Faults inside tracing, each swallowed.")

    def begin(self, method: str, context: Any) -> Any:
        """Takes over the caller's request id and trace; returns what `end` needs."""
        given = parent = ""
        for key, value in context.invocation_metadata() or ():
            if key == REQUEST_ID_HEADER:
                given = value
            elif key == TRACE_HEADER:
                parent = value
        if not isinstance(given, str) or not _PLAIN.fullmatch(given):
            given = os.urandom(16).hex()
        _request_id.set(given)
        if self._spans is None:
            return None
        try:
            return self._spans.begin(method, parent, given)
        except Exception:
            self._faults.inc()
            return None

    def end(self, begun: Any, code: str) -> None:
        """Ends the span of a call with the name of its status code."""
        if begun is None or self._spans is None:
            return
        try:
            self._spans.end(begun, code)
        except Exception:
            self._faults.inc()

    async def close(self) -> None:
        """Sends what is queued, for a second at most."""
        if self._spans is not None:
            await self._spans.close()


class _Spans:
    """Spans of one server, on a provider of its own. Loads the OpenTelemetry SDK."""

    def __init__(self, service: str, endpoint: str, share: float) -> None:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

        # The exporter logs every failed attempt; a collector that is gone must not flood the service's log.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        exporter = OTLPSpanExporter(endpoint=endpoint, insecure=True, timeout=_EXPORT_S)
        self._provider = TracerProvider(
            resource=Resource({"service.name": f"frugalads-{service}"}),
            sampler=ParentBased(TraceIdRatioBased(share)),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=500))
        self._tracer = self._provider.get_tracer("frugalads")

    def begin(self, method: str, parent: str, given: str) -> Any:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        # An empty context, not the present one: without a header this call begins a trace of its own.
        around = TraceContextTextMapPropagator().extract({TRACE_HEADER: parent}, context.Context())
        span = self._tracer.start_span(
            method,
            context=around,
            kind=trace.SpanKind.SERVER,
            attributes={"rpc.system": "grpc", "rpc.method": method, "frugalads.request_id": given},
        )
        return span, context.attach(trace.set_span_in_context(span, around))

    def end(self, begun: Any, code: str) -> None:
        from opentelemetry import context, trace

        span, token = begun
        span.set_attribute("rpc.grpc.status", code)
        if code not in ("OK", "CANCELLED"):
            span.set_status(trace.StatusCode.ERROR)
        span.end()
        context.detach(token)

    async def close(self) -> None:
        # A thread that the process does not wait for: the exporter may be stuck on a silent collector.
        flush = threading.Thread(target=self._provider.shutdown, daemon=True)
        flush.start()
        for _ in range(50):
            if not flush.is_alive():
                return
            await asyncio.sleep(_FLUSH_S / 50)


class PassIdentity(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc, type-arg, unused-ignore]
    """Gives each call of a channel the request id and the trace of the request it is made for."""

    async def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        """Adds the headers; a call outside of a request goes as it is."""
        given = _request_id.get()
        if given:
            metadata = grpc.aio.Metadata(*(client_call_details.metadata or ()), (REQUEST_ID_HEADER, given))
            parent = _traceparent()
            if parent:
                metadata.add(TRACE_HEADER, parent)
            client_call_details = client_call_details._replace(metadata=metadata)
        return await continuation(client_call_details, request)


def _traceparent() -> str:
    """The header of the present span, empty where none is recorded."""
    import sys

    if "opentelemetry.sdk.trace" not in sys.modules:
        return ""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get(TRACE_HEADER, "")
