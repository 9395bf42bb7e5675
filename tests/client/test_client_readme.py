"""The examples of protos/README.md run as they stand, but for addresses and files."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import grpc
import pytest
from certificate_files import Certificates
from google.rpc import error_details_pb2
from scripted_server import Fail, ScriptedServer, serving

README = Path(__file__).parents[2] / "protos" / "README.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def _printed(example: str) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
    return output.getvalue()


def _example(opening: str, target: str) -> str:
    (example,) = [text for text in EXAMPLES if opening in text]
    return re.sub(r'"[\d.:,]+:740\d"', f'"{target}"', example)


@pytest.mark.parametrize(
    ("opening", "printed"),
    [("Click(", "laser printer toner  0.00 USD a click\n" * 4), ("AsyncClient", "[4, 4]\n")],
)
def test_calls(server: ScriptedServer, opening: str, printed: str) -> None:
    assert _printed(_example(opening, server.target)) == printed


@pytest.mark.parametrize(
    ("code", "detail", "printed"),
    [
        (
            grpc.StatusCode.INVALID_ARGUMENT,
            error_details_pb2.BadRequest(
                field_violations=[{"field": "slots", "description": "must be in 1..20"}]
            ),
            "slots must be in 1..20\n",
        ),
        (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            error_details_pb2.RetryInfo(retry_delay={"nanos": 500_000_000}),
            "try again in 0.5 s\n",
        ),
        (
            grpc.StatusCode.FAILED_PRECONDITION,
            error_details_pb2.ErrorInfo(reason="NO_INDEX", domain="frugalads"),
            "StatusCode.FAILED_PRECONDITION NO_INDEX {} scripted\n",
        ),
    ],
)
def test_errors(server: ScriptedServer, code: grpc.StatusCode, detail: object, printed: str) -> None:
    server.script.append(Fail(code, details=(detail,)))  # type: ignore[arg-type]
    assert _printed(_example("InvalidArgumentError", server.target)) == printed


def test_tls(certificates: Certificates) -> None:
    pair = (certificates.server_key.read_bytes(), certificates.server_cert.read_bytes())
    with serving(grpc.ssl_server_credentials([pair], certificates.root.read_bytes(), True)) as server:
        example = _example("Tls(", f"{server.target},{server.target}")
        for written, real in (
            ('"ca.pem"', f'"{certificates.root}"'),
            ('"client.pem"', f'"{certificates.client_cert}"'),
            ('"client.key"', f'"{certificates.client_key}"'),
            ("ads.example", "ads.test"),
        ):
            assert written in example
            example = example.replace(written, real)
        assert _printed(example) == "max_slots: 20\n\n"


def test_other_services(server: ScriptedServer) -> None:
    from frugalads.client import UnimplementedError

    with pytest.raises(UnimplementedError):  # the scripted server has no inference service; it was asked
        _printed(_example("InferenceServiceStub", server.target))


def test_every_example_is_run() -> None:
    assert len(EXAMPLES) == 5
