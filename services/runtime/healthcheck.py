"""Whether a server is ready: `python -m services.runtime.healthcheck HOST:PORT SERVICE`, exit code 0 or 1.

A container's HEALTHCHECK. It asks grpc.health.v1 for the readiness of the service, in plain text; where the
public port has TLS, ask the admin port, which is loopback only and answers the same.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.runtime.config import SERVICES

ANSWER_S = 3.0


def main(argv: Sequence[str] | None = None) -> int:
    """Asks once; 0 when SERVING, else 1 with the reason on standard error."""
    parser = argparse.ArgumentParser(prog="services.runtime.healthcheck")
    parser.add_argument("target", metavar="HOST:PORT")
    parser.add_argument("service", metavar="SERVICE", choices=SERVICES, help=", ".join(SERVICES))
    arguments = parser.parse_args(argv)
    fault = unready(arguments.target, arguments.service)
    if fault:
        sys.stderr.write(f"{arguments.service} at {arguments.target}: {fault}\n")
    return 1 if fault else 0


def unready(target: str, service: str) -> str:
    """Why `service` at `target` is not ready; empty when it is. Answers within 3 s."""
    name = f"frugalads.{service}.v1.{service.capitalize()}Service"
    with grpc.insecure_channel(target, options=[("grpc.enable_http_proxy", 0)]) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        try:
            answer = check(health_pb2.HealthCheckRequest(service=name), timeout=ANSWER_S)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    return "" if status == "SERVING" else status


if __name__ == "__main__":
    sys.exit(main())
