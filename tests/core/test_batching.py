"""The batching policy, without model, clock or thread."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from services.core.batching import BatchQueue, QueueFull, Release, Request, Row, run_isolated

NEVER_S = float("inf")


def queue(
    batch_rows: int = 4, batch_tokens: int = 64, queue_rows: int = 100, queue_tokens: int = 10_000
) -> BatchQueue[str]:
    return BatchQueue(
        max_batch_rows=batch_rows,
        max_batch_tokens=batch_tokens,
        max_queue_rows=queue_rows,
        max_queue_tokens=queue_tokens,
    )


def request(*widths: int, name: str = "r", expires_at_s: float = NEVER_S) -> Request[str]:
    return Request([f"{name}{i}" for i in range(len(widths))], widths, expires_at_s)


def taken(q: BatchQueue[str], now_s: float = 0.0) -> list[str]:
    batch, _ = q.take(now_s)
    return [row.payload for row in batch.rows] if batch else []


def test_an_idle_server_runs_a_single_row_at_once() -> None:
    q = queue()
    q.admit(request(8, name="only"))
    batch, expired = q.take(0.0)
    assert batch is not None
    assert [row.payload for row in batch.rows] == ["only0"]
    assert (batch.width, batch.release, expired) == (8, Release.DRAINED, [])
    assert q.take(0.0) == (None, [])


def test_a_batch_has_one_width_and_starts_with_the_oldest_row() -> None:
    q = queue()
    q.admit(request(16, 8, name="a"))
    q.admit(request(8, 16, name="b"))
    assert taken(q) == ["a0", "b1"]
    assert taken(q) == ["a1", "b0"]


@pytest.mark.parametrize(
    ("widths", "first", "release"),
    [
        ([8] * 5, 4, Release.ROWS),
        ([32] * 3, 2, Release.TOKENS),
        ([8] * 4, 4, Release.DRAINED),
        ([16] * 5, 4, Release.ROWS),
    ],
)
def test_rows_and_padded_tokens_bound_a_batch(widths: list[int], first: int, release: Release) -> None:
    q = queue(batch_rows=4, batch_tokens=64)
    q.admit(request(*widths))
    batch, _ = q.take(0.0)
    assert batch is not None
    assert (len(batch.rows), batch.release) == (first, release)


def test_rows_inside_one_request_count_like_requests() -> None:
    """BentoML#3859: a batch limit that counted requests let one request of many rows pass it."""
    q = queue(batch_rows=4)
    q.admit(request(*[8] * 10))
    assert [len(taken(q)) for _ in range(4)] == [4, 4, 2, 0]


def test_a_row_wider_than_a_batch_runs_alone() -> None:
    q = queue(batch_tokens=64)
    q.admit(request(128, 128))
    assert taken(q) == ["r0"]


def test_admission_is_by_rows_and_tokens_and_all_or_nothing() -> None:
    """text-embeddings-inference#662: the same rows fit or not however they are cut into requests."""
    whole, singles = queue(queue_rows=2), queue(queue_rows=2)
    with pytest.raises(QueueFull, match="0 rows queued and 3 more; at most 2"):
        whole.admit(request(8, 8, 8))
    singles.admit(request(8))
    singles.admit(request(8))
    with pytest.raises(QueueFull, match="2 rows queued and 1 more; at most 2"):
        singles.admit(request(8))
    q = queue(queue_tokens=40)
    q.admit(request(16, 16))
    with pytest.raises(QueueFull, match="32 tokens queued and 16 more; at most 40"):
        q.admit(request(8, 8))
    assert (q.rows, q.tokens) == (2, 32)
    q.admit(request(8))


def test_expired_requests_are_dropped_before_they_cost_anything() -> None:
    q = queue()
    late = request(8, 16, name="late", expires_at_s=5.0)
    q.admit(late)
    q.admit(request(8, name="live", expires_at_s=6.0))
    batch, expired = q.take(5.0)
    assert expired == [late]
    assert batch is not None
    assert [row.payload for row in batch.rows] == ["live0"]
    assert (q.rows, q.tokens) == (0, 0)


def test_a_queue_of_expired_requests_only_gives_no_batch() -> None:
    q = queue()
    dead = [request(8, 24, expires_at_s=1.0) for _ in range(30)]
    for r in dead:
        q.admit(r)
    assert q.take(2.0) == (None, dead)
    assert q.rows == 0


def test_a_withdrawn_request_frees_its_place() -> None:
    q = queue(queue_rows=4)
    for _ in range(10_000):
        r = request(8, 16, 24, 8)
        q.admit(r)
        q.withdraw(r)
    assert (q.rows, q.tokens, q._lanes) == (0, 0, {})


def test_withdrawing_after_the_batch_formed_touches_the_rest_only() -> None:
    q = queue(batch_rows=2)
    r = request(8, 8, 8)
    q.admit(r)
    assert taken(q) == ["r0", "r1"]
    q.withdraw(r)
    q.withdraw(r)
    assert q.rows == 0


def rows_of(*names: str) -> list[Row[str]]:
    r: Request[str] = Request(names, [8] * len(names), NEVER_S)
    return [Row(r, index) for index in range(len(names))]


@pytest.mark.parametrize("poison", [{"c"}, {"a", "h"}, set("abcdefgh"), set()])
def test_a_poisonous_row_fails_alone(poison: set[str]) -> None:
    """infinity#242, #544: one exception ended the worker for everybody."""
    runs = 0

    def run(rows: object) -> list[str]:
        nonlocal runs
        runs += 1
        names = [row.payload for row in rows]  # type: ignore[attr-defined]
        if poison & set(names):
            raise RuntimeError("poison")
        return [name.upper() for name in names]

    results = run_isolated(rows_of(*"abcdefgh"), run)
    for name, result in zip("abcdefgh", results, strict=True):
        if name in poison:
            assert isinstance(result, RuntimeError)
        else:
            assert result == name.upper()
    assert runs <= (1 if not poison else 15)
    if len(poison) == 1:
        assert runs == 1 + 2 * 3


def test_a_run_that_returns_too_few_results_is_a_failure_not_a_shift() -> None:
    results = run_isolated(rows_of("a", "b"), lambda rows: ["x"])
    assert results == ["x", "x"]  # each alone gets its one result
    results = run_isolated(rows_of("a"), lambda rows: [])
    assert isinstance(results[0], ValueError)


class QueueMachine(RuleBasedStateMachine):
    """Random admissions, withdrawals, batches and time against a plain list of what waits."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.queue = queue(batch_rows=3, batch_tokens=40, queue_rows=12, queue_tokens=200)
        self.waiting: list[tuple[Request[str], int]] = []
        self.now_s = 0.0

    @rule(
        target=requests,
        widths=st.lists(st.sampled_from([8, 16, 24, 48]), min_size=1, max_size=5),
        lifetime_s=st.sampled_from([0.0, 1.0, 3.0, NEVER_S]),
    )
    def admit(self, widths: list[int], lifetime_s: float) -> object:
        r = request(*widths, expires_at_s=self.now_s + lifetime_s)
        fits = len(self.waiting) + len(widths) <= 12 and self._tokens() + sum(widths) <= 200
        if not fits:
            with pytest.raises(QueueFull):
                self.queue.admit(r)
            return multiple()
        self.queue.admit(r)
        self.waiting += [(r, index) for index in range(len(widths))]
        return r

    @rule(r=consumes(requests))
    def withdraw(self, r: Request[str]) -> None:
        self.queue.withdraw(r)
        self.waiting = [(other, index) for other, index in self.waiting if other is not r]

    @rule()
    def pass_time(self) -> None:
        self.now_s += 1.0

    @rule()
    def take(self) -> None:
        batch, expired = self.queue.take(self.now_s)
        assert all(r.expires_at_s <= self.now_s for r in expired)
        self.waiting = [(r, index) for r, index in self.waiting if all(r is not gone for gone in expired)]
        if batch is None:
            assert not self.waiting
            return
        oldest = next((r, i) for r, i in self.waiting if r.expires_at_s > self.now_s)
        assert (batch.rows[0].request, batch.rows[0].index) == oldest
        chosen = [(row.request, row.index) for row in batch.rows]
        same_width = [(r, i) for r, i in self.waiting if r.widths[i] == batch.width]
        live = [(r, i) for r, i in same_width if r.expires_at_s > self.now_s]
        assert chosen == live[: len(chosen)]
        assert len(chosen) <= 3
        assert len(chosen) == 1 or batch.width * len(chosen) <= 40
        assert (batch.release is Release.DRAINED) == (len(chosen) == len(live))
        self.waiting = [entry for entry in self.waiting if entry not in chosen]

    @invariant()
    def counts_are_exact(self) -> None:
        assert self.queue.rows == len(self.waiting)
        assert self.queue.tokens == self._tokens()
        assert all(self.queue._lanes.values())

    def _tokens(self) -> int:
        return sum(r.widths[index] for r, index in self.waiting)


TestQueueMachine = QueueMachine.TestCase
