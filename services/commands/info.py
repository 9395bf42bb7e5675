"""`frugalads info`: what each service of a stack says about itself."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import grpc
    from google.protobuf.message import Message


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `frugalads info`."""
    parser = subparsers.add_parser("info", help="versions, limits and state of a running stack")
    parser.add_argument("--base-port", type=int, default=7400, metavar="PORT", help="port of scoring")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints GetInfo of each service, GetStats of eviction; returns 1 when one does not answer."""
    from google.protobuf.json_format import MessageToJson

    from frugalads.client import FrugalAdsError, Options, connect
    from frugalads.eviction.v1 import eviction_pb2, eviction_pb2_grpc
    from frugalads.inference.v1 import inference_pb2, inference_pb2_grpc
    from frugalads.retrieval.v1 import retrieval_pb2, retrieval_pb2_grpc
    from frugalads.scoring.v1 import scoring_pb2, scoring_pb2_grpc
    from services.stack.ports import HOST, Ports

    ask: dict[str, Callable[[grpc.Channel], Message]] = {
        "scoring": lambda channel: scoring_pb2_grpc.ScoringServiceStub(channel).GetInfo(
            scoring_pb2.GetInfoRequest()
        ),
        "retrieval": lambda channel: retrieval_pb2_grpc.RetrievalServiceStub(channel).GetInfo(
            retrieval_pb2.GetInfoRequest()
        ),
        "inference": lambda channel: inference_pb2_grpc.InferenceServiceStub(channel).GetInfo(
            inference_pb2.GetInfoRequest()
        ),
        "eviction": lambda channel: eviction_pb2_grpc.EvictionServiceStub(channel).GetStats(
            eviction_pb2.GetStatsRequest()
        ),
    }
    ports, silent = Ports(args.base_port), 0
    for service, question in ask.items():
        address = f"{HOST}:{ports.of(service)}"
        try:
            with connect(address, Options(attempts=1)) as channel:
                answer = question(channel)
        except FrugalAdsError as error:
            silent += 1
            print(f"{service} at {address}: no answer: {error}\n")
            continue
        text = MessageToJson(
            answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        print(f"{service} at {address}\n{text}\n")
    return 1 if silent else 0
