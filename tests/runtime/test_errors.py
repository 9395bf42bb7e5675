from __future__ import annotations

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from services.runtime import errors


def decoded(error: errors.ServiceError) -> status_pb2.Status:
    """The status as any google.rpc client reads it."""
    return status_pb2.Status.FromString(error.to_status().SerializeToString())


def detail(status: status_pb2.Status, message: object) -> bool:
    return any(any_.Unpack(message) for any_ in status.details)


def test_bad_fields_carry_field_value_and_limit() -> None:
    status = decoded(errors.InvalidArgument("k", 0, "in 1..200"))
    assert status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert status.message == "k: must be in 1..200, got 0"
    bad, info = error_details_pb2.BadRequest(), error_details_pb2.ErrorInfo()
    assert detail(status, bad)
    assert bad.field_violations[0].field == "k"
    assert detail(status, info)
    assert (info.reason, info.domain) == ("INVALID_FIELD", "frugalads")
    assert dict(info.metadata) == {"field": "k", "value": "0", "limit": "in 1..200"}


def test_overload_says_when_to_come_back() -> None:
    retry = error_details_pb2.RetryInfo()
    assert detail(decoded(errors.ResourceExhausted("FULL", "full", 1500, limit=3)), retry)
    assert (retry.retry_delay.seconds, retry.retry_delay.nanos) == (1, 500_000_000)


def test_a_failed_precondition_says_how_to_mend_it() -> None:
    wrong = error_details_pb2.PreconditionFailure()
    error = errors.FailedPrecondition("RECALL_CEILING", "too high", subject="index x", remedy="rebuild")
    assert detail(decoded(error), wrong)
    violation = wrong.violations[0]
    assert (violation.type, violation.subject, violation.description) == (
        "RECALL_CEILING",
        "index x",
        "rebuild",
    )


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.Unavailable),
        (grpc.StatusCode.INTERNAL, errors.Unavailable),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.ResourceExhausted),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineExceeded),
    ],
)
def test_errors_of_called_services_become_ours(code: grpc.StatusCode, kind: type) -> None:
    metadata = grpc.aio.Metadata()
    error = errors.from_rpc_error(grpc.aio.AioRpcError(code, metadata, metadata, "why"), "retrieval")
    assert type(error) is kind
    assert "retrieval" in error.message


def test_a_long_value_is_cut() -> None:
    assert len(errors.shown("x" * 10_000)) == 80
