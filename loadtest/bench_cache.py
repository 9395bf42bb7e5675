"""What the ads cache costs a call, with its refresh policy off and on: a decision, a hit, a refresh.

    decision   the policy's judgement of one hit, called as the service calls it
    hit        RankAds that reuses a cached list: validation, Redis, decision, auction, answer
    refresh    RankAds that computes a cached list anew, but for the computation itself: stand-ins of
               inference and retrieval, in a process of their own, answer at once. What is left is what the
               cache adds: three calls, the merge, the conditional write, what the policy learns

Off is a policy that knows nothing: `none`, which reuses every list, and for refreshes `fixed`, at every hit.
On is a refresh model: 100 trees of depth 6, trained on random rows to predict more or less than any price, so
that it decides one way and costs what a real one of its size does.

Hits and refreshes are whole calls over a real gRPC socket and a real Redis, from a client process. Figures
are processor time of the server's process a call, medians over rounds that measure every row in turn, so that
other load on the machine meets all alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from frugalads.inference.v1 import inference_pb2, inference_pb2_grpc
from frugalads.retrieval.v1 import retrieval_pb2, retrieval_pb2_grpc
from frugalads.scoring.v1 import scoring_pb2, scoring_pb2_grpc
from loadtest.bench_pipeline import embedded_server, fill, send_load
from loadtest.files import written_whole
from loadtest.report import run_header
from services.core.ads_list import AdsList, Versions
from services.core.auction import LiveAd, Viewer
from services.core.refresh.features import OURS
from services.core.refresh.learned import LearnedRefresh
from services.core.refresh.none import NoRefresh
from services.core.refresh.predicted import Rule
from services.core.trees import parse_forest
from services.runtime import logs
from services.runtime.errors import UserError
from services.runtime.forests import write_forest
from services.runtime.server import start_server
from services.scoring.asked import Asked
from services.scoring.config import ScoringConfig
from services.scoring.refresher import KIND
from services.scoring.server import build
from services.stack.tables import text_table

SEED = 0

_METHOD = "/frugalads.scoring.v1.ScoringService/RankAds"
_CALLERS, _SLOTS, _KEYS, _CANDIDATES = 8, 4, 256, 48
_DECIDED_KEYS, _DECISIONS = 10_000, 20_000
_TREES, _DEPTH, _ROWS = 100, 6, 4_000
_CERTAIN_USD = 1e6  # above any price
_START_S = 20.0
_DIMENSION = 384

HIT, REFRESHED = scoring_pb2.CACHE_STATE_HIT, scoring_pb2.CACHE_STATE_REFRESHED


@dataclass(frozen=True)
class Row:
    """Microseconds of processor time, median over rounds with its quartiles.

    ratio: to the same with the policy off.
    """

    what: str
    policy: str
    us: float
    us_p25: float
    us_p75: float
    ratio: float


def main(calls: int, rounds: int, json_file: str | None) -> int:
    """Measures, prints a table and, on request, writes one JSON document. Raises UserError."""
    if calls < 10 or rounds < 1:
        raise UserError(f"requests {calls} must be 10 or more, rounds {rounds} 1 or more")
    logs.configure("scoring", "error", "text")
    rows = measure(calls, rounds)
    cells = [
        (row.what, row.policy, f"{row.us:.1f}", f"{row.us_p25:.1f}-{row.us_p75:.1f}", f"{row.ratio:.2f}")
        for row in rows
    ]
    columns = ("what", "policy", "us", "quartiles", "policy on/off")
    sys.stdout.write(text_table(columns, cells, left=(0, 1)) + "\n")
    sys.stdout.write(f"processor time of the server a call, medians of {rounds} rounds; {_CALLERS} callers\n")
    if json_file is not None:
        options = {"requests": calls, "rounds": rounds, "trees": _TREES, "depth": _DEPTH}
        document = {"header": run_header(options, SEED), "rows": [asdict(row) for row in rows]}
        with written_whole(Path(json_file)) as stream:
            stream.write(json.dumps(document, indent=2) + "\n")
    return 0


def measure(calls: int, rounds: int) -> list[Row]:
    """A row for each figure with the policy off and on."""
    with tempfile.TemporaryDirectory() as name, embedded_server() as redis, _upstreams() as upstream:
        models = {}
        for what, loss_usd in (("hit", -_CERTAIN_USD), ("refresh", _CERTAIN_USD)):
            models[what] = Path(name) / what
            _write_model(models[what], loss_usd)
        forest = parse_forest((models["hit"] / "model").read_bytes())
        samples: dict[tuple[str, str], list[float]] = {}
        for _ in range(rounds):
            samples.setdefault(("decision", "none"), []).append(_decision_us(None))
            samples.setdefault(("decision", "predicted"), []).append(
                _decision_us(LearnedRefresh(forest.arrays, Rule(0.2, 0.0, 0.0, math.nan)))
            )
            for what, state in (("hit", HIT), ("refresh", REFRESHED)):
                plain = {"refresh_policy": "none" if what == "hit" else "fixed", "refresh_every": 1}
                for policy, options in (
                    (str(plain["refresh_policy"]), plain),
                    ("predicted", {"refresh_model": str(models[what])}),
                ):
                    spent_us = asyncio.run(_call_us(redis, upstream, options, state, calls))
                    samples.setdefault((what, policy), []).append(spent_us)
    off = {what: statistics.median(us) for (what, policy), us in samples.items() if policy != "predicted"}
    rows = []
    for (what, policy), found in samples.items():
        low, middle, high = np.percentile(found, (25, 50, 75)).tolist()
        rows.append(Row(what, policy, middle, low, high, middle / off[what]))
    return rows


class _NoAds:
    """Live ads of decisions, which look at none."""

    ads: Mapping[int, LiveAd] = {}


def _decision_us(model: LearnedRefresh | None) -> float:
    """A decision on a hit by a model, or by no policy, over keys in an order that no cache line expects."""
    random = np.random.default_rng(SEED)
    keys = [random.bytes(16) for _ in range(_DECIDED_KEYS)]
    drawn = [keys[i] for i in random.integers(0, len(keys), _DECISIONS)]
    entry = AdsList(tuple(range(1, 49)), (0.1,) * 48, 1_000, 9_000, Versions())
    asked = Asked("", keys[0], Viewer("US-CA", 1, 2, 3), _SLOTS, 1, _NoAds(), 2_000)
    none = NoRefresh()

    def decide(key: bytes) -> None:
        if model is None:
            none.on_hit(key, entry, asked.now_ms)
        else:
            model.on_hit(key, entry, asked.request, lambda cached: asked.computed(cached, None, 48))

    for key in keys:
        decide(key)
    began_s = time.process_time()
    for key in drawn:
        decide(key)
    return (time.process_time() - began_s) * 1e6 / _DECISIONS


async def _call_us(redis: int, upstream: str, options: dict[str, Any], state: int, calls: int) -> float:
    """Processor time of a server a call, every one of which ends in a cache state."""
    config = ScoringConfig(
        **{
            "cache_url": f"redis://127.0.0.1:{redis}/0",
            "state_url": f"redis://127.0.0.1:{redis}/1",
            "retrieval_target": upstream,
            "inference_target": upstream,
            "click_secret": "only for this measurement",
            "cache_timeout_ms": 1_000,
            "outdated_refreshes_per_s": 0,
            "grace_ms": 100,
            "log_level": "error",
            **options,
        }
    )
    queries = [f"query number {i}" for i in range(_KEYS)]
    await fill(config, queries, _CANDIDATES)
    requests = [scoring_pb2.RankAdsRequest(query=query, slots=_SLOTS) for query in queries]
    async with (
        start_server("scoring", config, build) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        async with asyncio.timeout(_START_S):
            while not running.health.is_ready:  # noqa: ASYNC110 probes find it out, and tell nobody
                await asyncio.sleep(0.02)
        rank = scoring_pb2_grpc.ScoringServiceStub(channel).RankAds
        await _expect(rank, requests[0], state)
        payloads = [request.SerializeToString() for request in requests]
        began_s = time.process_time()
        load = await send_load(running.port, _METHOD, payloads, calls, _CALLERS)
        spent_us = (time.process_time() - began_s) * 1e6 / load.calls
        if load.failed:
            raise RuntimeError(f"{load.failed} of {load.calls} calls failed")
        await _expect(rank, requests[-1], state)
    return spent_us


async def _expect(rank: Any, request: scoring_pb2.RankAdsRequest, state: int) -> None:
    answer = await rank(request, timeout=5)
    if answer.cache_state != state:
        raise RuntimeError(f"a call ended as {answer.cache_state}, not {state}")


def _write_model(folder: Path, loss_usd: float) -> None:
    """A model of the shape that training makes; its predictions lie about `loss_usd`."""
    import xgboost

    random = np.random.default_rng(SEED)
    rows = random.gamma(1.0, 1.0, (_ROWS, len(OURS))).astype(np.float32)
    labels = loss_usd + rows[:, 0] * rows[:, 1] + random.random(_ROWS)
    options = {"max_depth": _DEPTH, "nthread": 1, "tree_method": "hist", "base_score": loss_usd}
    booster = xgboost.train(options, xgboost.DMatrix(rows, labels), _TREES)
    golden = rows[:20]
    write_forest(
        folder,
        KIND,
        bytes(booster.save_raw("ubj")),
        feature_names=OURS,
        golden_rows=golden.astype(np.float64),
        meta={"floor": 0.0, "probe_share": 0.0},
        trainer_predictions=booster.predict(xgboost.DMatrix(golden)),
    )


@contextlib.contextmanager
def _upstreams() -> Iterator[str]:
    """Stand-ins of inference and retrieval in a process of their own; their one address."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve_upstreams, args=(sender,), daemon=True)
    process.start()
    sender.close()
    try:
        yield f"127.0.0.1:{receiver.recv()}"
    finally:
        process.kill()
        process.join()
        receiver.close()


def _serve_upstreams(sender: Any) -> None:
    asyncio.run(_serve(sender.send))


async def _serve(started: Callable[[int], None]) -> None:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    health = health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    for name in ("inference.v1.InferenceService", "retrieval.v1.RetrievalService"):
        await health.set(f"frugalads.{name}", health_pb2.HealthCheckResponse.SERVING)
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(_Inference(), server)
    retrieval: Any = _Retrieval  # abstract, because it lacks what scoring does not call
    retrieval_pb2_grpc.add_RetrievalServiceServicer_to_server(retrieval(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    started(port)
    await server.wait_for_termination()


class _Inference(inference_pb2_grpc.InferenceServiceServicer):
    """Answers at once."""

    versions = inference_pb2.Versions(encoder="encoder", scorer="scorer")

    async def Embed(self, request: Any, context: Any) -> Any:
        vector = [0.05] * _DIMENSION
        return inference_pb2.EmbedResponse(vectors=vector, dimension=len(vector), versions=self.versions)

    async def Score(self, request: Any, context: Any) -> Any:
        probabilities = [0.2 / (1 + place) for place in range(len(request.ad_ids))]
        return inference_pb2.ScoreResponse(click_probabilities=probabilities, versions=self.versions)

    async def GetInfo(self, request: Any, context: Any) -> Any:
        return inference_pb2.GetInfoResponse(
            versions=self.versions,
            score_inputs=[inference_pb2.SCORE_INPUT_SIMILARITIES],
            limits=inference_pb2.Limits(max_text_chars=200, max_candidates=256),
        )


class _Retrieval(retrieval_pb2_grpc.RetrievalServiceServicer):
    """Finds the same ads for every query, at once."""

    versions = retrieval_pb2.Versions(index="index")

    async def Search(self, request: Any, context: Any) -> Any:
        return retrieval_pb2.SearchResponse(
            ad_ids=range(1, request.k + 1), similarities=[0.9] * request.k, versions=self.versions
        )

    async def GetInfo(self, request: Any, context: Any) -> Any:
        return retrieval_pb2.GetInfoResponse(
            versions=self.versions, encoder="encoder", limits=retrieval_pb2.Limits(max_k=1000)
        )
