"""What a failed call raises, typed by its status code.

    FrugalAdsError                  any failed call; raised itself for codes not below
    ├── InvalidArgumentError        INVALID_ARGUMENT     .violations: field, description
    ├── NotFoundError               NOT_FOUND
    ├── FailedPreconditionError     FAILED_PRECONDITION  .violations: type, subject, description
    ├── ResourceExhaustedError      RESOURCE_EXHAUSTED   .retry_after_s
    ├── UnavailableError            UNAVAILABLE          .retry_after_s; raised once the retries are used up
    ├── DeadlineExceededError       DEADLINE_EXCEEDED
    ├── UnimplementedError          UNIMPLEMENTED
    └── InternalError               INTERNAL

Servers describe a failure as AIP-193 asks: a `google.rpc.Status` in the `grpc-status-details-bin` trailer.
It is decoded here through wire-compatible messages of our own (`frugalads/errors/v1`). The trailer comes from
the network, so one that does not parse is ignored: the code and the message are still raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.message import DecodeError, Message

from frugalads.errors.v1 import errors_pb2

DETAILS_KEY = "grpc-status-details-bin"
DOMAIN = "frugalads"

MessageT = TypeVar("MessageT", bound=Message)


class FailedCall(Protocol):
    """What the errors of `grpc` and of `grpc.aio` have in common."""

    def code(self) -> grpc.StatusCode:
        """Status code."""

    def details(self) -> str | None:
        """Text of the status."""

    def trailing_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """Metadata sent with the status."""


class FrugalAdsError(Exception):
    """A call that failed. The error of gRPC is its `__cause__`.

    code: the status code.
    message: one English sentence for developers. Branch on `code` and `reason`, not on this.
    reason: cause in UPPER_SNAKE, such as "INVALID_FIELD"; empty when the error was not made by a Frugal Ads
        server (nobody answered, a proxy refused, the deadline passed on this side).
    metadata: the variable parts of the message, by name.
    request: the request message that failed; None for a stream.
    """

    def __init__(
        self, code: grpc.StatusCode, message: str, details: Iterable[Any] = (), request: Message | None = None
    ) -> None:
        super().__init__(f"{code.name}: {message}" if message else code.name)
        info = _detail(details, errors_pb2.ErrorInfo)
        if info is None or info.domain != DOMAIN:
            info = errors_pb2.ErrorInfo()
        self.code = code
        self.message = message
        self.reason = info.reason
        self.metadata: Mapping[str, str] = dict(info.metadata)
        self.request = request
        self._read(details)

    def _read(self, details: Iterable[Any]) -> None:
        """Takes from the details what this kind of error has beside ErrorInfo."""


class InvalidArgumentError(FrugalAdsError):
    """The request breaks a limit; sent again it fails again. `violations` name every field at fault."""

    violations: tuple[errors_pb2.BadRequest.FieldViolation, ...]

    def _read(self, details: Iterable[Any]) -> None:
        detail = _detail(details, errors_pb2.BadRequest)
        self.violations = tuple(detail.field_violations) if detail else ()


class NotFoundError(FrugalAdsError):
    """What the request names does not exist."""


class FailedPreconditionError(FrugalAdsError):
    """The state of the server forbids the call; `violations` say how to change it."""

    violations: tuple[errors_pb2.PreconditionFailure.Violation, ...]

    def _read(self, details: Iterable[Any]) -> None:
        detail = _detail(details, errors_pb2.PreconditionFailure)
        self.violations = tuple(detail.violations) if detail else ()


class ResourceExhaustedError(FrugalAdsError):
    """The server is full, or a message is too large. Not retried: that would add to the load.

    retry_after_s: seconds to wait before another try; None where trying again does not help.
    """

    retry_after_s: float | None

    def _read(self, details: Iterable[Any]) -> None:
        self.retry_after_s = _retry_after_s(details)


class UnavailableError(FrugalAdsError):
    """No server answered, or something it depends on is gone, in every try.

    retry_after_s: seconds to wait before another try; None where the server did not say.
    """

    retry_after_s: float | None

    def _read(self, details: Iterable[Any]) -> None:
        self.retry_after_s = _retry_after_s(details)


class DeadlineExceededError(FrugalAdsError):
    """The time of the call ran out. The server may still have done the work."""


class UnimplementedError(FrugalAdsError):
    """The server does not have this method or this feature."""


class InternalError(FrugalAdsError):
    """The server failed in a way that it did not foresee."""


_BY_CODE: Mapping[grpc.StatusCode, type[FrugalAdsError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPreconditionError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhaustedError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.UNIMPLEMENTED: UnimplementedError,
    grpc.StatusCode.INTERNAL: InternalError,
}


def from_call(call: FailedCall, request: Message | None = None) -> FrugalAdsError:
    """The typed error of a failed gRPC call, such as a caught `grpc.RpcError` or `grpc.aio.AioRpcError`."""
    kind = _BY_CODE.get(call.code(), FrugalAdsError)
    return kind(call.code(), call.details() or "", _status(call).details, request)


def _status(call: FailedCall) -> errors_pb2.Status:
    for key, value in call.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return errors_pb2.Status.FromString(value)
            except DecodeError:
                break
    return errors_pb2.Status()


def _detail(details: Iterable[Any], kind: type[MessageT]) -> MessageT | None:
    """The first detail that the google.rpc message of the same name could be."""
    name = f"google.rpc.{kind.DESCRIPTOR.name}"
    for packed in details:
        if packed.type_url.rpartition("/")[2] == name:
            try:
                return kind.FromString(packed.value)
            except DecodeError:
                return None
    return None


def _retry_after_s(details: Iterable[Any]) -> float | None:
    detail = _detail(details, errors_pb2.RetryInfo)
    if detail is None or not detail.HasField("retry_delay"):
        return None
    return max(0.0, detail.retry_delay.seconds + detail.retry_delay.nanos / 1e9)
