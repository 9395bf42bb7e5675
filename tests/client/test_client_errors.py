"""Error details, against the messages of google.rpc themselves."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf.any_pb2 import Any as PackedDetail
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import Fail, ScriptedServer, packed

import frugalads.client
from frugalads.client import (
    Client,
    FailedPreconditionError,
    FrugalAdsError,
    InvalidArgumentError,
    Options,
    ResourceExhaustedError,
    UnavailableError,
)
from frugalads.client.errors import from_call
from frugalads.errors.v1 import errors_pb2
from services.runtime import errors as server_errors

INFO = error_details_pb2.ErrorInfo(
    reason="INVALID_FIELD", domain="frugalads", metadata={"field": "k", "limit": "9"}
)
VIOLATION = error_details_pb2.BadRequest.FieldViolation(field="k", description="0 is outside 1..9")
BROKEN = error_details_pb2.PreconditionFailure.Violation(
    type="RECALL_CEILING", subject="index", description="raise r"
)

PAIRS: list[tuple[Message, type[Message]]] = [
    (INFO, errors_pb2.ErrorInfo),
    (error_details_pb2.BadRequest(field_violations=[VIOLATION, VIOLATION]), errors_pb2.BadRequest),
    (error_details_pb2.RetryInfo(retry_delay=Duration(seconds=3, nanos=250_000_000)), errors_pb2.RetryInfo),
    (error_details_pb2.PreconditionFailure(violations=[BROKEN]), errors_pb2.PreconditionFailure),
    (
        status_pb2.Status(code=3, message="é", details=[PackedDetail(type_url="x", value=b"y")]),
        errors_pb2.Status,
    ),
]


@pytest.mark.parametrize(("standard", "ours"), PAIRS, ids=[ours.DESCRIPTOR.name for _, ours in PAIRS])
def test_details_are_wire_compatible_with_google_rpc_both_ways(
    standard: Message, ours: type[Message]
) -> None:
    decoded = ours.FromString(standard.SerializeToString(deterministic=True))
    assert str(decoded) == str(standard)
    assert type(standard).FromString(decoded.SerializeToString(deterministic=True)) == standard
    assert {(f.name, f.number, f.type) for f in ours.DESCRIPTOR.fields} <= {
        (f.name, f.number, f.type) for f in type(standard).DESCRIPTOR.fields
    }


def raised(server: ScriptedServer, step: Fail) -> FrugalAdsError:
    """What the blocking client makes of a failure."""
    server.script.append(step)
    with Client(server.target, Options(attempts=1)) as client, pytest.raises(FrugalAdsError) as caught:
        client.info()
    return caught.value


def test_invalid_argument_names_every_field(server: ScriptedServer) -> None:
    detail = error_details_pb2.BadRequest(field_violations=[VIOLATION])
    error = raised(server, Fail(grpc.StatusCode.INVALID_ARGUMENT, "k: 0", details=(INFO, detail)))
    assert isinstance(error, InvalidArgumentError)
    assert [(violation.field, violation.description) for violation in error.violations] == [
        ("k", "0 is outside 1..9")
    ]
    assert error.reason == "INVALID_FIELD"
    assert error.metadata == {"field": "k", "limit": "9"}


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, ResourceExhaustedError),
        (grpc.StatusCode.UNAVAILABLE, UnavailableError),
    ],
)
def test_errors_of_a_busy_server_say_when_to_return(
    server: ScriptedServer, code: grpc.StatusCode, kind: type[ResourceExhaustedError | UnavailableError]
) -> None:
    detail = error_details_pb2.RetryInfo(retry_delay=Duration(seconds=1, nanos=500_000_000))
    error = raised(server, Fail(code, details=(INFO, detail)))
    assert isinstance(error, kind)
    assert error.retry_after_s == 1.5


def test_failed_precondition_says_what_to_change(server: ScriptedServer) -> None:
    detail = error_details_pb2.PreconditionFailure(violations=[BROKEN])
    error = raised(server, Fail(grpc.StatusCode.FAILED_PRECONDITION, details=(detail, INFO)))
    assert isinstance(error, FailedPreconditionError)
    assert [(v.type, v.subject, v.description) for v in error.violations] == [
        ("RECALL_CEILING", "index", "raise r")
    ]


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code != grpc.StatusCode.OK])
def test_the_kind_follows_the_code(server: ScriptedServer, code: grpc.StatusCode) -> None:
    error = raised(server, Fail(code))
    name = "".join(word.capitalize() for word in code.name.split("_")) + "Error"
    assert type(error) is getattr(frugalads.client, name, FrugalAdsError)
    assert (error.code, error.message, error.reason, error.metadata) == (code, "scripted", "", {})


def test_a_reason_of_another_domain_is_not_taken_for_ours(server: ScriptedServer) -> None:
    foreign = error_details_pb2.ErrorInfo(reason="INVALID_FIELD", domain="proxy.example")
    assert raised(server, Fail(grpc.StatusCode.INVALID_ARGUMENT, details=(foreign,))).reason == ""


class _Call:
    """A failed call with any trailer."""

    def __init__(self, trailer: bytes) -> None:
        self._trailer = trailer

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.INVALID_ARGUMENT

    def details(self) -> str:
        return "text"

    def trailing_metadata(self) -> list[tuple[str, str | bytes]]:
        return [("other", "x"), ("grpc-status-details-bin", self._trailer)]


def test_what_our_servers_raise_arrives_whole() -> None:
    raised_there = server_errors.InvalidArguments(
        [("k", 0, "in 1..9"), ("filter.field", "x", "a known field")]
    )
    error = from_call(_Call(raised_there.to_status().SerializeToString()))
    assert isinstance(error, InvalidArgumentError)
    assert [(v.field, v.description) for v in error.violations] == raised_there.violations
    assert (error.reason, error.metadata) == (raised_there.reason, raised_there.metadata)


@given(st.binary(max_size=200))
def test_no_trailer_hides_the_error(noise: bytes) -> None:
    step = Fail(grpc.StatusCode.INVALID_ARGUMENT, details=(INFO, error_details_pb2.BadRequest()))
    ((_, trailer),) = packed(step)
    for damaged in (noise, trailer[: len(noise)], trailer + noise, trailer.replace(b"\n", noise[:1])):
        error = from_call(_Call(damaged))
        assert isinstance(error, InvalidArgumentError)
        assert str(error) == "INVALID_ARGUMENT: text"


@given(st.text(max_size=40), st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=4))
def test_reason_and_metadata_survive_the_trailer(reason: str, metadata: dict[str, str]) -> None:
    info = error_details_pb2.ErrorInfo(reason=reason, domain="frugalads", metadata=metadata)
    ((_, trailer),) = packed(Fail(grpc.StatusCode.INVALID_ARGUMENT, details=(info,)))
    error = from_call(_Call(trailer))
    assert (error.reason, error.metadata) == (reason, metadata)
