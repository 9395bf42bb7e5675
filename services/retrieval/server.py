"""The gRPC layer of retrieval: checks requests, hands work to threads, builds answers.

Searches run in micro-batches on a pool of `threads`; changes run on one writer thread, which alone touches
the delta and its log. A request takes one snapshot when it arrives and is checked and answered with it,
whatever is upserted or swapped meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import grpc

from frugalads.retrieval.v1 import retrieval_pb2 as pb
from frugalads.retrieval.v1 import retrieval_pb2_grpc as rpc
from services.retrieval import requests
from services.retrieval.batching import Batcher
from services.retrieval.config import RetrievalConfig
from services.retrieval.delta import Delta, Snapshot
from services.retrieval.index import LoadedIndex
from services.retrieval.kernels import limit_loading, use_one_thread
from services.retrieval.loading import Loader
from services.retrieval.observer import SearchMetrics
from services.retrieval.plan import Query
from services.retrieval.search import (
    BUDGET,
    DEADLINE,
    EXHAUSTED,
    RULE,
    Answer,
    Answers,
    Request,
    search_all,
)
from services.runtime.deadlines import Deadline
from services.runtime.errors import FailedPrecondition, UserError
from services.runtime.server import Runtime

Context = grpc.aio.ServicerContext[Any, Any]
T = TypeVar("T")

_STOPPED = {
    EXHAUSTED: pb.STOP_REASON_EXHAUSTED,
    BUDGET: pb.STOP_REASON_BUDGET,
    RULE: pb.STOP_REASON_RULE,
    DEADLINE: pb.STOP_REASON_DEADLINE,
}


class RetrievalServer(rpc.RetrievalServiceServicer, rpc.RetrievalAdminServiceServicer):
    """Serves one index and its delta."""

    name = "retrieval"

    def __init__(self, config: RetrievalConfig, runtime: Runtime[RetrievalConfig]) -> None:
        self._config = config
        self._log = runtime.log
        self._load = Loader(config, runtime.log)
        threads = config.threads or max(1, (os.cpu_count() or 1) - 1)
        self._searchers = ThreadPoolExecutor(threads, "search", initializer=use_one_thread)
        self._writer = ThreadPoolExecutor(1, "delta", initializer=use_one_thread)
        # One load at a time, even when the callers of earlier ones have left: a thread cannot be cancelled.
        self._loader = ThreadPoolExecutor(1, "load", initializer=use_one_thread)
        self._swapping = asyncio.Lock()
        self._delta: Delta | None = None
        metrics = runtime.metrics
        self._observer = SearchMetrics(metrics)
        self._batcher = Batcher(
            self._searchers,
            threads,
            lambda batch: search_all(batch, config.exact_below),
            self._observer.batched,
        )
        self._model = metrics.gauge(
            "stop_model_ready", "1 while a stop model serves recall targets, 0 while calibrated budgets do."
        )
        self._ads = metrics.gauge("ads", "Ads that searches can return.")
        self._changes = metrics.gauge("delta_changes", "Changes held beside the index.")
        metrics.gauge("max_delta_changes", "Changes above this are refused.").set(config.max_delta)
        self._changed = metrics.counter("changed_ads_total", "Ads changed.", ("kind",), ("upsert", "delete"))
        self._swaps = metrics.counter(
            "index_swaps_total", "Calls of SwapIndex.", ("outcome",), ("swapped", "unchanged", "rejected")
        )

    def register(self, server: grpc.aio.Server, admin: grpc.aio.Server) -> list[str]:
        """Adds the search service to the public server and the administration to the other."""
        rpc.add_RetrievalServiceServicer_to_server(self, server)
        rpc.add_RetrievalAdminServiceServicer_to_server(self, admin)
        services = pb.DESCRIPTOR.services_by_name
        return [services[name].full_name for name in ("RetrievalService", "RetrievalAdminService")]

    async def start(self) -> None:
        """Loads the configured index and replays its delta; raises UserError when either cannot be used."""
        limit_loading(self._config.max_index_bytes)
        index = await self._in(
            self._loader, lambda: self._load.index(Path(self._config.index), self._config.stop_model, None)
        )
        await self._in(self._writer, lambda: self._install(index))

    async def stop(self) -> None:
        """Ends the threads and closes the log."""
        for pool in (self._loader, self._searchers, self._writer):
            await asyncio.to_thread(pool.shutdown)
        if self._delta is not None:
            self._delta.close()

    async def Search(self, request: pb.SearchRequest, context: Context) -> pb.SearchResponse:
        """Finds the k nearest ads."""
        arrived = time.perf_counter_ns()
        snapshot = self._current().snapshot
        query = requests.parse_search(request, snapshot.index, self._config)
        answers, queue_us = await self._search(snapshot, query, Deadline.of(context))
        return _response(snapshot, answers, answers.rows[0], queue_us, _us_since(arrived))

    async def SearchBatch(self, request: pb.SearchBatchRequest, context: Context) -> pb.SearchBatchResponse:
        """Finds the k nearest ads of each row."""
        arrived = time.perf_counter_ns()
        snapshot = self._current().snapshot
        query = requests.parse_batch(request, snapshot.index, self._config)
        answers, queue_us = await self._search(snapshot, query, Deadline.of(context))
        total_us = _us_since(arrived)
        rows = [_response(snapshot, answers, row, queue_us, total_us) for row in answers.rows]
        return pb.SearchBatchResponse(results=rows)

    async def Upsert(self, request: pb.UpsertRequest, context: Context) -> pb.UpsertResponse:
        """Adds or replaces ads."""
        deadline = Deadline.of(context)

        def change() -> int:
            deadline.check("storing the change")
            delta = self._current()
            ads = requests.parse_upsert(request, delta.snapshot.index, self._config)
            sequence = delta.upsert(ads)
            self._changed.labels("upsert").inc(len(ads))
            self._measure(delta.snapshot)
            return sequence

        return pb.UpsertResponse(delta_sequence=await self._in(self._writer, change))

    async def Delete(self, request: pb.DeleteRequest, context: Context) -> pb.DeleteResponse:
        """Hides ads."""
        deadline = Deadline.of(context)
        ad_ids = requests.parse_delete(request, self._config)

        def change() -> tuple[int, int]:
            deadline.check("storing the change")
            delta = self._current()
            result = delta.delete(ad_ids)
            self._changed.labels("delete").inc(result[1])
            self._measure(delta.snapshot)
            return result

        sequence, deleted = await self._in(self._writer, change)
        return pb.DeleteResponse(delta_sequence=sequence, deleted=deleted)

    async def GetInfo(self, request: pb.GetInfoRequest, context: Context) -> pb.GetInfoResponse:
        """Tells versions, sizes, limits and filter fields."""
        snapshot, config = self._current().snapshot, self._config
        index, table = snapshot.index, snapshot.index.calibration
        fields = [pb.FilterField(name=name, numeric=False) for name in index.columns.strings]
        fields += [pb.FilterField(name=name, numeric=True) for name in index.columns.numbers]
        points = [
            pb.CalibrationPoint(lists=lists, k=k, mean_recall=float(table.mean_recall[row, column]))
            for row, k in enumerate(table.ks)
            for column, lists in enumerate(table.budgets.tolist())
        ]
        return pb.GetInfoResponse(
            versions=_versions(snapshot),
            index_kind=index.kind,
            encoder=index.encoder,
            ads=snapshot.ads,
            dimension=index.dimension,
            lists=index.lists,
            filter_fields=fields,
            calibration=points,
            limits=pb.Limits(
                max_k=config.max_k,
                max_batch=config.max_batch,
                max_batch_results=config.max_batch_results,
                max_filter_conditions=config.max_filter_conditions,
                max_filter_values=config.max_filter_values,
                max_delete=config.max_delete,
                max_delta=config.max_delta,
                max_message_bytes=config.max_message_bytes,
                max_concurrent=config.max_concurrent,
            ),
            stop_model_fault=index.stop_model_fault,
        )

    async def SwapIndex(self, request: pb.SwapIndexRequest, context: Context) -> pb.SwapIndexResponse:
        """Serves another index instead of the current one, which lives on until its last search ends.

        Its stop model comes with it, as a part of it, so that no model ever serves another index.
        An index of another encoder is refused: queries are embedded by the inference service, and vectors of
        two encoders are not comparable, so such an answer would be silently wrong. Change the encoder by
        restarting both services with the new bundles.
        """
        path, stop_model = requests.parse_swap(request)
        deadline = Deadline.of(context)
        async with self._swapping:
            deadline.check("loading the index")
            current = self._current().snapshot
            try:
                index = await self._in(
                    self._loader,
                    lambda: self._load.index(
                        Path(path), stop_model or self._config.stop_model, current.index.encoder
                    ),
                )
                deadline.check("swapping the index")
                before, after = await self._in(self._writer, lambda: self._install(index))
            except (UserError, FailedPrecondition) as error:
                self._swaps.labels("rejected").inc()
                if isinstance(error, FailedPrecondition):
                    raise
                raise FailedPrecondition(
                    "INDEX_REJECTED",
                    str(error),
                    subject=request.path,
                    remedy="the current index stays; build the bundle again",
                    path=request.path,
                ) from error
        self._swaps.labels("unchanged" if before is after else "swapped").inc()
        return pb.SwapIndexResponse(previous=_versions(before or after), current=_versions(after))

    def _current(self) -> Delta:
        assert self._delta is not None  # the runtime admits no call before start() returned
        return self._delta

    async def _in(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    async def _search(self, snapshot: Snapshot, query: Query, deadline: Deadline) -> tuple[Answers, int]:
        answers, queue_us = await self._batcher.search(Request(snapshot, query, deadline))
        self._observer.searched(answers, queue_us)
        return answers, queue_us

    def _install(self, index: LoadedIndex) -> tuple[Snapshot | None, Snapshot]:
        """Opens the delta of an index and serves both; on the writer thread, so no change is under way."""
        old = self._delta
        if old is not None and old.snapshot.index.fingerprint == index.fingerprint:
            before = old.snapshot
            if before.index.model_fingerprint != index.model_fingerprint:
                old.serve(index)
                self._measure(old.snapshot)
            return before, old.snapshot
        folder = Path(self._config.delta_dir)
        new = Delta(index, folder, self._config.max_delta)
        if new.torn_bytes:
            self._log.warning("delta_log_tail_cut", bytes=new.torn_bytes, fingerprint=index.fingerprint)
        self._delta = new
        self._measure(new.snapshot)
        if old is None:
            return None, new.snapshot
        left = old.snapshot
        old.close()
        if left.changes:
            # They stay in the log of the old index; whether the new build holds them its owner knows.
            self._log.warning("delta_left_behind", fingerprint=left.index.fingerprint, changes=left.changes)
        return left, new.snapshot

    def _measure(self, snapshot: Snapshot) -> None:
        self._ads.set(snapshot.ads)
        self._changes.set(snapshot.changes)
        self._model.set(snapshot.index.stop_model is not None)


def build(config: RetrievalConfig, runtime: Runtime[RetrievalConfig]) -> RetrievalServer:
    """The retrieval service for `services.runtime.server`."""
    return RetrievalServer(config, runtime)


def _us_since(start_ns: int) -> int:
    return (time.perf_counter_ns() - start_ns) // 1000


def _versions(snapshot: Snapshot) -> pb.Versions:
    index = snapshot.index
    return pb.Versions(
        index=index.fingerprint, model=index.model_fingerprint, delta_sequence=snapshot.sequence
    )


def _degraded(row: Answer) -> list[pb.DegradedReason.ValueType]:
    reasons = []
    if row.fixed_budget:
        reasons.append(pb.DEGRADED_REASON_FIXED_BUDGET)
    if row.stopped == DEADLINE:
        reasons.append(pb.DEGRADED_REASON_DEADLINE)
    return reasons


def _response(
    snapshot: Snapshot, answers: Answers, row: Answer, queue_us: int, total_us: int
) -> pb.SearchResponse:
    return pb.SearchResponse(
        ad_ids=row.ad_ids.tolist(),
        similarities=row.similarities.tolist(),
        truncated=row.truncated,
        work=pb.Work(
            lists_planned=row.lists_planned,
            lists_visited=row.lists_visited,
            codes_scanned=row.codes_scanned,
            model_calls=row.model_calls,
        ),
        stop_reason=_STOPPED[row.stopped],
        predicted_recall=row.recall,
        degraded_reasons=_degraded(row),
        versions=_versions(snapshot),
        timings=pb.Timings(
            queue_us=queue_us, filter_us=answers.filter_us, scan_us=answers.scan_us, total_us=total_us
        ),
    )
