"""What every call passes through: bounded concurrency, error mapping, metrics.

`GuardedServer` stands in for a gRPC server while servicers register and wraps each handler once. That is
cheaper than an interceptor, which would rebuild a handler for every call, and covers the same ground:

* a call above `max_concurrent` is refused at once with RESOURCE_EXHAUSTED and RetryInfo, never queued;
* a call before the service has loaded, or while it stops, is refused with UNAVAILABLE;
* bytes that are no message of the request's type are refused with INVALID_ARGUMENT; gRPC itself would log a
  trace for each, and tell the caller about our insides;
* a ServiceError ends the call with its status and details; any other exception is logged and becomes
  INTERNAL without telling the caller what happened inside;
* cancellation passes through and counts as CANCELLED;
* each call takes over its caller's request id and trace (`tracing`).

Streams are counted and mapped alike but stay outside the concurrency bound: they are few, live long, and
bound their own work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError

from services.runtime.errors import (
    DETAILS_TRAILER,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    Retryable,
    ServiceError,
    Unavailable,
)
from services.runtime.health import Health
from services.runtime.metrics import Metrics
from services.runtime.tracing import Tracing

Context = grpc.aio.ServicerContext[Any, Any]
_RETRY_AFTER_MS = 50
_MALFORMED = object()


class Admission:
    """The shared bound of one process."""

    def __init__(
        self,
        limit: int,
        health: Health,
        metrics: Metrics,
        tracing: Tracing,
        log: structlog.stdlib.BoundLogger,
    ) -> None:
        self.limit = limit
        self.in_flight = 0
        self.arrived = 0
        self._closed = False
        self._health = health
        self._metrics = metrics
        self._tracing = tracing
        self._log = log
        metrics.call_limit.set(limit)
        self._idle = asyncio.Event()
        self._idle.set()

    def close(self) -> None:
        """Refuse every call from now on; those that run go on."""
        self._closed = True

    async def idle(self) -> None:
        """Returns when no unary call is running."""
        await self._idle.wait()

    def unary(self, name: str, behaviour: Callable[[Any, Any], Awaitable[Any]]) -> Any:
        """A unary handler with everything around it."""
        self._metrics.method(name)
        latency = self._metrics.latency.labels(name)
        succeeded = self._metrics.calls.labels(name, "OK")
        gauge = self._metrics.in_flight

        async def call(request: Any, context: Context) -> Any:
            self.arrived += 1
            begun = self._tracing.begin(name, context)
            refusal = self._refusal(request, self.limit)
            if refusal is not None:
                self._tracing.end(begun, refusal.code.name)
                await self._abort(name, context, refusal)
            start = time.perf_counter()
            self.in_flight += 1
            self._idle.clear()
            gauge.inc()
            code = "OK"
            try:
                response = await behaviour(request, context)
            except BaseException as error:
                code, status = self._judged(name, error)
                if status is not None:
                    await self._abort(name, context, status)  # raises, in place of the error
                self._metrics.calls.labels(name, code).inc()
                raise
            else:
                succeeded.inc()
                return response
            finally:
                self.in_flight -= 1
                if not self.in_flight:
                    self._idle.set()
                gauge.dec()
                latency.observe(time.perf_counter() - start)
                self._tracing.end(begun, code)

        return call

    def stream(self, name: str, behaviour: Callable[[Any, Any], AsyncIterator[Any]]) -> Any:
        """A streaming handler with everything around it."""
        self._metrics.method(name)
        succeeded = self._metrics.calls.labels(name, "OK")

        async def call(requests: Any, context: Context) -> AsyncIterator[Any]:
            begun = self._tracing.begin(name, context)
            refusal = self._refusal(None, None)
            if refusal is not None:
                self._tracing.end(begun, refusal.code.name)
                await self._abort(name, context, refusal)
            code = "OK"
            try:
                async for response in behaviour(self._well_formed(requests), context):
                    yield response
            except BaseException as error:
                code, status = self._judged(name, error)
                if status is not None:
                    await self._abort(name, context, status)  # raises, in place of the error
                self._metrics.calls.labels(name, code).inc()
                raise
            else:
                succeeded.inc()
            finally:
                self._tracing.end(begun, code)

        return call

    def _refusal(self, request: Any, limit: int | None) -> ServiceError | None:
        """Why a call may not begin; None when it may."""
        if not self._health.has_started:
            return Unavailable("NOT_READY", "the service is loading", 500)
        if self._closed:
            return Unavailable("STOPPING", "the server is stopping", _RETRY_AFTER_MS)
        if limit is not None and self.in_flight >= limit:
            message = f"{limit} calls are being served"
            return ResourceExhausted("TOO_MANY_CALLS", message, _RETRY_AFTER_MS, limit=limit)
        return _not_a_message() if request is _MALFORMED else None

    async def _well_formed(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in requests:
            if request is _MALFORMED:
                raise _not_a_message()
            yield request

    def _judged(self, name: str, error: BaseException) -> tuple[str, ServiceError | None]:
        """The code by which a failed call ends, and the status to end it with unless it has ended already."""
        if isinstance(error, (asyncio.CancelledError, GeneratorExit)):
            return "CANCELLED", None
        if isinstance(error, grpc.aio.AbortError):
            return "ABORTED_BY_HANDLER", None
        if not isinstance(error, ServiceError):
            self._log.error("handler_failed", method=name, exc_info=error)
            error = Internal("INTERNAL", "an internal error occurred; see the server's log")
        return error.code.name, error

    async def _abort(self, name: str, context: Context, error: ServiceError) -> None:
        self._metrics.calls.labels(name, error.code.name).inc()
        trailer: list[tuple[str, str | bytes]] = [(DETAILS_TRAILER, error.to_status().SerializeToString())]
        if isinstance(error, Retryable) and error.retry_after_ms is not None:
            # gRPC's own retries obey this trailer (gRFC A6), not RetryInfo.
            trailer.append(("grpc-retry-pushback-ms", str(error.retry_after_ms)))
        await context.abort(error.code, error.message, trailing_metadata=tuple(trailer))


def _not_a_message() -> InvalidArgument:
    return InvalidArgument("request", "other bytes", "an encoded message of the method's request type")


def _tolerant(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def parse(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            return _MALFORMED

    return parse


class GuardedServer:
    """Takes the place of a server in `add_XServicer_to_server` and registers wrapped handlers."""

    def __init__(self, server: grpc.aio.Server, admission: Admission) -> None:
        self._server = server
        self._admission = admission

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Ignored: the same handlers arrive by name below."""

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """Wraps and registers the handlers of one proto service."""
        wrapped = {method: self._wrap(method, handler) for method, handler in handlers.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, wrapped),))

    def _wrap(self, method: str, handler: grpc.RpcMethodHandler[Any, Any]) -> Any:
        assert handler.request_deserializer is not None
        codec = (_tolerant(handler.request_deserializer), handler.response_serializer)
        if handler.unary_unary is not None:
            unary: Any = handler.unary_unary
            return grpc.unary_unary_rpc_method_handler(self._admission.unary(method, unary), *codec)
        if handler.stream_stream is not None:
            stream: Any = handler.stream_stream
            return grpc.stream_stream_rpc_method_handler(self._admission.stream(method, stream), *codec)
        raise TypeError(f"{method}: only unary and bidirectional methods are served")
