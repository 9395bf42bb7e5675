"""The gRPC layer of inference: checks requests, hands texts to the batcher, builds answers."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from frugalads.inference.v1 import inference_pb2 as pb
from frugalads.inference.v1 import inference_pb2_grpc as rpc
from models.scorer.bundle import Scorer
from models.scorer.calibration import KIND
from services.core.batching import BatchQueue
from services.inference import requests, serving
from services.inference.batcher import Batcher, Tokens
from services.inference.config import InferenceConfig, check
from services.inference.observer import BatchMetrics
from services.inference.serving import ServedModel
from services.runtime.deadlines import Deadline
from services.runtime.errors import FailedPrecondition, UserError
from services.runtime.server import Runtime

Context = grpc.aio.ServicerContext[Any, Any]

# Tokenizing takes about 3 us a word. Below this a hop to a thread costs more than it frees the event loop.
_INLINE_CHARS = 500


class InferenceServer(rpc.InferenceServiceServicer, rpc.InferenceAdminServiceServicer):
    """Serves one model bundle."""

    name = "inference"

    def __init__(self, config: InferenceConfig, runtime: Runtime[InferenceConfig]) -> None:
        self._config = config
        self._log = runtime.log
        self._health = runtime.health
        self._observer = BatchMetrics(runtime.metrics, runtime.log)
        runtime.metrics.gauge("max_queued_texts", "Texts above this are refused.").set(config.max_queue_rows)
        self._loads = runtime.metrics.counter(
            "model_loads_total", "Calls of LoadModel.", ("outcome",), ("served", "refused")
        )
        self._model: ServedModel | None = None
        self._swapping = asyncio.Lock()
        self._releases: set[asyncio.Task[None]] = set()
        # One load at a time, even when the callers of earlier ones have left: a thread cannot be cancelled.
        self._loader = ThreadPoolExecutor(1, "load")

    def register(self, server: grpc.aio.Server, admin: grpc.aio.Server) -> list[str]:
        """Adds Embed and Score to the public server, LoadModel to the other."""
        rpc.add_InferenceServiceServicer_to_server(self, server)
        rpc.add_InferenceAdminServiceServicer_to_server(self, admin)
        services = pb.DESCRIPTOR.services_by_name
        return [services[name].full_name for name in ("InferenceService", "InferenceAdminService")]

    async def start(self) -> None:
        """Loads the configured model; raises UserError when it cannot be used."""
        self._model = self._serve(await self._load(Path(self._config.model)))

    async def stop(self) -> None:
        """Ends the workers, when their last calls have ended."""
        if self._model is not None:
            await self._model.release()
        await asyncio.gather(*self._releases)
        await asyncio.to_thread(self._loader.shutdown)

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        """Turns texts into unit vectors."""
        arrived = time.perf_counter_ns()
        texts = requests.parse_embed(request, self._config)
        deadline = Deadline.of(context)
        model = self._current()
        with model.in_use():
            if sum(map(len, texts)) <= _INLINE_CHARS:
                rows, widths = serving.tokenize(model.scorer, texts)
            else:
                rows, widths = await asyncio.to_thread(serving.tokenize, model.scorer, texts)
            tokenize_us = _us_since(arrived)
            answer = await model.batcher.run(rows, widths, deadline)
        response = pb.EmbedResponse(
            dimension=model.scorer.encoder.dimension,
            versions=model.versions,
            timings=pb.Timings(
                queue_us=answer.queue_us,
                tokenize_us=tokenize_us,
                compute_us=answer.compute_us,
                batch_rows=answer.batch_rows,
            ),
        )
        response.vectors.extend(answer.vectors.ravel().tolist())
        response.timings.total_us = _us_since(arrived)
        return response

    async def Score(self, request: pb.ScoreRequest, context: Context) -> pb.ScoreResponse:
        """Turns similarities into click probabilities, by the baseline of models/scorer/calibration.py."""
        arrived = time.perf_counter_ns()
        similarities = requests.parse_score(request, self._config)
        Deadline.of(context).check("scoring")
        model = self._current()
        started = time.perf_counter_ns()
        probabilities = model.scorer.calibration.probabilities(similarities)
        response = pb.ScoreResponse(
            click_probabilities=probabilities.tolist(),
            versions=model.versions,
            timings=pb.Timings(compute_us=_us_since(started), batch_rows=len(probabilities)),
        )
        response.timings.total_us = _us_since(arrived)
        return response

    async def GetInfo(self, request: pb.GetInfoRequest, context: Context) -> pb.GetInfoResponse:
        """Tells versions, limits and what Score needs."""
        model, config = self._current(), self._config
        encoder = model.scorer.encoder
        return pb.GetInfoResponse(
            versions=model.versions,
            engine=encoder.engine,
            scorer_kind=KIND,
            score_inputs=[pb.SCORE_INPUT_SIMILARITIES],
            dimension=encoder.dimension,
            limits=pb.Limits(
                max_texts=config.max_texts,
                max_text_chars=config.max_text_chars,
                max_tokens=encoder.recipe.max_tokens,
                max_candidates=config.max_candidates,
                max_batch_rows=config.max_batch_rows,
                max_message_bytes=config.max_message_bytes,
                max_concurrent=config.max_concurrent,
            ),
        )

    async def LoadModel(self, request: pb.LoadModelRequest, context: Context) -> pb.LoadModelResponse:
        """Loads another model and serves it instead; the old one stays when that fails."""
        path = Path(requests.parse_path(request))
        async with self._swapping:
            Deadline.of(context).check("loading the model")
            try:
                scorer = await self._load(path)
            except UserError as error:
                self._loads.labels("refused").inc()
                self._log.warning("model_refused", path=request.path, reason=str(error))
                raise FailedPrecondition(
                    "MODEL_REFUSED",
                    str(error),
                    subject=request.path,
                    remedy="name a folder that `frugalads model build` wrote; the current model stays",
                    path=request.path,
                ) from error
            previous, self._model = self._current(), self._serve(scorer)
            self._loads.labels("served").inc()
            release = asyncio.create_task(previous.release())
            self._releases.add(release)
            release.add_done_callback(self._releases.discard)
            return pb.LoadModelResponse(previous=previous.versions, current=self._model.versions)

    async def _load(self, folder: Path) -> Scorer:
        return await asyncio.get_running_loop().run_in_executor(
            self._loader, serving.load, folder, self._config
        )

    def _current(self) -> ServedModel:
        assert self._model is not None, "calls are refused before start"
        return self._model

    def _serve(self, scorer: Scorer) -> ServedModel:
        config = self._config
        queue = BatchQueue[Tokens](
            max_batch_rows=config.max_batch_rows,
            max_batch_tokens=config.max_batch_tokens,
            max_queue_rows=config.max_queue_rows,
            max_queue_tokens=config.max_queue_tokens,
        )
        batcher = Batcher(scorer.encoder.forward, queue, self._observer, self._worker_died)
        self._log.info("model_loaded", encoder=scorer.encoder_fingerprint, scorer=scorer.scorer_fingerprint)
        return ServedModel(scorer, batcher)

    def _worker_died(self, reason: str) -> None:
        self._log.error("worker_died", reason=reason)
        self._health.failed(reason)


def build(config: InferenceConfig, runtime: Runtime[InferenceConfig]) -> InferenceServer:
    """The service for `services.runtime.server.run`. Raises ConfigError."""
    check(config)
    return InferenceServer(config, runtime)


def _us_since(start_ns: int) -> int:
    return (time.perf_counter_ns() - start_ns) // 1000
