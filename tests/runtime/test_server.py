"""The runtime over real sockets, around a small service that does what the tests tell it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from frugalads.errors.v1 import errors_pb2
from frugalads.inference.v1 import inference_pb2, inference_pb2_grpc
from services.runtime.channels import open_channel
from services.runtime.config import ServerConfig, load
from services.runtime.deadlines import Deadline
from services.runtime.errors import DETAILS_TRAILER, ConfigError, InvalidArgument, UserError
from services.runtime.server import RunningServer, Runtime, start_server
from services.runtime.tls import ClientTls, peer_tls

NAME = "frugalads.inference.v1.InferenceService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Scripted(inference_pb2_grpc.InferenceServiceServicer):
    """Embed does what its first text says."""

    name = "inference"

    def __init__(self, runtime: Runtime[Any] | None = None) -> None:
        self.inside = 0
        self.gate = asyncio.Event()
        self.left: list[str] = []
        self.dependency = runtime.health.dependency("store", required=True) if runtime else None

    async def Embed(self, request: Any, context: Any) -> inference_pb2.EmbedResponse:
        what = request.texts[0] if request.texts else ""
        self.inside += 1
        try:
            if what.startswith("wait"):
                await self.gate.wait()
            if what.endswith("invalid"):
                raise InvalidArgument("texts[0]", what, "a word")
            if what == "fault":
                raise RuntimeError("the secret is 42")
            if what == "deadline":
                await asyncio.sleep(0.01)
                Deadline.of(context).check("the model")
        except asyncio.CancelledError:
            self.left.append("cancelled")
            raise
        return inference_pb2.EmbedResponse(dimension=3)

    def register(self, server: Any, admin: Any) -> list[str]:
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(self, server)
        return [NAME]

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass


def configured(**options: object) -> ServerConfig:
    environ = {f"FRUGALADS_INFERENCE_{key.upper()}": str(value) for key, value in options.items()}
    return load(ServerConfig, "inference", environ, None)


@contextlib.asynccontextmanager
async def serving(
    tls: ClientTls | None = None, **options: object
) -> AsyncIterator[tuple[RunningServer, inference_pb2_grpc.InferenceServiceAsyncStub, Scripted]]:
    scripted = Scripted()
    async with start_server("inference", configured(**options), lambda config, runtime: scripted) as running:
        channel = open_channel(f"localhost:{running.port}", tls, 1 << 20)
        async with channel:
            yield running, inference_pb2_grpc.InferenceServiceStub(channel), scripted


def embed(stub: Any, what: str, timeout: float = 5.0) -> Any:
    return stub.Embed(inference_pb2.EmbedRequest(texts=[what]), timeout=timeout)


def status_of(error: grpc.aio.AioRpcError) -> errors_pb2.Status:
    return errors_pb2.Status.FromString(dict(error.trailing_metadata())[DETAILS_TRAILER])


async def until(condition: Callable[[], bool]) -> None:
    """Polls a condition; the test's own timeout bounds it."""
    while not condition():  # noqa: ASYNC110 - the condition lives in the server's handlers
        await asyncio.sleep(0.001)


async def failure(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def test_a_typed_error_arrives_with_its_details() -> None:
    async def scenario() -> None:
        async with serving() as (_, stub, _):
            error = await failure(embed(stub, "invalid"))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert error.details() == "texts[0]: must be a word, got 'invalid'"
            assert len(status_of(error).details) == 2

    asyncio.run(scenario())


def test_a_fault_of_ours_tells_nothing_of_its_inside() -> None:
    async def scenario() -> None:
        async with serving() as (_, stub, _):
            error = await failure(embed(stub, "fault"))
            assert error.code() is grpc.StatusCode.INTERNAL
            assert "42" not in str(status_of(error))
            assert (await embed(stub, "fine")).dimension == 3

    asyncio.run(scenario())


def test_bytes_that_are_no_message_are_the_callers_mistake(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with (
            serving() as (running, stub, _),
            grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
        ):
            error = await failure(channel.unary_unary(f"/{NAME}/Embed")(b"\xff\xff\xff", timeout=5))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert error.details().startswith("request: must be an encoded message")
            assert (await embed(stub, "fine")).dimension == 3

    asyncio.run(scenario())
    assert not [record for record in caplog.records if record.exc_info]


def test_overload_is_refused_at_once_and_served_again_after() -> None:
    async def scenario() -> None:
        async with serving(max_concurrent=2) as (_, stub, scripted):
            held = [asyncio.ensure_future(embed(stub, "wait")) for _ in range(2)]
            await until(lambda: scripted.inside == 2)
            error = await failure(embed(stub, "wait"))
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert any(d.type_url.endswith("google.rpc.RetryInfo") for d in status_of(error).details)
            assert int(dict(error.trailing_metadata())["grpc-retry-pushback-ms"]) > 0
            scripted.gate.set()
            await asyncio.gather(*held)
            assert (await embed(stub, "fine")).dimension == 3

    asyncio.run(scenario())


def test_a_passed_deadline_ends_the_work() -> None:
    async def scenario() -> None:
        async with serving() as (_, stub, scripted):
            error = await failure(embed(stub, "wait", timeout=0.05))
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await until(lambda: scripted.left == ["cancelled"])

    asyncio.run(scenario())


def test_health_follows_dependencies_and_watch_sees_it() -> None:
    async def scenario() -> None:
        made: list[Scripted] = []

        def build(config: ServerConfig, runtime: Runtime[ServerConfig]) -> Scripted:
            made.append(Scripted(runtime))
            return made[0]

        async with (
            start_server("inference", configured(), build) as running,
            grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
        ):
            health = health_pb2_grpc.HealthStub(channel)
            watch = health.Watch(health_pb2.HealthCheckRequest(service=NAME))
            assert (await watch.read()).status == NOT_SERVING
            live = await health.Check(health_pb2.HealthCheckRequest(service=""))
            assert live.status == SERVING
            dependency = made[0].dependency
            assert dependency is not None
            dependency.up()
            assert (await watch.read()).status == SERVING
            dependency.down("gone")
            assert (await watch.read()).status == NOT_SERVING
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await health.Check(health_pb2.HealthCheckRequest(service="no.such.Service"))
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND

    asyncio.run(scenario())


def test_reflection_lists_the_services() -> None:
    async def scenario() -> None:
        async with (
            serving() as (running, _, _),
            grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
        ):
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
            answer = await call.read()
            call.cancel()
            names = {service.name for service in answer.list_services_response.service}
            assert {NAME, "grpc.health.v1.Health"} <= names

    asyncio.run(scenario())


def test_drain_lets_running_calls_end_even_beside_an_open_watch() -> None:
    async def scenario() -> None:
        scripted, stack = Scripted(), contextlib.AsyncExitStack()
        running = await stack.enter_async_context(
            start_server("inference", configured(grace_ms=10_000), lambda config, runtime: scripted)
        )
        async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=""))
            assert (await watch.read()).status == SERVING
            held = asyncio.ensure_future(embed(stub, "wait"))
            aborting = asyncio.ensure_future(embed(stub, "wait invalid"))
            await until(lambda: scripted.inside == 2)
            start = time.monotonic()
            closing = asyncio.create_task(stack.aclose())
            assert (await watch.read()).status == NOT_SERVING
            scripted.gate.set()
            assert (await held).dimension == 3
            assert (await failure(aborting)).code() is grpc.StatusCode.INVALID_ARGUMENT
            await closing
            assert time.monotonic() - start < 5

    asyncio.run(scenario())


def test_a_drain_under_load_cancels_no_call() -> None:
    async def scenario() -> set[grpc.StatusCode]:
        codes: set[grpc.StatusCode] = set()

        async def hammer(stub: Any) -> None:
            while grpc.StatusCode.UNAVAILABLE not in codes:
                try:
                    await embed(stub, "fine")
                except grpc.aio.AioRpcError as error:
                    codes.add(error.code())

        async with contextlib.AsyncExitStack() as channels:
            async with serving() as (running, _, _):
                stubs = []
                for _ in range(16):
                    options = (("grpc.use_local_subchannel_pool", 1),)
                    channel = grpc.aio.insecure_channel(f"127.0.0.1:{running.port}", options)
                    await channels.enter_async_context(channel)
                    stubs.append(inference_pb2_grpc.InferenceServiceStub(channel))
                hammering = [asyncio.create_task(hammer(stub)) for stub in stubs for _ in range(4)]
                await asyncio.sleep(0.3)
            await asyncio.gather(*hammering)
        return codes

    for _ in range(3):
        assert asyncio.run(scenario()) == {grpc.StatusCode.UNAVAILABLE}


def test_a_taken_port_is_refused_and_named() -> None:
    async def scenario() -> None:
        async with serving() as (running, _, _):
            with pytest.raises(UserError, match=str(running.port)):
                async with serving(port=running.port):
                    raise AssertionError("two servers share one port")
            with socket.socket() as taken:
                taken.bind(("127.0.0.1", 0))
                taken.listen()
                port = taken.getsockname()[1]
                with pytest.raises(UserError, match=f"metrics port {port}"):
                    async with serving(metrics_port=port):
                        raise AssertionError("the metrics port was taken")

    asyncio.run(scenario())


def test_metrics_count_calls_by_code() -> None:
    async def scenario() -> str:
        async with serving(metrics_port=0) as (running, stub, _):
            await embed(stub, "fine")
            await failure(embed(stub, "invalid"))
            address = f"http://127.0.0.1:{running.metrics_port}/metrics"
            page: bytes = await asyncio.to_thread(lambda: urllib.request.urlopen(address, timeout=5).read())
            return page.decode()

    page = asyncio.run(scenario())
    assert 'frugalads_inference_calls_total{code="OK",method="Embed"} 1.0' in page
    assert 'frugalads_inference_calls_total{code="INVALID_ARGUMENT",method="Embed"} 1.0' in page
    assert 'frugalads_inference_call_seconds_count{method="Embed"} 2.0' in page


def test_tls_and_mutual_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    server, client = authority.issue_cert("localhost"), authority.issue_cert("client")
    files = {"cert": tmp_path / "c.pem", "key": tmp_path / "k.pem", "ca": tmp_path / "ca.pem"}
    server.cert_chain_pems[0].write_to_path(files["cert"])
    server.private_key_pem.write_to_path(files["key"])
    authority.cert_pem.write_to_path(files["ca"])
    roots = authority.cert_pem.bytes()
    pair = (client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes())

    async def answered(tls: ClientTls, **options: object) -> bool:
        async with serving(tls, tls_cert=files["cert"], tls_key=files["key"], **options) as (_, stub, _):
            try:
                return (await embed(stub, "fine", timeout=1.5)).dimension == 3
            except grpc.aio.AioRpcError:
                return False

    assert asyncio.run(answered(ClientTls(roots)))
    assert not asyncio.run(answered(ClientTls(trustme.CA().cert_pem.bytes())))
    assert not asyncio.run(answered(ClientTls(roots), tls_client_ca=files["ca"]))
    assert asyncio.run(answered(ClientTls(roots, *pair), tls_client_ca=files["ca"]))


def test_an_unreadable_certificate_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tls_cert=tmp_path / "none.pem", tls_key=tmp_path / "none.key"):
            raise AssertionError("served without its certificate")

    with pytest.raises(UserError, match=r"tls_key: .*cannot be read"):
        asyncio.run(scenario())


@pytest.mark.parametrize("fault", ["garbage cert", "empty", "other key", "garbage ca"])
def test_unusable_tls_files_are_named_and_not_taken_for_a_taken_port(tmp_path: Path, fault: str) -> None:
    authority = trustme.CA()
    one, other = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    files = {name: tmp_path / f"{name}.pem" for name in ("cert", "key", "ca")}
    one.cert_chain_pems[0].write_to_path(files["cert"])
    (other if fault == "other key" else one).private_key_pem.write_to_path(files["key"])
    authority.cert_pem.write_to_path(files["ca"])
    if fault == "garbage ca":
        files["ca"].write_text("garbage")
    if fault in ("garbage cert", "empty"):
        files["cert"].write_text("garbage" if fault == "garbage cert" else "")
    named = "ca.pem" if fault == "garbage ca" else r"cert.pem and .*key.pem"

    async def scenario() -> None:
        async with serving(tls_cert=files["cert"], tls_key=files["key"], tls_client_ca=files["ca"]):
            raise AssertionError("served with files it cannot use")

    with pytest.raises(ConfigError, match=named):
        asyncio.run(scenario())
    with pytest.raises(ConfigError, match=named):
        peer_tls(configured(peer_ca=files["ca"], peer_cert=files["cert"], peer_key=files["key"]))


def test_an_ipv6_address_is_an_address() -> None:
    async def scenario() -> None:
        async with (
            serving(host="::1") as (running, _, _),
            grpc.aio.insecure_channel(f"[::1]:{running.port}") as channel,
        ):
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            assert (await embed(stub, "fine")).dimension == 3

    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    asyncio.run(scenario())


PROCESS = """
import sys
sys.path[:0] = [{here!r}, {root!r}]
import test_server
from services.runtime.config import ServerConfig
from services.runtime.server import run
class Built(test_server.Scripted):
    async def start(self):
        if {slow}:
            import asyncio; print("loading", flush=True); await asyncio.sleep(60)
        print("up", flush=True)
sys.exit(run("inference", ServerConfig, lambda config, runtime: Built(), []))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("slow", [False, True])
def test_a_signal_ends_the_process_with_exit_code_0(number: signal.Signals, slow: bool) -> None:
    program = PROCESS.format(here=str(Path(__file__).parent), root=os.getcwd(), slow=slow)
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == ("loading" if slow else "up")
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


def test_a_start_up_mistake_is_one_line_and_exit_code_2() -> None:
    program = PROCESS.format(here=str(Path(__file__).parent), root=os.getcwd(), slow=False)
    environ = {**os.environ, "FRUGALADS_INFERENCE_PROT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environ, timeout=20, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("inference: error: FRUGALADS_INFERENCE_PROT: unknown key")
    assert "Traceback" not in done.stderr
