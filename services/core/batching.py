"""Batches that form from what has queued while the worker was busy.

Problem. An encoder runs 32 short texts in the time of about 12 single ones, but a timer that waits for
company delays every caller of an idle server. So there is no timer: whoever finds the worker idle runs at
once and alone, and under load the queue that builds up behind a running batch is the next batch. That is the
policy of text-embeddings-inference; the Triton documentation advises the same start, a queue delay of 0.

Lanes. The float parts of a quantized encoder round differently for different padded lengths, and INT8
rounding turns a last-bit difference into a visible one. A row is therefore always padded to a length that
depends on nothing but itself (its `width`), and a batch holds rows of one width. A lane is the queue of one
width.

Policy. The next batch comes from the lane whose head has waited longest, in arrival order, until
`max_batch_rows` or `max_batch_tokens` (padded tokens: they are what a batch costs) is reached or the lane is
empty. One row always fits. No row starves: a batch starts with the oldest row of all. A request that has
expired when a batch meets it is dropped with all its rows and costs nothing. Requests are admitted whole or
refused whole, by rows and by tokens, however the same rows are cut into requests
(text-embeddings-inference#662). Rows of a running batch no longer count as queued.

Invariants: 0 <= rows <= max_queue_rows and 0 <= tokens <= max_queue_tokens; both equal the sums over the
lanes; no lane is empty; a withdrawn request leaves nothing behind, so memory is bounded even when clients
queue and cancel faster than the worker runs. Costs: admit and withdraw are linear in the rows of the request,
take in the rows it removes, plus the number of lanes. No clock, no lock, no thread: the caller has those.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Release(Enum):
    """Why a batch was closed."""

    ROWS = "rows"  # max_batch_rows reached
    TOKENS = "tokens"  # another row would have passed max_batch_tokens
    DRAINED = "drained"  # no more rows of this width were waiting


class QueueFull(Exception):
    """The request does not fit into the queue now."""


@dataclass(eq=False, slots=True)
class Request(Generic[T]):
    """Rows that are answered together. Compared by identity.

    payloads: one a row, passed through. widths: padded tokens of each row, 1 or more. expires_at_s: on the
    clock that `take` is called with.
    """

    payloads: Sequence[T]
    widths: Sequence[int]
    expires_at_s: float
    _places: dict[int, int] = field(default_factory=dict)  # row -> arrival number, while it queues


@dataclass(frozen=True, slots=True)
class Row(Generic[T]):
    """One row of a request; `index` is its place there."""

    request: Request[T]
    index: int

    @property
    def payload(self) -> T:
        """What its request carries for it."""
        return self.request.payloads[self.index]


@dataclass(frozen=True, slots=True)
class Batch(Generic[T]):
    """Rows of one width to run now, oldest first."""

    rows: Sequence[Row[T]]
    width: int
    release: Release


class BatchQueue(Generic[T]):
    """The bounded queue and its policy, see the top of this file."""

    def __init__(
        self, *, max_batch_rows: int, max_batch_tokens: int, max_queue_rows: int, max_queue_tokens: int
    ) -> None:
        self.max_batch_rows = max_batch_rows
        self.max_batch_tokens = max_batch_tokens
        self.max_queue_rows = max_queue_rows
        self.max_queue_tokens = max_queue_tokens
        self.rows = 0
        self.tokens = 0
        # width -> arrival number -> row. A plain dict would search for its first entry after many removals.
        self._lanes: dict[int, OrderedDict[int, Row[T]]] = {}
        self._arrivals = 0

    def admit(self, request: Request[T]) -> None:
        """Queues all rows of a request. Raises QueueFull, and then queues none."""
        rows, tokens = len(request.payloads), sum(request.widths)
        if self.rows + rows > self.max_queue_rows:
            raise QueueFull(f"{self.rows} rows queued and {rows} more; at most {self.max_queue_rows}")
        if self.tokens + tokens > self.max_queue_tokens:
            raise QueueFull(f"{self.tokens} tokens queued and {tokens} more; at most {self.max_queue_tokens}")
        for index, width in enumerate(request.widths):
            self._lanes.setdefault(width, OrderedDict())[self._arrivals] = Row(request, index)
            request._places[index] = self._arrivals
            self._arrivals += 1
        self.rows += rows
        self.tokens += tokens

    def withdraw(self, request: Request[T]) -> None:
        """Removes the rows of a request that still queue: it was cancelled, or it failed."""
        for index in list(request._places):
            self._remove(request, index)

    def take(self, now_s: float) -> tuple[Batch[T] | None, list[Request[T]]]:
        """The next batch, None when nothing queues; and the requests dropped because they had expired."""
        expired: list[Request[T]] = []
        while self._lanes:
            width = min(self._lanes, key=lambda width: next(iter(self._lanes[width])))
            oldest = next(iter(self._lanes[width].values())).request
            if oldest.expires_at_s > now_s:
                return self._form(width, now_s, expired), expired
            self.withdraw(oldest)
            expired.append(oldest)
        return None, expired

    def _form(self, width: int, now_s: float, expired: list[Request[T]]) -> Batch[T]:
        limit = max(1, min(self.max_batch_rows, self.max_batch_tokens // width))
        batch: list[Row[T]] = []
        while lane := self._lanes.get(width):
            row = next(iter(lane.values()))
            if row.request.expires_at_s <= now_s:
                self.withdraw(row.request)
                expired.append(row.request)
            elif len(batch) == limit:
                release = Release.ROWS if limit == self.max_batch_rows else Release.TOKENS
                return Batch(batch, width, release)
            else:
                self._remove(row.request, row.index)
                batch.append(row)
        return Batch(batch, width, Release.DRAINED)

    def _remove(self, request: Request[T], index: int) -> None:
        width = request.widths[index]
        lane = self._lanes[width]
        del lane[request._places.pop(index)]
        if not lane:
            del self._lanes[width]
        self.rows -= 1
        self.tokens -= width


def run_isolated(
    rows: Sequence[Row[T]], run: Callable[[Sequence[Row[T]]], Sequence[R]]
) -> list[R | Exception]:
    """Runs rows together; when that fails, halves them until each failure stands alone.

    One poisonous row of n costs 2 log2(n) more runs and nobody else's answer; where every row fails there
    are 2n - 1 runs in all. Returns a result or the exception of each row.
    """
    try:
        results = run(rows)
        if len(results) != len(rows):
            raise ValueError(f"{len(results)} results for {len(rows)} rows")
        return list(results)
    except Exception as error:
        if len(rows) == 1:
            return [error]
    middle = len(rows) // 2
    return [*run_isolated(rows[:middle], run), *run_isolated(rows[middle:], run)]
