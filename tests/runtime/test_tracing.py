from __future__ import annotations

import asyncio
import io
import json
import logging
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from services.runtime import logs
from services.runtime.metrics import Metrics
from services.runtime.tracing import Tracing, request_id


class Call:
    """A call's context with the headers it came with."""

    def __init__(self, *metadata: tuple[str, Any]) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> Any:
        return self._metadata


def begin(tracing: Tracing, *metadata: tuple[str, Any]) -> str:
    async def scenario() -> str:
        tracing.end(tracing.begin("RankAds", Call(*metadata)), "OK")
        return request_id()

    return asyncio.run(scenario())


@given(value=st.one_of(st.text(max_size=80), st.binary(max_size=20)))
def test_a_request_id_is_the_callers_or_a_fresh_plain_one(value: Any) -> None:
    given_ = begin(Tracing("scoring", "", 1.0, Metrics("scoring")), ("x-request-id", value))
    assert given_
    assert given_.isascii()
    assert len(given_) <= 64
    if given_ != value:
        assert len(given_) == 32


def test_a_fault_inside_tracing_is_counted_and_swallowed() -> None:
    metrics = Metrics("scoring")
    tracing = Tracing("scoring", "127.0.0.1:1", 1.0, metrics)

    class Broken:
        def begin(self, *_: object) -> object:
            raise RuntimeError("broken")

    whole, tracing._spans = tracing._spans, Broken()  # type: ignore[assignment]
    assert begin(tracing, ("x-request-id", "a-1")) == "a-1"
    assert metrics.registry.get_sample_value("frugalads_scoring_trace_faults_total") == 1
    tracing._spans = whole
    assert begin(tracing, ("traceparent", "\0rubbish")) != ""
    asyncio.run(tracing.close())


def test_log_lines_of_a_call_name_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    monkeypatch.setattr("sys.stderr", stream)
    try:
        log = logs.configure("scoring", "info", "json")

        async def scenario() -> None:
            Tracing("scoring", "", 1.0, Metrics("scoring")).begin("RankAds", Call(("x-request-id", "a-1")))
            log.info("inside")

        asyncio.run(scenario())
        log.info("outside")
    finally:
        structlog.reset_defaults()
        root.handlers[:] = before
        root.setLevel(level)
    inside, outside = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (inside["event"], inside["request_id"]) == ("inside", "a-1")
    assert "request_id" not in outside
