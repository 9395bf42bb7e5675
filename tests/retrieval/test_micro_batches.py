"""Micro-batches: what queued is searched together, and every answer is the one that it would be alone."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from retrieval.small_world import NEVER, Served, World, load_folder, on_server, query

from frugalads.retrieval.v1 import retrieval_pb2 as pb
from frugalads.retrieval.v1 import retrieval_pb2_grpc as rpc
from services.retrieval import requests
from services.retrieval.batching import MAX_ROWS, Batcher
from services.retrieval.config import RetrievalConfig
from services.retrieval.delta import Delta, Snapshot
from services.retrieval.index import LoadedIndex
from services.retrieval.plan import Exact, MeanRecall
from services.retrieval.search import Answers, Request, search, search_all
from services.runtime.deadlines import Deadline
from services.runtime.errors import DeadlineExceeded, ServiceError

CLIENTS = 100


@pytest.fixture(scope="module")
def snapshot(index: LoadedIndex, tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return Delta(index, tmp_path_factory.mktemp("delta"), 10).snapshot


def request_of(world: World, snapshot: Snapshot, rows: int = 1, deadline: Deadline = NEVER) -> Request:
    return Request(snapshot, query(world.queries[:rows], 5, Exact()), deadline)


class Bench:
    """A batcher whose workers wait until they are let go, and the batches that it formed."""

    def __init__(
        self, workers: int, answer: Callable[[Sequence[Request]], list[Answers | ServiceError]]
    ) -> None:
        self.formed: list[int] = []
        self.gate = threading.Event()
        self.pool = ThreadPoolExecutor(workers)
        self.batcher = Batcher(self.pool, workers, self._answer, self.formed.append)
        self._real = answer
        self.asked = 0
        self._held = threading.Semaphore(0)

    def _answer(self, batch: Sequence[Request]) -> list[Answers | ServiceError]:
        self._held.release()
        self.gate.wait(20)
        self.asked += len(batch)
        return self._real(batch)

    async def busy(self, workers: int) -> None:
        """Returns when so many batches were taken up."""
        for _ in range(workers):
            assert await asyncio.to_thread(self._held.acquire, timeout=20)

    async def send(self, requests: Sequence[Request]) -> list[asyncio.Task[Any]]:
        """Tasks that wait for these, all of them queued."""
        tasks = [asyncio.create_task(self.batcher.search(request)) for request in requests]
        await asyncio.sleep(0)
        return tasks


def on_bench(
    workers: int,
    answer: Callable[[Sequence[Request]], list[Answers | ServiceError]],
    body: Callable[[Bench], Awaitable[None]],
) -> None:
    async def main() -> None:
        bench = Bench(workers, answer)
        try:
            await body(bench)
        finally:
            bench.gate.set()
            await asyncio.to_thread(bench.pool.shutdown)

    asyncio.run(main())


def answered(batch: Sequence[Request]) -> list[Answers | ServiceError]:
    return search_all(batch, 0)


def test_what_queues_behind_a_busy_worker_is_the_next_batch(world: World, snapshot: Snapshot) -> None:
    async def body(bench: Bench) -> None:
        tasks = await bench.send([request_of(world, snapshot)])
        await bench.busy(1)
        tasks += await bench.send([request_of(world, snapshot) for _ in range(9)])
        bench.gate.set()
        for answers, queue_us in await asyncio.gather(*tasks):
            assert len(answers.rows[0].ad_ids) == 5
            assert queue_us >= 0
        assert bench.formed == [1, 9]

    on_bench(1, answered, body)


def test_workers_share_a_queue_and_a_batch_is_bounded(world: World, snapshot: Snapshot) -> None:
    async def body(bench: Bench) -> None:
        first = await bench.send([request_of(world, snapshot) for _ in range(2)])
        await bench.busy(2)
        rest = await bench.send([request_of(world, snapshot, rows=8) for _ in range(3 * MAX_ROWS // 8)])
        rest += await bench.send([request_of(world, snapshot, rows=200)])
        bench.gate.set()
        await asyncio.gather(*first, *rest)
        assert sum(bench.formed) == 2 + 3 * MAX_ROWS + 200
        assert max(bench.formed) == 200
        assert sorted(bench.formed)[-2] <= MAX_ROWS
        assert len([rows for rows in bench.formed if rows == 1]) == 2

    on_bench(2, answered, body)


def test_callers_that_left_cost_nothing(world: World, snapshot: Snapshot) -> None:
    async def body(bench: Bench) -> None:
        kept = await bench.send([request_of(world, snapshot)])
        await bench.busy(1)
        gone = await bench.send([request_of(world, snapshot) for _ in range(20)])
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        kept += await bench.send([request_of(world, snapshot)])
        bench.gate.set()
        await asyncio.gather(*kept)
        assert bench.asked == 2

    on_bench(1, answered, body)


def test_one_that_fails_leaves_the_others_of_its_batch_alone(world: World, snapshot: Snapshot) -> None:
    late = request_of(world, snapshot, deadline=Deadline.after(-1))
    outcomes = search_all([request_of(world, snapshot), late, request_of(world, snapshot)], 0)
    assert isinstance(outcomes[1], DeadlineExceeded)
    assert isinstance(outcomes[0], Answers)
    assert isinstance(outcomes[2], Answers)
    assert outcomes[0].rows[0].ad_ids.tolist() == outcomes[2].rows[0].ad_ids.tolist()


def test_a_fault_fails_its_batch_and_the_worker_lives_on(world: World, snapshot: Snapshot) -> None:
    faults = [True, False]

    def faulty(batch: Sequence[Request]) -> list[Answers | ServiceError]:
        if faults.pop(0):
            raise RuntimeError("a fault of ours")
        return answered(batch)

    async def body(bench: Bench) -> None:
        bench.gate.set()
        with pytest.raises(RuntimeError, match="a fault of ours"):
            await bench.batcher.search(request_of(world, snapshot))
        answers, _ = await bench.batcher.search(request_of(world, snapshot))
        assert len(answers.rows) == 1

    on_bench(1, faulty, body)


def targets() -> list[pb.Target]:
    return [
        pb.Target(mean_recall=0.75),
        pb.Target(mean_recall=0.95),
        pb.Target(coverage=pb.Coverage(recall=0.9, share=0.9)),
        pb.Target(budget=pb.Budget(lists=2)),
        pb.Target(budget=pb.Budget(lists=17)),
        pb.Target(exact=pb.Exact()),
    ]


def test_a_hundred_clients_with_different_targets_get_what_each_would_get_alone(
    world: World, index_folder: Path, tmp_path: Path
) -> None:
    """Bit for bit, also the work; and searches run on at most as many threads as there are cores."""
    some = pb.Condition(field="category", none_of=pb.StringSet(values=["c1"]))
    wanted = [
        [
            pb.SearchRequest(
                vector=world.queries[(7 * client + turn) % 200],
                k=(1, 3, 10, 60)[(client + turn) % 4],
                filter=pb.Filter(conditions=[some] if client % 5 == 0 else []),
                target=targets()[(client + turn) % 6],
            )
            for turn in range(6)
        ]
        for client in range(CLIENTS)
    ]
    config = RetrievalConfig(exact_below=0)
    alone = Delta(load_folder(index_folder), tmp_path / "alone", 10)

    def serial(request: pb.SearchRequest) -> tuple[Any, ...]:
        asked = requests.parse_search(request, alone.snapshot.index, config)
        row = search(alone.snapshot, asked, 0, NEVER).rows[0]
        work = (row.lists_planned, row.lists_visited, row.codes_scanned, row.model_calls)
        return row.ad_ids.tolist(), row.similarities.tolist(), work, row.recall

    def parts(answer: pb.SearchResponse) -> tuple[Any, ...]:
        work = answer.work
        return (
            list(answer.ad_ids),
            list(answer.similarities),
            (work.lists_planned, work.lists_visited, work.codes_scanned, work.model_calls),
            answer.predicted_recall,
        )

    async def body(live: Served) -> None:
        threads: list[int] = []

        async def client(number: int) -> list[pb.SearchResponse]:
            options = (("grpc.use_local_subchannel_pool", 1),)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{live.port}", options) as channel:
                stub = rpc.RetrievalServiceStub(channel)
                answers = [await stub.Search(request) for request in wanted[number]]
                threads.append(sum(thread.name.startswith("search") for thread in threading.enumerate()))
                return answers

        answers = await asyncio.gather(*map(client, range(CLIENTS)))
        assert max(threads) <= (os.cpu_count() or 1)
        for number, given in enumerate(answers):
            assert [parts(answer) for answer in given] == [serial(request) for request in wanted[number]]

    on_server(index_folder, tmp_path / "delta", body, exact_below=0)
    alone.close()


def test_rows_of_different_targets_share_a_batch_and_keep_their_answers(
    world: World, snapshot: Snapshot
) -> None:
    asked = [
        Request(snapshot, query(world.queries[i], 10, MeanRecall(0.5 + 0.005 * i)), NEVER) for i in range(90)
    ]
    for request, together in zip(asked, search_all(asked, 0), strict=True):
        alone = search(request.snapshot, request.query, 0, NEVER).rows[0]
        assert isinstance(together, Answers)
        assert np.array_equal(together.rows[0].ad_ids, alone.ad_ids)
        assert np.array_equal(together.rows[0].similarities, alone.similarities)
        assert together.rows[0].codes_scanned == alone.codes_scanned
