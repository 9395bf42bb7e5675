"""The batcher: one worker thread, callers on the event loop, an encoder that does what a test tells it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from services.core.batching import Batch, BatchQueue, Release
from services.inference.batcher import Answer, Batcher, Tokens, Vectors
from services.runtime.deadlines import Deadline
from services.runtime.errors import DeadlineExceeded, Internal, ResourceExhausted, Unavailable

NO_DEADLINE = float("inf")


class ScriptedEncoder:
    """Its vector of a row is the sum of the row; it can be held, and fails on a 13."""

    def __init__(self) -> None:
        self.batches: list[list[Tokens]] = []
        self.running = threading.Event()
        self.free = threading.Event()
        self.free.set()

    def forward(self, rows: Sequence[Tokens]) -> Vectors:
        self.batches.append(list(rows))
        self.running.set()
        assert self.free.wait(20)
        if any(13 in row for row in rows):
            raise RuntimeError("poison")
        if any(666 in row for row in rows):
            raise SystemExit("the thread is killed")
        return np.array([[sum(row), 1.0] for row in rows], np.float32)


class Recorder:
    def __init__(self) -> None:
        self.releases: list[Release] = []
        self.waits_s: list[float] = []
        self.drops: list[str] = []
        self.failures: list[Exception] = []
        self.most_queued = 0

    def queued(self, rows: int) -> None:
        self.most_queued = max(self.most_queued, rows)

    def batch(self, batch: Batch[Tokens], seconds: float) -> None:
        self.releases.append(batch.release)

    def waited(self, seconds: float) -> None:
        self.waits_s.append(seconds)

    def dropped(self, why: str) -> None:
        self.drops.append(why)

    def failed(self, error: Exception) -> None:
        self.failures.append(error)


class Rig:
    """A batcher around a scripted encoder. Create it on a running event loop."""

    def __init__(self, *, batch_rows: int = 4, queue_rows: int = 100, queue_tokens: int = 10_000) -> None:
        self.encoder = ScriptedEncoder()
        self.recorder = Recorder()
        self.deaths: list[str] = []
        self.queue: BatchQueue[Tokens] = BatchQueue(
            max_batch_rows=batch_rows,
            max_batch_tokens=1000,
            max_queue_rows=queue_rows,
            max_queue_tokens=queue_tokens,
        )
        self.batcher = Batcher(self.encoder.forward, self.queue, self.recorder, self.deaths.append)

    async def run(self, *rows: int, timeout_s: float = NO_DEADLINE, width: int = 8) -> Answer:
        return await self.batcher.run([[row] for row in rows], [width] * len(rows), Deadline.after(timeout_s))

    def start(self, *rows: int, timeout_s: float = NO_DEADLINE, width: int = 8) -> asyncio.Task[Answer]:
        return asyncio.create_task(self.run(*rows, timeout_s=timeout_s, width=width))

    async def hold(self) -> asyncio.Task[Answer]:
        """Occupies the worker until `encoder.free` is set."""
        self.encoder.free.clear()
        self.encoder.running.clear()
        task = self.start(1)
        assert await asyncio.to_thread(self.encoder.running.wait, 10)
        return task

    async def queued(self, rows: int) -> None:
        await until(lambda: self.queue.rows == rows)

    async def close(self) -> None:
        self.encoder.free.set()
        await asyncio.to_thread(self.batcher.close)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the condition belongs to another thread
            await asyncio.sleep(0.001)


def sums(answer: Answer) -> list[float]:
    return [float(vector[0]) for vector in answer.vectors]


def test_an_idle_worker_runs_a_call_at_once_and_alone() -> None:
    async def scenario() -> None:
        rig = Rig()
        answer = await rig.run(5, 7)
        assert sums(answer) == [5, 7]
        assert answer.batch_rows == 2
        assert rig.recorder.releases == [Release.DRAINED]
        assert answer.queue_us >= 0
        assert answer.compute_us >= 0
        await rig.close()

    asyncio.run(scenario())


def test_calls_that_queue_behind_a_running_batch_form_the_next_one() -> None:
    """Triton#3624: batches were not formed while the model was busy."""

    async def scenario() -> None:
        rig = Rig()
        first = await rig.hold()
        others = [rig.start(number) for number in (2, 3, 4)]
        await rig.queued(3)
        rig.encoder.free.set()
        assert [sums(answer) for answer in await asyncio.gather(first, *others)] == [[1], [2], [3], [4]]
        assert rig.encoder.batches == [[[1]], [[2], [3], [4]]]
        assert {task.result().batch_rows for task in others} == {3}
        assert all(wait_s >= 0 for wait_s in rig.recorder.waits_s)
        await rig.close()

    asyncio.run(scenario())


def test_a_call_larger_than_a_batch_is_answered_in_order() -> None:
    async def scenario() -> None:
        rig = Rig(batch_rows=4)
        answer = await rig.run(*range(20, 31))
        assert sums(answer) == list(range(20, 31))
        assert rig.recorder.releases == [Release.ROWS, Release.ROWS, Release.DRAINED]
        await rig.close()

    asyncio.run(scenario())


def test_a_queued_call_expires_on_time_while_a_batch_runs() -> None:
    """Triton#7512: the queue timeout fired only when the running batch ended."""

    async def scenario() -> None:
        rig = Rig()
        held = await rig.hold()
        started_s = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            await rig.run(2, timeout_s=0.05)
        assert 0.04 <= time.monotonic() - started_s < 1.0
        assert not held.done()
        assert rig.queue.rows == 0
        rig.encoder.free.set()
        await held
        assert rig.encoder.batches == [[[1]]]
        assert rig.recorder.drops == ["expired"]
        await rig.close()

    asyncio.run(scenario())


def test_the_call_that_is_being_computed_expires_on_time_too() -> None:
    async def scenario() -> None:
        rig = Rig()
        rig.encoder.free.clear()
        with pytest.raises(DeadlineExceeded):
            await rig.run(1, timeout_s=0.05)
        rig.encoder.free.set()
        assert sums(await rig.run(2)) == [2]
        await rig.close()

    asyncio.run(scenario())


def test_a_call_without_time_left_costs_nothing() -> None:
    async def scenario() -> None:
        rig = Rig()
        with pytest.raises(DeadlineExceeded):
            await rig.run(1, timeout_s=0.0)
        assert rig.encoder.batches == []
        await rig.close()

    asyncio.run(scenario())


def test_cancelled_calls_leave_the_queue_and_harm_nobody() -> None:
    """TorchServe#1815: a cancelled client left the worker stuck. BentoML#3646: it starved the others."""

    async def scenario() -> None:
        rig = Rig()
        held = await rig.hold()
        tasks = [rig.start(number) for number in range(2, 12)]
        await rig.queued(10)
        for task in tasks[::2]:
            task.cancel()
        await rig.queued(5)
        held.cancel()
        await asyncio.wait([held])
        rig.encoder.free.set()
        answers = await asyncio.gather(*tasks[1::2])
        assert [sums(answer) for answer in answers] == [[3], [5], [7], [9], [11]]
        computed = [row for batch in rig.encoder.batches for row in batch]
        assert computed == [[1], [3], [5], [7], [9], [11]]
        assert rig.recorder.drops == ["cancelled"] * 6
        assert rig.batcher._calls == {}
        await rig.close()

    asyncio.run(scenario())


def test_a_poisonous_text_fails_its_own_call_only_and_the_worker_goes_on() -> None:
    """infinity#242, #544: one exception stopped the server for ever while health stayed green."""

    async def scenario() -> None:
        rig = Rig(batch_rows=8)
        await_first = await rig.hold()
        tasks = [rig.start(2), rig.start(3, 13, 4), rig.start(5)]
        await rig.queued(5)
        rig.encoder.free.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert sums(await await_first) == [1]
        assert isinstance(results[0], Answer)
        assert sums(results[0]) == [2]
        assert isinstance(results[1], Internal)
        assert results[1].metadata == {"index": "1"}
        assert isinstance(results[2], Answer)
        assert sums(results[2]) == [5]
        assert [str(error) for error in rig.recorder.failures] == ["poison"]
        assert sums(await rig.run(6)) == [6]
        assert rig.deaths == []
        await rig.close()

    asyncio.run(scenario())


def test_when_the_worker_dies_everyone_is_told_and_health_can_know() -> None:
    async def scenario() -> None:
        rig = Rig(batch_rows=1)
        held = await rig.hold()
        victim, waiting = rig.start(666), rig.start(2)
        await rig.queued(2)
        rig.encoder.free.set()
        assert sums(await held) == [1]
        for task in (victim, waiting):
            with pytest.raises(Unavailable, match="the encoder has stopped"):
                await task
        await until(lambda: bool(rig.deaths))
        assert "SystemExit" in rig.deaths[0]
        with pytest.raises(Unavailable):
            await rig.run(3)
        await rig.close()

    asyncio.run(scenario())


def test_a_full_queue_refuses_at_once_with_a_delay_to_retry_after() -> None:
    """text-embeddings-inference#811, #744: overload was a panic. hindsight#2991: clients need a delay."""

    async def scenario() -> None:
        rig = Rig(queue_rows=3, queue_tokens=100)
        held = await rig.hold()
        queued = [rig.start(2, 3), rig.start(4)]
        await rig.queued(3)
        with pytest.raises(ResourceExhausted, match="3 rows queued and 1 more; at most 3") as refusal:
            await rig.run(5)
        assert refusal.value.retry_after_ms is not None
        assert 1 <= refusal.value.retry_after_ms <= 10_000
        rig.encoder.free.set()
        await asyncio.gather(held, *queued)
        assert sums(await rig.run(5)) == [5]
        await rig.close()

    asyncio.run(scenario())


def test_mixed_lengths_under_load_all_get_their_own_answer() -> None:
    """text-embeddings-inference#97: a deadlock under mixed lengths."""

    async def scenario() -> None:
        rig = Rig(batch_rows=8, queue_rows=1000)
        numbers = [number for number in range(200) if number != 13]
        tasks = [rig.start(number, number + 1000, width=8 * (1 + number % 5)) for number in numbers]
        for task in tasks[::7]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for number, task, result in zip(numbers, tasks, results, strict=True):
            if isinstance(result, asyncio.CancelledError):
                assert task in tasks[::7]
            else:
                assert isinstance(result, Answer)
                assert sums(result) == [number, number + 1000]
        assert rig.queue.rows == 0
        assert rig.batcher._calls == {}
        await rig.close()

    asyncio.run(scenario())


def test_closing_finishes_what_has_queued_and_refuses_the_rest() -> None:
    async def scenario() -> None:
        rig = Rig()
        held = await rig.hold()
        queued = rig.start(2)
        await rig.queued(1)
        closing = asyncio.create_task(asyncio.to_thread(rig.batcher.close))
        await until(lambda: rig.batcher._closing)
        with pytest.raises(Unavailable):
            await rig.run(3)
        rig.encoder.free.set()
        await closing
        assert sums(await held) == [1]
        assert sums(await queued) == [2]

    asyncio.run(scenario())
