"""`frugalads info`: what each service of a stack says about itself."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import grpc
    from google.protobuf.message import Message

_SHORT = 12


@dataclass(frozen=True)
class Service:
    """How to ask one service, and what of its answer the table shows."""

    ask: Callable[[grpc.Channel], Message]
    holds: Callable[[Any], str]
    versions: Callable[[Any], dict[str, str]]
    limits: Callable[[Any], str]


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `frugalads info`."""
    parser = subparsers.add_parser("info", help="versions, limits and state of a running stack")
    parser.add_argument("--base-port", type=int, default=7400, metavar="PORT", help="port of scoring")
    parser.add_argument("--json", action="store_true", help="print all that the services say as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints what each service says; returns 1 when one does not answer."""
    import json

    from google.protobuf.json_format import MessageToDict

    from frugalads.client import FrugalAdsError, Options, connect
    from services.stack.ports import HOST, Ports
    from services.stack.tables import text_table

    ports = Ports(args.base_port)
    rows, silent, document = [], [], dict[str, object]()
    for name, service in _services().items():
        address = f"{HOST}:{ports.of(name)}"
        try:
            with connect(address, Options(attempts=1)) as channel:
                answer, ready = service.ask(channel), _is_ready(channel, name)
        except FrugalAdsError as error:
            silent.append(f"{name}: {_explained(error, address)}")
            document[name] = None
            continue
        versions = ", ".join(
            f"{what} {text[:_SHORT]}" for what, text in service.versions(answer).items() if text
        )
        state = "yes" if ready else "no"
        rows.append((name, address, state, service.holds(answer), service.limits(answer), versions))
        said = MessageToDict(
            answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        document[name] = {"address": address, "ready": ready, **said}
    if args.json:
        print(json.dumps(document, indent=2))
    elif rows:
        columns = ("service", "address", "ready", "holds", "limits", "versions")
        print(text_table(columns, rows, left=range(len(columns))))
    if silent and not args.json:
        print("\n".join(silent))
    return 1 if silent else 0


def _explained(error: Exception, address: str) -> str:
    from frugalads.client import FrugalAdsError, UnavailableError

    assert isinstance(error, FrugalAdsError)
    if isinstance(error, UnavailableError) and not error.reason:
        return f"nothing answers at {address}; start with frugalads up"
    return f"{address}: {error}"


def _is_ready(channel: grpc.Channel, name: str) -> bool:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    request = health_pb2.HealthCheckRequest(service=f"frugalads.{name}.v1.{name.capitalize()}Service")
    answer = health_pb2_grpc.HealthStub(channel).Check(request)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _services() -> dict[str, Service]:
    from frugalads.eviction.v1 import eviction_pb2, eviction_pb2_grpc
    from frugalads.inference.v1 import inference_pb2, inference_pb2_grpc
    from frugalads.retrieval.v1 import retrieval_pb2, retrieval_pb2_grpc
    from frugalads.scoring.v1 import scoring_pb2, scoring_pb2_grpc

    return {
        "scoring": Service(
            lambda channel: scoring_pb2_grpc.ScoringServiceStub(channel).GetInfo(
                scoring_pb2.GetInfoRequest()
            ),
            lambda info: f"{info.ads:,} ads",
            lambda info: {
                "index": info.versions.index,
                "encoder": info.versions.encoder,
                "scorer": info.versions.scorer,
            },
            lambda info: f"{info.limits.max_slots} slots, {info.limits.max_query_chars} characters",
        ),
        "retrieval": Service(
            lambda channel: retrieval_pb2_grpc.RetrievalServiceStub(channel).GetInfo(
                retrieval_pb2.GetInfoRequest()
            ),
            lambda info: f"{info.ads:,} ads",
            lambda info: {"index": info.versions.index, "encoder": info.encoder},
            lambda info: f"k up to {info.limits.max_k}",
        ),
        "inference": Service(
            lambda channel: inference_pb2_grpc.InferenceServiceStub(channel).GetInfo(
                inference_pb2.GetInfoRequest()
            ),
            lambda info: info.engine,
            lambda info: {"encoder": info.versions.encoder, "scorer": info.versions.scorer},
            lambda info: f"{info.limits.max_texts} texts, {info.limits.max_candidates} candidates",
        ),
        "eviction": Service(
            lambda channel: eviction_pb2_grpc.EvictionServiceStub(channel).GetStats(
                eviction_pb2.GetStatsRequest()
            ),
            lambda stats: f"{stats.entries:,} entries",
            lambda stats: {"order": stats.order},
            lambda stats: f"{stats.max_bytes / 2**20:.0f} MiB",
        ),
    }
