"""Asks every dependency once a second whether it answers, so that readiness follows without traffic."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.runtime.health import Dependency

INTERVAL_S = 1.0
TIMEOUT_S = 0.5
FAILURES_UNTIL_DOWN = 2  # one slow answer on a busy machine is no outage

Probe = Callable[[], Awaitable[None]]


class NotServing(Exception):
    """A service answers, but is not ready."""


def health_probe(channel: grpc.aio.Channel, service: str) -> Probe:
    """A probe that asks grpc.health.v1 for the full name of a proto service."""
    stub = health_pb2_grpc.HealthStub(channel)

    async def probe() -> None:
        response = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S)
        if response.status != health_pb2.HealthCheckResponse.SERVING:
            raise NotServing(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))

    return probe


async def watch(dependency: Dependency, probe: Probe) -> None:
    """Probe for ever."""
    failures = 0
    while True:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await probe()
        except grpc.aio.AioRpcError as error:
            failures, reason = failures + 1, error.code().name
        except Exception as error:
            failures, reason = failures + 1, f"{type(error).__name__}: {error}"
        else:
            failures = 0
            dependency.up()
        if failures >= FAILURES_UNTIL_DOWN:
            dependency.down(reason)
        await asyncio.sleep(INTERVAL_S)
