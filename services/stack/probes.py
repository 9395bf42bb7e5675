"""Whether a child answers: what the supervisor asks before it calls a child ready."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

Probe = Callable[[], Awaitable[bool]]

_POLL_S = 0.05
_ANSWER_S = 1.0
# Without these a first refused connection holds the next try back for a second.
_CHANNEL_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.enable_http_proxy", 0),
]


async def until_ready(probe: Probe) -> None:
    """Returns once `probe` says yes; asks 20 times a second."""
    while not await probe():  # noqa: ASYNC110 - the event is in another process
        await asyncio.sleep(_POLL_S)


def grpc_health(host: str, port: int, proto_service: str) -> Probe:
    """Asks grpc.health.v1 whether `proto_service` is SERVING."""

    async def probe() -> bool:
        if not await _accepts(host, port):
            return False
        async with grpc.aio.insecure_channel(f"{host}:{port}", options=_CHANNEL_OPTIONS) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            try:
                answer = await stub.Check(
                    health_pb2.HealthCheckRequest(service=proto_service), timeout=_ANSWER_S
                )
            except grpc.aio.AioRpcError:
                return False
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    return probe


def redis_ping(host: str, port: int) -> Probe:
    """Asks a Redis or Valkey whether it answers PING with PONG; a server that still loads does not."""

    async def probe() -> bool:
        try:
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = await asyncio.open_connection(host, port)
                try:
                    writer.write(b"PING\r\n")
                    return await reader.readline() == b"+PONG\r\n"
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return False

    return probe


async def _accepts(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(_ANSWER_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
