import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

from services.core.single_flight import CoolDowns, SingleFlight, TooManyComputations


class Computation:
    """Counts its starts and ends when told."""

    def __init__(self) -> None:
        self.started = 0
        self.release = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> str:
        self.started += 1
        number = self.started
        await self.release.wait()
        if self.error is not None:
            raise self.error
        return f"result {number}"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def flights(
    timeout_s: float = 5.0, max_running: int = 8, clock: Clock | None = None
) -> tuple[SingleFlight[str], CoolDowns]:
    clock = clock or Clock()
    cool_downs = CoolDowns(1.0, 8.0, capacity=4, clock=clock)
    return SingleFlight(timeout_s, max_running, cool_downs, clock), cool_downs


async def turn() -> None:
    """Let everything that is ready run."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_thousand_callers_share_one_computation() -> None:
    async def scenario() -> None:
        flight, _ = flights()
        compute = Computation()
        callers = [asyncio.create_task(flight.run("k", compute, 100.0)) for _ in range(1000)]
        await turn()
        assert flight.is_running("k")
        compute.release.set()
        assert set(await asyncio.gather(*callers)) == {"result 1"}
        assert compute.started == 1
        assert len(flight) == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("cancelled", list(itertools.permutations(range(3), 2)))
def test_cancelled_callers_harm_nobody(cancelled: tuple[int, ...]) -> None:
    async def scenario() -> None:
        flight, _ = flights()
        compute = Computation()
        callers = [asyncio.create_task(flight.run("k", compute, 100.0)) for _ in range(3)]
        await turn()
        for i in cancelled:
            callers[i].cancel()
            await turn()
        compute.release.set()
        results = await asyncio.gather(*callers, return_exceptions=True)
        for i, result in enumerate(results):
            assert isinstance(result, asyncio.CancelledError) if i in cancelled else result == "result 1"
        assert compute.started == 1

    asyncio.run(scenario())


def test_a_computation_whose_callers_are_all_gone_finishes() -> None:
    async def scenario() -> None:
        flight, _ = flights()
        compute = Computation()
        caller = asyncio.create_task(flight.run("k", compute, 100.0))
        await turn()
        caller.cancel()
        await turn()
        assert flight.is_running("k")
        compute.release.set()
        await turn()
        assert not flight.is_running("k")
        assert await flight.run("k", compute, 100.0) == "result 1"

    asyncio.run(scenario())


def test_an_unheard_failure_makes_no_noise() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        complaints: list[object] = []
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        flight, _ = flights()
        compute = Computation()
        compute.error = RuntimeError("upstream")
        caller = asyncio.create_task(flight.run("k", compute, 100.0))
        await turn()
        caller.cancel()
        compute.release.set()
        await turn()
        del caller
        await turn()
        assert complaints == []

    asyncio.run(scenario())


def test_a_failure_reaches_every_waiter_and_is_forgotten() -> None:
    async def scenario() -> None:
        flight, cool_downs = flights()
        compute = Computation()
        compute.error = RuntimeError("upstream")
        compute.release.set()
        results = await asyncio.gather(
            *(flight.run("k", compute, 100.0) for _ in range(3)), return_exceptions=True
        )
        assert [str(r) for r in results] == ["upstream"] * 3
        assert compute.started == 1
        assert not flight.is_running("k")
        assert cool_downs.is_cooling("k")
        compute.error = None
        assert await flight.run("k", compute, 100.0) == "result 2"
        assert not cool_downs.is_cooling("k")

    asyncio.run(scenario())


def test_a_computation_ends_at_its_deadline() -> None:
    async def scenario() -> None:
        flight, cool_downs = flights(timeout_s=0.01)
        with pytest.raises(TimeoutError):
            await flight.run("k", Computation(), 100.0)
        assert not flight.is_running("k")
        assert cool_downs.is_cooling("k")

    asyncio.run(scenario())


def test_a_result_newer_than_the_callers_look_is_handed_over() -> None:
    async def scenario() -> None:
        clock = Clock()
        flight, _ = flights(clock=clock)
        compute = Computation()
        compute.release.set()
        await flight.run("k", compute, clock.now)
        looked_before, looked_after = clock.now - 0.001, clock.now + 0.001
        assert await flight.run("k", compute, looked_before) == "result 1"
        assert await flight.run("k", compute, looked_after) == "result 2"

    asyncio.run(scenario())


def test_no_more_computations_than_allowed() -> None:
    async def scenario() -> None:
        flight, _ = flights(max_running=2)
        compute = Computation()
        callers = [asyncio.create_task(flight.run(k, compute, 100.0)) for k in "ab"]
        await turn()
        with pytest.raises(TooManyComputations):
            await flight.run("c", compute, 100.0)
        sharing = asyncio.create_task(flight.run("a", compute, 100.0))
        await turn()
        compute.release.set()
        await asyncio.gather(*callers, sharing)
        assert await flight.run("c", compute, 101.0) == "result 3"

    asyncio.run(scenario())


def test_closing_ends_what_runs() -> None:
    async def scenario() -> None:
        flight, _ = flights()
        caller = asyncio.create_task(flight.run("k", Computation(), 100.0))
        await turn()
        await flight.close()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert len(flight) == 0

    asyncio.run(scenario())


def test_many_keys_leave_nothing_behind() -> None:
    async def scenario() -> None:
        clock = Clock()
        flight, _ = flights(max_running=10_000, clock=clock)

        async def at_once(result: str) -> str:
            return result

        def computing(result: str) -> Callable[[], Awaitable[str]]:
            return lambda: at_once(result)

        for i in range(5000):
            clock.now += 0.001
            assert await flight.run(i, computing(str(i)), clock.now) == str(i)
        assert len(flight) == 0
        assert len(flight._finished) <= 1024

    asyncio.run(scenario())


def test_cool_downs_double_up_to_their_cap_and_end_with_success() -> None:
    clock = Clock()
    cool_downs = CoolDowns(1.0, 3.0, clock=clock)
    for expected_s in (1.0, 2.0, 3.0, 3.0):
        cool_downs.failure("k")
        clock.now += expected_s - 0.01
        assert cool_downs.is_cooling("k")
        clock.now += 0.02
        assert not cool_downs.is_cooling("k")
    cool_downs.success("k")
    cool_downs.failure("k")
    clock.now += 1.01
    assert not cool_downs.is_cooling("k")


def test_cool_downs_are_bounded() -> None:
    cool_downs = CoolDowns(1.0, 8.0, capacity=2, clock=Clock())
    for key in "abc":
        cool_downs.failure(key)
    assert [cool_downs.is_cooling(key) for key in "abc"] == [False, True, True]
