"""Computing a list: Embed, Search, the relevance cut, Score.

Every call gets what remains of the computation's deadline. Both services are asked for their info when first
used and after every failure, because what they serve may have changed: the columns that Score needs, limits,
and the encoder behind the index. Vectors of another encoder than the index's would find arbitrary ads without
any error, so encoders are compared, and compared again whenever an answer comes from an index or a scorer
that the info does not know.

Answers of other services are checked before they can enter the cache: lengths, distinct ids, probabilities in
0..1, versions that an entry can hold.

A service that the health probes found down is not called: its callers would each wait out the deadline of a
computation, and hold the places of calls that a cached list can answer.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import grpc

from frugalads.inference.v1 import inference_pb2, inference_pb2_grpc
from frugalads.retrieval.v1 import retrieval_pb2, retrieval_pb2_grpc
from services.core.ads_list import MAX_VERSION_BYTES, Versions
from services.core.auction import LiveAd
from services.runtime.deadlines import Deadline
from services.runtime.errors import FailedPrecondition, ServiceError, Unavailable, from_rpc_error
from services.runtime.health import Dependency
from services.runtime.metrics import Metrics

ResponseT = TypeVar("ResponseT")

_NO_TIME_LIMIT_S = 3600.0
_RETRY_AFTER_MS = 500


@dataclass(frozen=True)
class CascadeOptions:
    """k of the search, its recall target, and the similarity below which an ad is unrelated."""

    candidates: int
    recall_target: float
    min_similarity: float


class Scored(NamedTuple):
    """Candidates with click probabilities, most similar first, and where the time went (microseconds)."""

    ad_ids: tuple[int, ...]
    click_probabilities: tuple[float, ...]
    versions: Versions
    retrieval_degraded: bool
    embed_us: int
    retrieve_us: int
    score_us: int


class _Info(NamedTuple):
    encoder: str
    scorer: str
    index_version: str
    needs_similarities: bool
    needs_texts: bool
    max_text_chars: int
    max_k: int


class Cascade:
    """The calls behind a list. Raises ServiceError that names the dependency at fault."""

    def __init__(
        self,
        inference: grpc.aio.Channel,
        retrieval: grpc.aio.Channel,
        health: Sequence[Dependency],
        options: CascadeOptions,
        metrics: Metrics,
    ) -> None:
        self._inference = inference_pb2_grpc.InferenceServiceStub(inference)
        self._retrieval = retrieval_pb2_grpc.RetrievalServiceStub(retrieval)
        self._health = health
        self._options = options
        self._target = retrieval_pb2.Target(mean_recall=options.recall_target)
        self._info: _Info | None = None
        self._candidates = metrics.counter(
            "candidates_total",
            "Ads that retrieval found, by the relevance cut: kept, or unrelated to the query.",
            ("outcome",),
            ("kept", "unrelated"),
        )
        self._failures = metrics.counter(
            "upstream_failures_total",
            "Computations that failed, by the dependency at fault; own: neither.",
            ("dependency",),
            ("inference", "retrieval", "own"),
        )

    @property
    def is_known_down(self) -> bool:
        """Whether a service is known to be down."""
        return any(dependency.is_known_down for dependency in self._health)

    def check_health(self) -> None:
        """Raises Unavailable that names a service known to be down."""
        for dependency in self._health:
            if dependency.is_known_down:
                raise Unavailable(
                    "DEPENDENCY_UNAVAILABLE",
                    f"{dependency.name} does not answer",
                    _RETRY_AFTER_MS,
                    dependency=dependency.name,
                    cause=dependency.reason,
                )

    async def compute(self, query: str, ads: Mapping[int, LiveAd], deadline: Deadline) -> Scored:
        """Scored candidates of a query; none when no ad is related.

        `ads` gives the texts where the scorer reads them.
        """
        try:
            return await self._compute(query, ads, deadline)
        except ServiceError as error:
            self._info = None
            self._failures.labels(error.metadata.get("dependency", "own")).inc()
            raise

    async def _compute(self, query: str, ads: Mapping[int, LiveAd], deadline: Deadline) -> Scored:
        info = await self._known_info(deadline)
        began = time.perf_counter_ns()
        text = query[: info.max_text_chars]
        embedded = await self._embed(text, deadline)
        embedded_at = time.perf_counter_ns()
        deadline.check("retrieval")
        found = await self._search(
            list(embedded.vectors), min(self._options.candidates, info.max_k), deadline
        )
        found_at = time.perf_counter_ns()
        if embedded.versions.encoder != info.encoder or found.versions.index != info.index_version:
            info = await self._agreed_info(embedded.versions.encoder, deadline)
        related = {
            ad_id: similarity
            for ad_id, similarity in zip(found.ad_ids, found.similarities, strict=True)
            if similarity >= self._options.min_similarity and (not info.needs_texts or ad_id in ads)
        }
        self._candidates.labels("kept").inc(len(related))
        self._candidates.labels("unrelated").inc(len(found.ad_ids) - len(related))
        scorer, score_us = info.scorer, 0
        probabilities: tuple[float, ...] = ()
        if related:
            deadline.check("scoring")
            scoring_at = time.perf_counter_ns()
            scored = await self._score(text, related, ads, info, deadline)
            scorer, probabilities = scored.versions.scorer, tuple(scored.click_probabilities)
            score_us = (time.perf_counter_ns() - scoring_at) // 1000
            if scorer != info.scorer:
                self._info = None  # another model serves now; what it needs is asked before the next list
        return Scored(
            tuple(related),
            probabilities,
            Versions(
                _version("retrieval", found.versions.index),
                _version("inference", embedded.versions.encoder),
                _version("inference", scorer),
            ),
            retrieval_pb2.DEGRADED_REASON_DEADLINE in found.degraded_reasons,
            (embedded_at - began) // 1000,
            (found_at - embedded_at) // 1000,
            score_us,
        )

    async def _known_info(self, deadline: Deadline) -> _Info:
        if self._info is None:
            timeout_s = deadline.timeout_s(_NO_TIME_LIMIT_S)
            model = await _answer(
                self._inference.GetInfo(inference_pb2.GetInfoRequest(), timeout=timeout_s), "inference"
            )
            index = await _answer(
                self._retrieval.GetInfo(retrieval_pb2.GetInfoRequest(), timeout=timeout_s), "retrieval"
            )
            _check_encoders(model.versions.encoder, index.encoder)
            self._info = _Info(
                model.versions.encoder,
                model.versions.scorer,
                index.versions.index,
                inference_pb2.SCORE_INPUT_SIMILARITIES in model.score_inputs,
                inference_pb2.SCORE_INPUT_TEXTS in model.score_inputs,
                model.limits.max_text_chars,
                index.limits.max_k,
            )
        return self._info

    async def _agreed_info(self, encoder: str, deadline: Deadline) -> _Info:
        """Fresh info after a swap, if the new index fits the encoder that made the query vector."""
        self._info = None
        info = await self._known_info(deadline)
        _check_encoders(encoder, info.encoder)
        return info

    async def _embed(self, text: str, deadline: Deadline) -> inference_pb2.EmbedResponse:
        request = inference_pb2.EmbedRequest(texts=[text])
        call = self._inference.Embed(request, timeout=deadline.timeout_s(_NO_TIME_LIMIT_S))
        response = await _answer(call, "inference")
        if not response.vectors or len(response.vectors) != response.dimension:
            raise _malformed(
                "inference", f"{len(response.vectors)} numbers for dimension {response.dimension}"
            )
        return response

    async def _search(self, vector: list[float], k: int, deadline: Deadline) -> retrieval_pb2.SearchResponse:
        request = retrieval_pb2.SearchRequest(vector=vector, k=k, target=self._target)
        call = self._retrieval.Search(request, timeout=deadline.timeout_s(_NO_TIME_LIMIT_S))
        response = await _answer(call, "retrieval")
        count = len(response.ad_ids)
        if count != len(response.similarities) or count > k or len(set(response.ad_ids)) != count:
            raise _malformed("retrieval", f"{count} ids for k {k} are not distinct, or lack similarities")
        return response

    async def _score(
        self,
        query: str,
        related: Mapping[int, float],
        ads: Mapping[int, LiveAd],
        info: _Info,
        deadline: Deadline,
    ) -> inference_pb2.ScoreResponse:
        texts = [ad_text(ads[ad_id])[: info.max_text_chars] for ad_id in related] if info.needs_texts else ()
        similarities = related.values() if info.needs_similarities else ()
        request = inference_pb2.ScoreRequest(
            query=query, ad_ids=related.keys(), similarities=similarities, texts=texts
        )
        call = self._inference.Score(request, timeout=deadline.timeout_s(_NO_TIME_LIMIT_S))
        response = await _answer(call, "inference")
        values = response.click_probabilities
        if len(values) != len(related) or not all(0.0 <= p <= 1.0 for p in values):
            raise _malformed(
                "inference", f"{len(values)} click probabilities for {len(related)} ads, or outside 0..1"
            )
        return response


def ad_text(ad: LiveAd) -> str:
    """What a scorer reads of an ad."""
    return f"{ad.title}. {ad.description}" if ad.description else ad.title


async def _answer(call: Awaitable[ResponseT], dependency: str) -> ResponseT:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            # The deadline is the computation's, not our caller's, who may well have time left.
            raise Unavailable(
                "DEPENDENCY_TIMEOUT", f"{dependency} did not answer in time", 100, dependency=dependency
            ) from error
        raise from_rpc_error(error, dependency) from error


def _version(dependency: str, text: str) -> str:
    if len(text.encode()) > MAX_VERSION_BYTES or "\0" in text:
        raise _malformed(dependency, f"a version of more than {MAX_VERSION_BYTES} bytes, or with a NUL")
    return text


def _malformed(dependency: str, fault: str) -> Unavailable:
    return Unavailable(
        "DEPENDENCY_MALFORMED", f"{dependency} answered {fault}", None, dependency=dependency, fault=fault
    )


def _check_encoders(model: str, index: str) -> None:
    if model != index:
        raise FailedPrecondition(
            "ENCODER_MISMATCH",
            f"the index holds vectors of encoder {index!r}, inference serves {model!r}",
            subject=index,
            remedy="build the index with the encoder that inference serves, or load that encoder",
            index_encoder=index,
            served_encoder=model,
        )
