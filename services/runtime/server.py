"""The life of a server: listen, load, serve, drain, exit.

Start: ports are opened first (never shared: SO_REUSEPORT is off) and health answers NOT_SERVING while the
service loads. Stop, on SIGTERM or SIGINT: NOT_SERVING, wait `drain_ms` for balancers, refuse new calls, let
running calls end within `grace_ms`, stop the service, exit 0.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol

import grpc
import structlog
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from services.runtime import logs
from services.runtime.admission import Admission, GuardedServer
from services.runtime.config import ConfigT, ServerConfig, load
from services.runtime.errors import UserError
from services.runtime.health import Health
from services.runtime.metrics import Metrics, MetricsEndpoint
from services.runtime.tls import server_credentials
from services.runtime.tracing import Tracing

ADMIN_HOST = "127.0.0.1"
HEALTH_SERVICE = "grpc.health.v1.Health"

_REFUSE_S = 0.05
_REFUSE_ROUNDS = 10


class Service(Protocol):
    """What a service gives the runtime."""

    name: str

    def register(self, server: Any, admin: Any) -> list[str]:
        """Adds servicers by the generated `add_*_to_server`; returns full names of the proto services.

        `server` listens on the public address, `admin` on loopback.
        """

    async def start(self) -> None:
        """Loads, verifies and warms; calls are refused until it returns."""

    async def stop(self) -> None:
        """Releases everything, after the last call ended."""


class Runtime(Generic[ConfigT]):
    """What the runtime gives a service."""

    def __init__(self, service: str, config: ConfigT) -> None:
        self.config = config
        self.log: structlog.stdlib.BoundLogger = logs.logger(service)
        self.metrics = Metrics(service)
        self.health = Health(self._on_readiness, self.metrics.dependency)

    def _on_readiness(self, ready: bool, reason: str) -> None:
        self.metrics.ready.set(ready)
        self.log.info("ready" if ready else "not_ready", reason=reason)


Build = Callable[[ConfigT, Runtime[ConfigT]], Service]


@dataclass(frozen=True)
class RunningServer:
    """A server that serves; the ports it got."""

    port: int
    admin_port: int
    metrics_port: int
    service: Service
    health: Health


@contextlib.asynccontextmanager
async def start_server(service: str, config: ConfigT, build: Build[ConfigT]) -> AsyncIterator[RunningServer]:
    """Runs a server for the time of the block: loaded when it begins, drained when it ends.

    Raises UserError when a port is taken or the service cannot load.
    """
    runtime = Runtime(service, config)
    endpoint: MetricsEndpoint | None = None
    built = build(config, runtime)
    tracing = Tracing(service, config.otlp_endpoint, config.trace_share, runtime.metrics)
    admission = Admission(config.max_concurrent, runtime.health, runtime.metrics, tracing, runtime.log)
    public, admin = grpc.aio.server(options=_options(config)), grpc.aio.server(options=_options(config))
    names = built.register(GuardedServer(public, admission), GuardedServer(admin, admission))
    for server in (public, admin):
        health_pb2_grpc.add_HealthServicer_to_server(runtime.health.servicer, server)
        if config.reflection:
            reflection.enable_server_reflection([*names, HEALTH_SERVICE, reflection.SERVICE_NAME], server)
    port = _open_port(public, config.host, config.port, server_credentials(config))
    admin_port = _open_port(admin, ADMIN_HOST, config.admin_port, None)
    changed = asyncio.Event()
    runtime.health.bind(names, changed.set)
    await runtime.health.publish()
    publisher = asyncio.create_task(_publish(runtime.health, changed))
    try:
        if config.metrics_port >= 0:
            endpoint = MetricsEndpoint(runtime.metrics, config.host, config.metrics_port)
        await public.start()
        await admin.start()
        await built.start()
        runtime.health.started()
        metrics_port = endpoint.port if endpoint else -1
        runtime.log.info("serving", port=port, admin_port=admin_port, metrics_port=metrics_port)
        yield RunningServer(port, admin_port, metrics_port, built, runtime.health)
    finally:
        await _drain(runtime, config, admission, (public, admin))
        publisher.cancel()
        await built.stop()
        await tracing.close()
        if endpoint is not None:
            await asyncio.to_thread(endpoint.close)
        runtime.log.info("stopped")


async def _publish(health: Health, changed: asyncio.Event) -> None:
    while True:
        await changed.wait()
        changed.clear()
        await health.publish()


async def _drain(
    runtime: Runtime[ConfigT],
    config: ServerConfig,
    admission: Admission,
    servers: Sequence[grpc.aio.Server],
) -> None:
    runtime.health.draining()
    await runtime.health.publish()
    if admission.in_flight or config.drain_ms:
        runtime.log.info("draining", in_flight=admission.in_flight)
    await asyncio.sleep(config.drain_ms / 1000)
    # gRPC cancels the calls that have arrived but not reached a handler when it stops, and our clients retry
    # UNAVAILABLE, not CANCELLED. So the handlers refuse first, and callers stay away.
    admission.close()
    for _ in range(_REFUSE_ROUNDS):
        arrived = admission.arrived
        await asyncio.sleep(_REFUSE_S)
        if admission.arrived == arrived:
            break
    grace_s = config.grace_ms / 1000
    stopping = [asyncio.create_task(server.stop(grace_s)) for server in servers]
    # Health watches and report streams never end by themselves; only unary calls are worth the grace.
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(admission.idle(), grace_s)
    # An answer that just ended still has to leave the transport.
    await asyncio.sleep(0.02)
    for server in servers:
        await server.stop(0)
    await asyncio.gather(*stopping)


def _options(config: ServerConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", config.max_message_bytes),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.max_connection_age_ms", 3_600_000),
    ]


def _open_port(
    server: grpc.aio.Server, host: str, port: int, credentials: grpc.ServerCredentials | None
) -> int:
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if credentials is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise UserError(f"{address} cannot be opened: in use, not local, or not permitted") from error
    if bound == 0:
        raise UserError(f"{address} cannot be opened")
    return bound


def run(service: str, table: type[ConfigT], build: Build[ConfigT], argv: Sequence[str] | None = None) -> int:
    """The entry point of `python -m services.<service>`: returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"services.{service}")
    parser.add_argument("--config", type=Path, help="TOML file with a table per service")
    arguments = parser.parse_args(argv)
    try:
        config = load(table, service, os.environ, arguments.config)
        return serve(service, config, build)
    except UserError as error:
        sys.stderr.write(f"{service}: error: {error}\n")
        return 2


def serve(service: str, config: ConfigT, build: Build[ConfigT]) -> int:
    """Serves until SIGTERM or SIGINT, then drains and returns 0. Raises UserError when it cannot start."""
    logs.configure(service, config.log_level, config.log_format)
    return asyncio.run(_serve(service, config, build))


async def _serve(service: str, config: ConfigT, build: Build[ConfigT]) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    starting = asyncio.current_task()
    assert starting is not None
    serving = False

    def on_signal() -> None:
        stop.set()
        if not serving:
            starting.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        async with start_server(service, config, build):
            serving = True
            await stop.wait()
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
    return 0
