"""What a channel of ours adds to each call: a deadline where there is none, and typed errors.

Streams get typed errors only: the one stream we have, the reports to the eviction service, lives as long as
its client.

gRPC cannot use a channel in a forked child: calls would wait for threads that only the parent has. Blocking
channels refuse such calls at once.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any, NamedTuple, NoReturn, cast

import grpc
from google.protobuf.message import Message

from frugalads.client.errors import FailedCall, from_call
from frugalads.client.options import check_timeout_s


class _Details(NamedTuple):
    method: str
    timeout: float | None
    metadata: Any
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None


class Calls(grpc.UnaryUnaryClientInterceptor, grpc.StreamStreamClientInterceptor):
    """The interceptor of blocking channels."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._pid = os.getpid()

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """Sets the deadline; the returned call raises typed errors."""
        self._refuse_forked()
        timeout_s = self._timeout_s if details.timeout is None else check_timeout_s(details.timeout)
        timed = _Details(
            details.method,
            timeout_s,
            details.metadata,
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )
        return _TypedCall(continuation(timed, request), request)

    def intercept_stream_stream(self, continuation: Callable[..., Any], details: Any, requests: Any) -> Any:
        """The returned iterator raises typed errors."""
        self._refuse_forked()
        return _TypedCall(continuation(details, requests), None)

    def _refuse_forked(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"this channel was opened by process {self._pid}, which forked: open one in the child"
            )


class _TypedCall:
    """A call, future or response iterator of gRPC that raises typed errors and is otherwise itself."""

    def __init__(self, call: Any, request: Message | None) -> None:
        self._call = call
        self._request = request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def result(self, timeout: float | None = None) -> Any:
        """The response; waits at most `timeout` seconds."""
        try:
            return self._call.result(timeout)
        except grpc.RpcError as error:
            _raise(error, self._request)

    def exception(self, timeout: float | None = None) -> Exception | None:
        """What `result` would raise; None for a response."""
        error = self._call.exception(timeout)
        return (
            from_call(cast(FailedCall, error), self._request) if isinstance(error, grpc.RpcError) else error
        )

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._call)
        except grpc.RpcError as error:
            _raise(error, None)


class AsyncCalls(grpc.aio.UnaryUnaryClientInterceptor):
    """The interceptor of asyncio channels for calls with one response."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    async def intercept_unary_unary(
        self, continuation: Callable[..., Any], details: Any, request: Any
    ) -> Any:
        """Sets the deadline; the returned call raises typed errors. Cancelling its awaiter cancels it."""
        timeout_s = self._timeout_s if details.timeout is None else check_timeout_s(details.timeout)
        return _TypedAsyncCall(await continuation(details._replace(timeout=timeout_s), request), request)


class _TypedAsyncCall(grpc.aio.UnaryUnaryCall[Any, Any]):
    """A call of gRPC that raises typed errors and is otherwise itself.

    The interceptor could await the call and raise, but then grpcio 1.74 logs "Exception ignored" for every
    error that is not its own.
    """

    def __init__(self, call: grpc.aio.UnaryUnaryCall[Any, Any], request: Message) -> None:
        self._call = call
        self._request = request

    def __await__(self) -> Generator[None, None, Any]:
        try:
            return (yield from self._call.__await__())
        except grpc.aio.AioRpcError as error:
            _raise(error, self._request)

    def cancelled(self) -> bool:
        return self._call.cancelled()

    def done(self) -> bool:
        return self._call.done()

    def time_remaining(self) -> float | None:
        return self._call.time_remaining()

    def cancel(self) -> bool:
        return self._call.cancel()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._call.add_done_callback(callback)

    async def initial_metadata(self) -> grpc.aio.Metadata:
        return await self._call.initial_metadata()

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return await self._call.trailing_metadata()

    async def code(self) -> grpc.StatusCode:
        return await self._call.code()

    async def details(self) -> str:
        return await self._call.details()

    async def wait_for_connection(self) -> None:
        await self._call.wait_for_connection()


class AsyncStreams(grpc.aio.StreamStreamClientInterceptor):
    """The interceptor of asyncio channels for streams; gRPC takes one object a kind of call."""

    async def intercept_stream_stream(
        self, continuation: Callable[..., Any], details: Any, requests: Any
    ) -> Any:
        """The returned iterator raises typed errors."""
        return _typed_responses(await continuation(details, requests))


async def _typed_responses(call: Any) -> AsyncIterator[Any]:
    try:
        async for response in call:
            yield response
    except grpc.aio.AioRpcError as error:
        _raise(error, None)


def _raise(error: grpc.RpcError, request: Message | None) -> NoReturn:
    raise from_call(cast(FailedCall, error), request) from error
