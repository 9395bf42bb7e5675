"""Targets, TLS, options, and channels for the other services."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from certificate_files import Certificates
from scripted_server import Fail, ScriptedServer, serving

from frugalads.client import AsyncClient, Client, Options, Tls, UnavailableError, connect, connect_async
from frugalads.client.targets import grpc_target
from frugalads.eviction.v1.eviction_pb2 import ReportRequest, ReportResponse
from frugalads.eviction.v1.eviction_pb2_grpc import EvictionServiceStub
from frugalads.scoring.v1.scoring_pb2 import GetInfoRequest
from frugalads.scoring.v1.scoring_pb2_grpc import ScoringServiceStub

UNAVAILABLE = Fail(grpc.StatusCode.UNAVAILABLE)
ONCE = Options(attempts=1, timeout_s=5)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("ads.example:7070", "ads.example:7070"),
        ("127.0.0.1:7070", "127.0.0.1:7070"),
        ("[::1]:7070", "[::1]:7070"),
        ("10.0.0.1:1,10.0.0.2:65535", "ipv4:10.0.0.1:1,10.0.0.2:65535"),
        ("[::1]:1,[::2]:2", "ipv6:[::1]:1,[::2]:2"),
        ("dns:///ads.example:7070", "dns:///ads.example:7070"),
        ("unix:/run/ads.sock", "unix:/run/ads.sock"),
    ],
)
def test_targets(target: str, name: str) -> None:
    assert grpc_target(target) == name


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("", "'' is not HOST:PORT"),
        ("localhost", "'localhost' is not HOST:PORT"),
        ("localhost:", "'localhost:' is not HOST:PORT"),
        (":7070", "':7070' is not HOST:PORT"),
        ("localhost:0", "'localhost:0' is not HOST:PORT"),
        ("localhost:65536", "'localhost:65536' is not HOST:PORT"),
        ("localhost:seven", "'localhost:seven' is not HOST:PORT"),
        ("http://ads.example", "'http://ads.example' is not HOST:PORT"),
        ("http://ads.example:80", "'http://ads.example:80' is not HOST:PORT"),
        ("::1:7070", "IPv6 addresses, and only they, go in brackets"),
        ("[ads.example]:7070", "IPv6 addresses, and only they, go in brackets"),
        ("ads example:7070", "the host is no DNS name or IP address"),
        ("10.0.0.1:1,", "'' is not HOST:PORT"),
        ("10.0.0.1:1, 10.0.0.2:1", "' 10.0.0.2:1' is not HOST:PORT"),
        ("10.0.0.1:1,ads.example:1", "'ads.example:1' is not an IP address"),
        ("10.0.0.1:1,[::1]:1", "mixes IPv4 and IPv6"),
    ],
)
def test_a_bad_target_is_refused_at_once(target: str, complaint: str) -> None:
    for make in (Client, AsyncClient, connect):
        with pytest.raises(ValueError, match=re.escape(complaint)):
            make(target)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("timeout_s", value) for value in (0, -1, float("inf"), float("nan"))),
        *(("attempts", value) for value in (0, 6)),
        *(("max_message_bytes", value) for value in (0, 1 << 31)),
        *(("keepalive_s", value) for value in (19.9, float("inf"), float("nan"))),
    ],
)
def test_an_option_out_of_bounds_is_refused_by_name(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{option}: {value} is outside")):
        dataclasses.replace(Options(), **{option: value})  # type: ignore[arg-type]


def test_calls_take_turns_over_several_addresses_and_pass_a_dead_one() -> None:
    with serving() as first, serving() as second:
        target = f"{first.target},{second.target},127.0.0.1:1"
        with Client(target, Options(timeout_s=5)) as client:
            for _ in range(40):
                client.info()
        assert len(first.seen) + len(second.seen) == 40
        assert min(len(first.seen), len(second.seen)) > 10


def test_a_unix_socket_is_a_target(tmp_path: Path) -> None:
    with serving(address=f"unix:{tmp_path}/ads.sock"), Client(f"unix:{tmp_path}/ads.sock") as client:
        assert client.info().limits.max_slots == 20


def test_the_web_proxy_of_the_environment_is_not_used(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    with Client(server.target, ONCE) as client:
        assert client.info().limits.max_slots == 20


def _server_credentials(files: Certificates, ask_client: bool) -> grpc.ServerCredentials:
    pair = (files.server_key.read_bytes(), files.server_cert.read_bytes())
    return grpc.ssl_server_credentials([pair], files.root.read_bytes() if ask_client else None, ask_client)


def _asks(target: str, tls: Tls | None) -> None:
    """A call by each kind of client; both must fare the same."""

    async def main() -> None:
        async with AsyncClient(target, dataclasses.replace(ONCE, tls=tls)) as client:
            await client.info()

    with Client(target, dataclasses.replace(ONCE, tls=tls)) as client:
        try:
            client.info()
        except UnavailableError:
            with pytest.raises(UnavailableError):
                asyncio.run(main())
            raise
    asyncio.run(main())


def test_tls_admits_the_right_server_only(
    certificates: Certificates, foreign_certificates: Certificates
) -> None:
    trusting = Tls(root_ca=certificates.root, server_name="ads.test")
    with serving(_server_credentials(certificates, ask_client=False)) as server:
        _asks(server.target, trusting)
        for wrong in (
            Tls(root_ca=foreign_certificates.root, server_name="ads.test"),
            Tls(root_ca=certificates.root, server_name="other.test"),
            Tls(root_ca=certificates.root),
            Tls(server_name="ads.test"),
            None,
        ):
            with pytest.raises(UnavailableError):
                _asks(server.target, wrong)
        assert len(server.seen) == 2
    with serving() as plain, pytest.raises(UnavailableError):
        _asks(plain.target, trusting)


def test_mutual_tls_admits_the_right_client_only(
    certificates: Certificates, foreign_certificates: Certificates
) -> None:
    anonymous = Tls(root_ca=certificates.root, server_name="ads.test")
    shown = dataclasses.replace(anonymous, cert=certificates.client_cert, key=certificates.client_key)
    foreign = dataclasses.replace(
        anonymous, cert=foreign_certificates.client_cert, key=foreign_certificates.client_key
    )
    with serving(_server_credentials(certificates, ask_client=True)) as server:
        _asks(server.target, shown)
        for wrong in (anonymous, foreign):
            with pytest.raises(UnavailableError):
                _asks(server.target, wrong)
        assert len(server.seen) == 2


def test_tls_over_several_addresses_checks_the_one_name(certificates: Certificates) -> None:
    tls = Tls(root_ca=certificates.root, server_name="ads.test")
    credentials = _server_credentials(certificates, ask_client=False)
    with serving(credentials) as first, serving(credentials) as second:
        target = f"{first.target},{second.target}"
        _asks(target, tls)
        with pytest.raises(ValueError, match="server_name is needed with several addresses"):
            Client(target, Options(tls=dataclasses.replace(tls, server_name="")))


def test_bad_tls_files_are_named_when_the_client_is_made(certificates: Certificates, tmp_path: Path) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_bytes(b"\xffnot PEM")
    with pytest.raises(ValueError, match="cert and key go together"):
        Tls(cert=certificates.client_cert)
    for tls, complaint in (
        (Tls(root_ca=junk), rf"root_ca: {junk} holds no PEM certificates"),
        (Tls(root_ca=certificates.client_key), "root_ca: .* holds no PEM certificates"),
        (Tls(cert=junk, key=certificates.client_key), rf"cert, key: {junk} and .* do not fit"),
        (Tls(cert=certificates.client_cert, key=certificates.server_key), "do not fit"),
    ):
        with pytest.raises(ValueError, match=complaint):
            Client("127.0.0.1:1", Options(tls=tls))
    with pytest.raises(FileNotFoundError, match="absent"):
        Client("127.0.0.1:1", Options(tls=Tls(root_ca=tmp_path / "absent.pem")))


def test_stubs_of_any_service_get_deadline_retries_and_typed_errors(server: ScriptedServer) -> None:
    server.script.extend([UNAVAILABLE, UNAVAILABLE])
    with connect(server.target) as channel:
        stub = ScoringServiceStub(channel)
        stub.GetInfo(GetInfoRequest())
        assert len(server.seen) == 3
        assert 0 < server.seen[0].time_remaining_s < 2.2
        server.script.extend([UNAVAILABLE] * 3)
        with pytest.raises(UnavailableError):
            stub.GetInfo.future(GetInfoRequest()).result()
        server.script.extend([UNAVAILABLE] * 3)
        assert isinstance(stub.GetInfo.future(GetInfoRequest()).exception(), UnavailableError)
        assert stub.GetInfo.future(GetInfoRequest()).exception() is None
        answer, call = stub.GetInfo.with_call(GetInfoRequest())
        assert answer.limits.max_slots == 20
        assert call.code() == grpc.StatusCode.OK


def test_a_stream_has_no_deadline_is_not_retried_and_raises_typed_errors(server: ScriptedServer) -> None:
    server.script.extend([UNAVAILABLE])
    with connect(server.target) as channel:
        stub = EvictionServiceStub(channel)
        with pytest.raises(UnavailableError) as raised:
            next(stub.Report(iter([ReportRequest(batch=1)])))
        assert raised.value.request is None
        assert [seen.time_remaining_s > 1e9 for seen in server.seen] == [True]
        answers = stub.Report(iter([ReportRequest(batch=1), ReportRequest(batch=2)]))
        assert [answer.acknowledged_batch for answer in answers] == [1, 2]


def test_an_asyncio_stream_raises_typed_errors_however_it_is_driven(server: ScriptedServer) -> None:
    async def reports() -> AsyncIterator[ReportRequest]:
        for batch in (1, 2):
            yield ReportRequest(batch=batch)

    async def one_report() -> AsyncIterator[ReportRequest]:
        # grpc.aio may say INTERNAL when a write meets the end of the stream: write nothing after it.
        yield ReportRequest(batch=1)
        await asyncio.Event().wait()

    async def main() -> None:
        async with connect_async(server.target) as channel:
            stub = EvictionServiceStub(channel)
            assert [answer.acknowledged_batch async for answer in stub.Report(reports())] == [1, 2]
            server.script.append(UNAVAILABLE)
            with pytest.raises(UnavailableError):
                await anext(aiter(stub.Report(one_report())))
            stream = stub.Report()
            await stream.write(ReportRequest(batch=7))
            answer = await stream.read()
            assert isinstance(answer, ReportResponse)
            assert answer.acknowledged_batch == 7
            server.script.append(UNAVAILABLE)
            await stream.write(ReportRequest(batch=8))
            with pytest.raises(UnavailableError):
                await stream.read()

    asyncio.run(main())
