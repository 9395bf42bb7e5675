"""One computation per key at a time, shared by everyone who asks for it.

Problem. A popular query that is not in the cache arrives a thousand times while its first computation runs;
without care the upstream computes it a thousand times (yiisoft/cache#123, laravel/framework#61289). Sharing
brings faults of its own: a leader that is cancelled takes its followers along (aiocache#1041, cashews), a
failed computation leaves its mark and the key never recovers (caffeine#711), or every request retries a
failing upstream (streamlit#14690).

How. Each computation runs in a task of its own, which belongs to nobody: callers wait behind a shield, so any
of them, the first included, may be cancelled without harm to the others. A started computation is allowed to
finish even when all callers have gone (its result fills the cache), bounded by its own deadline. A caller
that looked at the cache before a computation ended but asks here after it would start a second one; `since`
closes that gap: results are remembered for a moment, and one that is newer than the caller's look is handed
over.

Invariants: at most one task a key; at most `max_running` tasks; a failure reaches every waiter of that task
and leaves no mark but the cool-down; all memory is bounded. Event-loop only. Complexity: O(1) a call.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")

SHARES = ("started", "joined", "remembered", "refused")
"""What a caller of `run` can get: a new computation, a running one, a result just finished, or nothing."""

_REMEMBERED_S = 1.0
_REMEMBERED_RESULTS = 1024


class TooManyComputations(Exception):
    """`max_running` computations are running already."""


class CoolDowns:
    """Keys whose last computation failed: not to be retried before a delay that doubles with each failure.

    first_s and longest_s: the delay after the first failure in a row, and its cap. The longest known keys are
    forgotten above `capacity`, which costs one more try.
    """

    def __init__(
        self,
        first_s: float,
        longest_s: float,
        capacity: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._first_s = first_s
        self._longest_s = longest_s
        self._capacity = capacity
        self._clock = clock
        self._failed: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()  # key -> until_s, delay_s

    def is_cooling(self, key: Hashable) -> bool:
        """Whether the key failed and its delay has not passed."""
        failed = self._failed.get(key)
        return failed is not None and self._clock() < failed[0]

    def failure(self, key: Hashable) -> None:
        """Start the delay, twice as long as the one before."""
        previous = self._failed.pop(key, None)
        delay_s = self._first_s if previous is None else min(2 * previous[1], self._longest_s)
        self._failed[key] = (self._clock() + delay_s, delay_s)
        if len(self._failed) > self._capacity:
            self._failed.popitem(last=False)

    def success(self, key: Hashable) -> None:
        """Forget the failures of the key."""
        self._failed.pop(key, None)


class SingleFlight(Generic[T]):
    """Runs computations, one a key.

    timeout_s: the deadline of each. max_running: bound on tasks. observe: told of each caller which of SHARES
    it got.
    """

    def __init__(
        self,
        timeout_s: float,
        max_running: int,
        cool_downs: CoolDowns,
        clock: Callable[[], float] = time.monotonic,
        observe: Callable[[str], None] = lambda share: None,
    ):
        self._observe = observe
        self._timeout_s = timeout_s
        self._max_running = max_running
        self._cool_downs = cool_downs
        self._clock = clock
        self._running: dict[Hashable, asyncio.Task[T]] = {}
        self._finished: OrderedDict[Hashable, tuple[float, T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._running)

    def is_running(self, key: Hashable) -> bool:
        """Whether the key is being computed."""
        return key in self._running

    async def run(self, key: Hashable, compute: Callable[[], Awaitable[T]], since_s: float) -> T:
        """The result of the key's computation: one that finished after `since_s` (on this object's clock),
        the running one, or a new one by `compute`.

        Raises what the computation raised, TimeoutError at its deadline, TooManyComputations when a new one
        is needed and no place is free.
        """
        finished = self._finished.get(key)
        if finished is not None and finished[0] >= since_s:
            self._observe("remembered")
            return finished[1]
        task = self._running.get(key)
        if task is None:
            if len(self._running) >= self._max_running:
                self._observe("refused")
                raise TooManyComputations
            self._observe("started")
            task = asyncio.create_task(self._compute(key, compute))
            self._running[key] = task
            task.add_done_callback(_retrieve)
        else:
            self._observe("joined")
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Cancel what runs and wait for it; callers see CancelledError."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _compute(self, key: Hashable, compute: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                result = await compute()
        except Exception:
            self._cool_downs.failure(key)
            raise
        else:
            self._cool_downs.success(key)
            self._remember(key, result)
            return result
        finally:
            self._running.pop(key, None)

    def _remember(self, key: Hashable, result: T) -> None:
        now = self._clock()
        self._finished[key] = (now, result)
        self._finished.move_to_end(key)
        while len(self._finished) > _REMEMBERED_RESULTS or (
            next(iter(self._finished.values()))[0] < now - _REMEMBERED_S
        ):
            self._finished.popitem(last=False)


def _retrieve(task: asyncio.Task[T]) -> None:
    """Mark a failure as seen: with all callers gone nobody else would, and asyncio would complain."""
    if not task.cancelled():
        task.exception()
