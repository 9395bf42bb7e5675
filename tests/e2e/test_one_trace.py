"""One trace and one request id across the services of the running stack; faults of tracing do nothing."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2
from redis_process import wait_until
from stack_process import Stack, running_stack

from frugalads.eviction.v1 import eviction_pb2, eviction_pb2_grpc
from frugalads.scoring.v1 import scoring_pb2, scoring_pb2_grpc

SERVICES = ("scoring", "retrieval", "inference", "eviction")
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """An OTLP collector in this process."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, trace_pb2.Span]] = []
        self._lock = threading.Lock()

    def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: object
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        with self._lock:
            for resource in request.resource_spans:
                name = next(
                    a.value.string_value for a in resource.resource.attributes if a.key == "service.name"
                )
                self.spans += [(name, span) for scope in resource.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def of_trace(self, trace: str) -> dict[str, trace_pb2.Span]:
        """The spans of one trace by "service method"."""
        with self._lock:
            return {
                f"{name.removeprefix('frugalads-')} {span.name}": span
                for name, span in self.spans
                if span.trace_id.hex() == trace
            }


@pytest.fixture(scope="module")
def collector() -> Iterator[tuple[Collector, int]]:
    servicer = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, port
    server.stop(0).wait()


@pytest.fixture(scope="module")
def traced(
    prepared: Path, collector: tuple[Collector, int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """A stack whose services send their spans to the collector."""
    data = Path(shutil.copytree(prepared, tmp_path_factory.mktemp("traced") / "data"))
    environ = {f"FRUGALADS_{name.upper()}_OTLP_ENDPOINT": f"127.0.0.1:{collector[1]}" for name in SERVICES}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        with running_stack(data) as stack:
            yield stack


def rank(stack: Stack, query: str, *metadata: tuple[str, str]) -> scoring_pb2.RankAdsResponse:
    with grpc.insecure_channel(stack.target) as channel:
        answer: scoring_pb2.RankAdsResponse = scoring_pb2_grpc.ScoringServiceStub(channel).RankAds(
            scoring_pb2.RankAdsRequest(query=query, slots=2), timeout=10, metadata=metadata
        )
        return answer


def test_a_miss_is_one_trace_over_its_services_and_carries_the_callers_id(
    traced: Stack, collector: tuple[Collector, int]
) -> None:
    answer = rank(traced, "a traced standing desk", ("traceparent", PARENT), ("x-request-id", "caller-7"))
    assert answer.request_id == "caller-7"
    address = f"127.0.0.1:{traced.ports.of('eviction')}"
    with grpc.insecure_channel(address) as channel:
        eviction_pb2_grpc.EvictionServiceStub(channel).GetStats(
            eviction_pb2.GetStatsRequest(), timeout=5, metadata=(("traceparent", PARENT),)
        )
    expected = {
        "scoring RankAds", "inference Embed", "retrieval Search", "inference Score", "eviction GetStats",
    }  # fmt: skip
    wait_until(lambda: set(collector[0].of_trace(TRACE)) >= expected, 15, "the spans arrived")
    spans = collector[0].of_trace(TRACE)
    root = spans["scoring RankAds"]
    assert root.parent_span_id.hex() == "b7ad6b7169203331"
    for name in ("inference Embed", "retrieval Search", "inference Score"):
        assert spans[name].parent_span_id == root.span_id, name
        ids = [a.value.string_value for a in spans[name].attributes if a.key == "frugalads.request_id"]
        assert ids == ["caller-7"]
        assert root.start_time_unix_nano <= spans[name].start_time_unix_nano


def test_a_bad_request_ends_its_span_as_an_error(traced: Stack, collector: tuple[Collector, int]) -> None:
    trace = "1" * 32
    with pytest.raises(grpc.RpcError) as caught:
        rank(traced, "", ("traceparent", f"00-{trace}-b7ad6b7169203331-01"))
    assert "INVALID_ARGUMENT" in str(caught.value)
    wait_until(lambda: "scoring RankAds" in collector[0].of_trace(trace), 15)
    assert collector[0].of_trace(trace)["scoring RankAds"].status.code == trace_pb2.Status.STATUS_CODE_ERROR


@pytest.mark.parametrize(
    "metadata",
    [
        (("traceparent", "rubbish"), ("x-request-id", "no spaces, please")),
        (("traceparent", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"), ("x-request-id", "x" * 500)),
        (("tracestate", "a=b"),),
    ],
)
def test_malformed_headers_are_replaced_and_harm_nothing(
    traced: Stack, metadata: tuple[tuple[str, str], ...]
) -> None:
    answer = rank(traced, "garden hose", *metadata)
    assert answer.ads
    assert len(answer.request_id) == 32
    assert int(answer.request_id, 16)


def test_a_collector_that_is_gone_or_silent_costs_no_answer(work_folder: Path) -> None:
    with socket.socket() as silent, pytest.MonkeyPatch.context() as patch:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)  # accepts into its backlog, never answers
        patch.setenv("FRUGALADS_SCORING_OTLP_ENDPOINT", f"127.0.0.1:{silent.getsockname()[1]}")
        for name in ("retrieval", "inference", "eviction"):
            patch.setenv(f"FRUGALADS_{name.upper()}_OTLP_ENDPOINT", "127.0.0.1:1")
        with running_stack(work_folder) as stack:
            with grpc.insecure_channel(stack.target) as channel:
                stub = scoring_pb2_grpc.ScoringServiceStub(channel)
                began_s = time.monotonic()
                for number in range(200):
                    request = scoring_pb2.RankAdsRequest(query=f"query {number % 20}", slots=2)
                    assert stub.RankAds(request, timeout=5).request_id
                assert time.monotonic() - began_s < 20
            log = (work_folder / "run" / "scoring.log").read_text()
            assert log.lower().count("export") <= 2, "the log is not flooded"
            assert stack.stop() == 0
