"""Every error that crosses a service boundary, and how it becomes a gRPC status.

::

    Exception
    ├── UserError                 a start-up or command-line mistake, said in a sentence
    │   ├── ConfigError           an unknown key or a value out of bounds
    │   └── BundleError           a bundle that is missing, altered or unreadable
    └── ServiceError              ends a call with a canonical code and details (AIP-193)
        ├── InvalidArguments      INVALID_ARGUMENT      + BadRequest
        │   └── InvalidArgument   the one-field case
        ├── FailedPrecondition    FAILED_PRECONDITION   + PreconditionFailure
        ├── NotFound              NOT_FOUND
        ├── Retryable
        │   ├── ResourceExhausted RESOURCE_EXHAUSTED    + RetryInfo
        │   └── Unavailable       UNAVAILABLE           + RetryInfo where the delay is known
        ├── DeadlineExceeded      DEADLINE_EXCEEDED
        ├── Unimplemented         UNIMPLEMENTED
        └── Internal              INTERNAL

A handler raises one of these; `services.runtime.server` turns it into a status. An exception that is
none of these is a fault of ours: it is logged with its trace and the caller sees INTERNAL without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from frugalads.errors.v1 import errors_pb2

DOMAIN = "frugalads"
DETAILS_TRAILER = "grpc-status-details-bin"
_SHOWN_CHARS = 80


class UserError(Exception):
    """A mistake in a command or at start-up that its user can mend; the text is all they need."""


class ConfigError(UserError):
    """An unknown configuration key, or a value out of bounds."""


class BundleError(UserError):
    """A bundle that is missing, altered, of another kind, or unreadable."""


def shown(value: object) -> str:
    """A value as an error shows it: its repr, cut to 80 characters."""
    if isinstance(value, (str, bytes)):
        value = value[: _SHOWN_CHARS + 1]  # a request may hold megabytes, and their repr takes ten times that
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


class ServiceError(Exception):
    """Ends a call with a canonical code, a reason and details.

    `reason` is UPPER_SNAKE_CASE, at most 63 characters; `metadata` holds every variable part of the message.
    """

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL

    def __init__(self, reason: str, message: str, **metadata: object) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata = {name: str(value) for name, value in metadata.items()}

    def _extra_details(self) -> list[tuple[str, Message]]:
        return []

    def to_status(self) -> errors_pb2.Status:
        """The status with its details, as AIP-193 asks: ErrorInfo always, the others where they apply."""
        info = errors_pb2.ErrorInfo(reason=self.reason, domain=DOMAIN, metadata=self.metadata)
        details = [("ErrorInfo", info), *self._extra_details()]
        packed = [
            Any(type_url=f"type.googleapis.com/google.rpc.{name}", value=message.SerializeToString())
            for name, message in details
        ]
        return errors_pb2.Status(code=self.code.value[0], message=self.message, details=packed)


class InvalidArguments(ServiceError):
    """Request fields out of their limits: (field, value, limit) each."""

    code = grpc.StatusCode.INVALID_ARGUMENT

    def __init__(self, violations: Sequence[tuple[str, object, str]]) -> None:
        self.violations = [
            (field, f"must be {limit}, got {shown(value)}") for field, value, limit in violations
        ]
        super().__init__(
            "INVALID_FIELD",
            "; ".join(f"{field}: {description}" for field, description in self.violations),
            field=self.violations[0][0],
            value=shown(violations[0][1]),
            limit=violations[0][2],
        )

    def _extra_details(self) -> list[tuple[str, Message]]:
        fields = [
            errors_pb2.BadRequest.FieldViolation(field=field, description=description)
            for field, description in self.violations
        ]
        return [("BadRequest", errors_pb2.BadRequest(field_violations=fields))]


class InvalidArgument(InvalidArguments):
    """One request field out of its limit.

    `limit` completes the sentence "must be ...": "in 1..200", "a finite number", "one of a, b".
    """

    def __init__(self, field: str, value: object, limit: str) -> None:
        super().__init__([(field, value, limit)])


class FailedPrecondition(ServiceError):
    """The server is in a state that forbids the call; `remedy` says how to change that."""

    code = grpc.StatusCode.FAILED_PRECONDITION

    def __init__(
        self, reason: str, message: str, *, subject: str = "", remedy: str = "", **metadata: object
    ) -> None:
        super().__init__(reason, message, **metadata)
        self.subject = subject
        self.remedy = remedy

    def _extra_details(self) -> list[tuple[str, Message]]:
        violation = errors_pb2.PreconditionFailure.Violation(
            type=self.reason, subject=self.subject, description=self.remedy or self.message
        )
        return [("PreconditionFailure", errors_pb2.PreconditionFailure(violations=[violation]))]


class NotFound(ServiceError):
    """Something the request names does not exist."""

    code = grpc.StatusCode.NOT_FOUND


class Retryable(ServiceError):
    """A refusal that may pass; tells when to try again where that is known."""

    def __init__(
        self, reason: str, message: str, retry_after_ms: int | None = None, **metadata: object
    ) -> None:
        super().__init__(reason, message, **metadata)
        self.retry_after_ms = retry_after_ms

    def _extra_details(self) -> list[tuple[str, Message]]:
        if self.retry_after_ms is None:
            return []
        delay = Duration()
        delay.FromMilliseconds(self.retry_after_ms)
        return [("RetryInfo", errors_pb2.RetryInfo(retry_delay=delay))]


class ResourceExhausted(Retryable):
    """A bounded queue or budget is full; try again after `retry_after_ms`."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED

    def __init__(self, reason: str, message: str, retry_after_ms: int, **metadata: object) -> None:
        super().__init__(reason, message, retry_after_ms, **metadata)


class Unavailable(Retryable):
    """Something needed for the answer is gone for now."""

    code = grpc.StatusCode.UNAVAILABLE


class DeadlineExceeded(ServiceError):
    """The caller's deadline passed before `stage` could start."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED

    def __init__(self, stage: str) -> None:
        super().__init__("DEADLINE_EXCEEDED", f"the deadline passed before {stage}", stage=stage)


class Unimplemented(ServiceError):
    """The method exists but this server cannot do what is asked."""

    code = grpc.StatusCode.UNIMPLEMENTED


class Internal(ServiceError):
    """A fault of ours."""

    code = grpc.StatusCode.INTERNAL


def from_rpc_error(error: grpc.aio.AioRpcError, dependency: str) -> ServiceError:
    """The error of a called service as an error of ours.

    Overload keeps its code and delay, a passed deadline stays one; everything else means that `dependency`
    gave no answer, which is UNAVAILABLE to our caller. The cause travels in the metadata, not its details.
    """
    code = error.code()
    cause: dict[str, object] = {
        "dependency": dependency,
        "cause": code.name,
        "detail": (error.details() or "")[:200],
    }
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return ResourceExhausted("DEPENDENCY_OVERLOADED", f"{dependency} is overloaded", 100, **cause)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(f"{dependency} answered")
    return Unavailable("DEPENDENCY_UNAVAILABLE", f"{dependency} gave no answer: {code.name}", None, **cause)
