"""What every refresh policy of the live service keeps to, whatever its rule; and the fixed one."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.core.ads_list import AdsList, Versions
from services.core.refresh.adaptive import AdaptiveRefresh
from services.core.refresh.adaptive_ttl import AdaptiveTtl
from services.core.refresh.fixed import FixedRefresh
from services.core.refresh.none import NoRefresh
from services.core.refresh.policy import RefreshPolicy, similarity
from services.core.refresh.two_level import TwoLevelRefresh
from services.core.refresh.xfetch import XFetch

KEY, OTHER = b"k" * 16, b"o" * 16

# Each refreshes at every hit a second or more after the write.
EAGER: list[Callable[[], RefreshPolicy]] = [
    lambda: FixedRefresh(1),
    lambda: TwoLevelRefresh(lambda _: True),
    lambda: AdaptiveRefresh(lambda _: True),
    lambda: AdaptiveTtl(1000),
]


def written(at_ms: int, cost_us: int = 0) -> AdsList:
    return AdsList((), (), at_ms, cost_us, Versions())


def hits(policy: RefreshPolicy, times: int, at_ms: int = 1) -> list[bool]:
    """Decisions of some hits on the list that was written at `at_ms`, a second later."""
    return [policy.on_hit(KEY, written(at_ms), at_ms + 1000).refresh for _ in range(times)]


@pytest.mark.parametrize("make", EAGER)
def test_an_overtaken_reader_does_not_refresh_again(make: Callable[[], RefreshPolicy]) -> None:
    policy = make()
    policy.on_write(KEY, written(5), None)
    assert not policy.on_hit(KEY, written(4), 10_000).refresh
    assert policy.on_hit(KEY, written(5), 10_000).refresh


@pytest.mark.parametrize("make", EAGER)
def test_a_failed_refresh_stays_due(make: Callable[[], RefreshPolicy]) -> None:
    policy = make()
    policy.on_write(KEY, written(1), None)
    assert hits(policy, 3) == [True] * 3


@pytest.mark.parametrize("make", EAGER)
def test_a_list_of_another_process_is_judged_as_if_it_were_ours(make: Callable[[], RefreshPolicy]) -> None:
    policy = make()
    assert hits(policy, 1, at_ms=7) == [True]
    assert hits(policy, 1, at_ms=9) == [True]


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedRefresh(2, capacity=0),
        lambda: FixedRefresh(0),
        lambda: TwoLevelRefresh(bool, cold_every=0),
        lambda: AdaptiveRefresh(bool, cold_every=0),
        lambda: AdaptiveTtl(0),
        lambda: AdaptiveTtl(2, longest_ttl_ms=1),
        lambda: XFetch(0),
        lambda: XFetch(1, beta=math.nan),
    ],
)
def test_senseless_options_are_refused(make: Callable[[], RefreshPolicy]) -> None:
    with pytest.raises(ValueError, match=r"must be|at least"):
        make()


def test_no_refresh_reuses_every_list() -> None:
    policy = NoRefresh()
    policy.on_write(KEY, written(1), None)
    assert hits(policy, 50) == [False] * 50


def test_similarity_is_the_share_of_the_fresh_list_that_was_there() -> None:
    assert similarity((1, 2, 3), (3, 4)) == 0.5
    assert similarity((1, 2, 3), (2, 1)) == 1.0
    assert similarity((1,), (2,)) == 0.0


@pytest.mark.parametrize("lists", [((), (1,)), ((1,), ()), ((), ())])
def test_similarity_of_an_empty_list_is_undefined(lists: tuple[tuple[int], tuple[int]]) -> None:
    assert math.isnan(similarity(*lists))


@pytest.mark.parametrize("every", [1, 2, 5, 20])
def test_exactly_the_nth_hit_refreshes(every: int) -> None:
    policy = FixedRefresh(every)
    for at_ms in range(3):
        policy.on_write(KEY, written(at_ms), None if at_ms == 0 else 1.0)
        assert hits(policy, every, at_ms) == [False] * (every - 1) + [True]


def test_keys_count_apart() -> None:
    policy = FixedRefresh(2)
    assert [policy.on_hit(key, written(1), 2).refresh for key in (KEY, OTHER, KEY)] == [False, False, True]


def test_memory_is_bounded_and_a_forgotten_counter_starts_again() -> None:
    policy = FixedRefresh(2, capacity=10)
    assert hits(policy, 1) == [False]
    for i in range(10):
        policy.on_hit(i.to_bytes(16, "big"), written(1), 2)
    assert len(policy) == 10
    assert hits(policy, 1) == [False]


class CountersMatchThePaper(RuleBasedStateMachine):
    """SoCC'17 section 4.4, written down plainly, with a map that forgets the key seen longest ago."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = FixedRefresh(3, capacity=4)
        self.at_ms: dict[bytes, int] = {}
        self.count: dict[bytes, int] = {}

    keys = st.sampled_from([bytes([i]) * 16 for i in range(7)])

    @rule(key=keys, likeness=st.none() | st.floats(0, 1))
    def write(self, key: bytes, likeness: float | None) -> None:
        self.at_ms[key] = self.at_ms.get(key, 0) + 1
        self.policy.on_write(key, written(self.at_ms[key]), likeness)
        self.see(key, 1)

    @rule(key=keys)
    def hit(self, key: bytes) -> None:
        at_ms, count = self.at_ms.setdefault(key, 0), self.count.get(key, 1)
        due = count % 3 == 0
        assert self.policy.on_hit(key, written(at_ms), at_ms).refresh is due
        self.see(key, count if due else count + 1)

    def see(self, key: bytes, count: int) -> None:
        self.count.pop(key, None)
        self.count[key] = count
        if len(self.count) > 4:
            del self.count[next(iter(self.count))]

    @invariant()
    def forgets_no_more_than_it_must(self) -> None:
        assert len(self.policy) == len(self.count)


TestCountersMatchThePaper = CountersMatchThePaper.TestCase
TestCountersMatchThePaper.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
