import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.core.ads_list import AdsList, Versions
from services.core.refresh import FixedRefresh

KEY, OTHER = b"k" * 16, b"o" * 16


def written(at_ms: int) -> AdsList:
    return AdsList((), (), at_ms, 0, Versions())


@pytest.mark.parametrize("every", [1, 2, 5, 20])
def test_exactly_the_nth_hit_refreshes(every: int) -> None:
    policy = FixedRefresh(every)
    for at_ms in range(3):
        policy.on_write(KEY, written(at_ms))
        decisions = [policy.on_hit(KEY, written(at_ms)).refresh for _ in range(every)]
        assert decisions == [False] * (every - 1) + [True]


def test_a_list_of_another_process_counts_from_its_first_hit() -> None:
    policy = FixedRefresh(3)
    assert [policy.on_hit(KEY, written(7)).refresh for _ in range(3)] == [False, False, True]


def test_a_failed_refresh_stays_due() -> None:
    policy = FixedRefresh(2)
    decisions = [policy.on_hit(KEY, written(1)).refresh for _ in range(4)]
    assert decisions == [False, True, True, True]


def test_keys_count_apart() -> None:
    policy = FixedRefresh(2)
    assert not policy.on_hit(KEY, written(1)).refresh
    assert not policy.on_hit(OTHER, written(1)).refresh
    assert policy.on_hit(KEY, written(1)).refresh


def test_an_overtaken_reader_does_not_refresh_again() -> None:
    policy = FixedRefresh(1)
    policy.on_write(KEY, written(5))
    assert not policy.on_hit(KEY, written(4)).refresh
    assert policy.on_hit(KEY, written(5)).refresh


def test_memory_is_bounded_and_a_forgotten_counter_starts_again() -> None:
    policy = FixedRefresh(2, capacity=10)
    assert not policy.on_hit(KEY, written(1)).refresh
    for i in range(10):
        policy.on_hit(i.to_bytes(16, "big"), written(1))
    assert len(policy) == 10
    assert not policy.on_hit(KEY, written(1)).refresh


@pytest.mark.parametrize(("every", "capacity"), [(0, 1), (1, 0)])
def test_senseless_options_are_refused(every: int, capacity: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        FixedRefresh(every, capacity)


class CountersMatchThePaper(RuleBasedStateMachine):
    """Against SoCC'17 section 4.4, written down plainly with an unbounded map."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = FixedRefresh(3, capacity=4)
        self.at_ms: dict[bytes, int] = {}
        self.count: dict[bytes, int] = {}

    keys = st.sampled_from([bytes([i]) * 16 for i in range(4)])

    @rule(key=keys)
    def write(self, key: bytes) -> None:
        self.at_ms[key] = self.at_ms.get(key, 0) + 1
        self.count[key] = 1
        self.policy.on_write(key, written(self.at_ms[key]))

    @rule(key=keys)
    def hit(self, key: bytes) -> None:
        at_ms = self.at_ms.setdefault(key, 0)
        count = self.count.setdefault(key, 1)
        due = count % 3 == 0
        if not due:
            self.count[key] = count + 1
        assert self.policy.on_hit(key, written(at_ms)).refresh is due

    @invariant()
    def is_bounded(self) -> None:
        assert len(self.policy) <= 4


TestCountersMatchThePaper = CountersMatchThePaper.TestCase
TestCountersMatchThePaper.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
