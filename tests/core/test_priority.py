"""Priorities as expiry times."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.eviction import priority as module
from services.core.eviction.priority import (
    BASE_MS,
    EXPIRE_LIMIT_MS,
    MAX_PRIORITY,
    expire_at_ms,
    priority_of,
    sequence_of,
)

priorities = st.integers(0, MAX_PRIORITY)
sequences = st.integers(0, 2**64 - 1)


def test_doctests() -> None:
    assert doctest.testmod(module).failed == 0


@given(priorities, sequences)
def test_round_trip_below_the_limit(priority: int, sequence: int) -> None:
    expiry = expire_at_ms(priority, sequence)
    assert BASE_MS <= expiry < EXPIRE_LIMIT_MS
    assert int(float(expiry)) == expiry
    assert priority_of(expiry) == priority
    assert sequence_of(expiry) == sequence % 1024


@given(priorities, priorities, sequences, sequences)
def test_higher_priority_is_a_later_expiry_whatever_the_sequence(a: int, b: int, s: int, t: int) -> None:
    if a < b:
        assert expire_at_ms(a, s) < expire_at_ms(b, t)


@given(st.integers(MAX_PRIORITY, 2**70), sequences)
def test_saturates(priority: int, sequence: int) -> None:
    expiry = expire_at_ms(priority, sequence)
    assert expiry < EXPIRE_LIMIT_MS
    assert priority_of(expiry) == MAX_PRIORITY


@given(st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62))
def test_priority_of_is_monotone(a: int, b: int) -> None:
    assert priority_of(min(a, b)) <= priority_of(max(a, b))


def test_an_ordinary_time_to_live_reads_as_zero() -> None:
    assert priority_of(1_700_000_000_000) == 0
    assert sequence_of(1_700_000_000_000) == 0


def test_negative_priority_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 is negative"):
        expire_at_ms(-1, 0)


@given(priorities, st.lists(st.tuples(priorities, sequences), min_size=1, max_size=8), st.randoms())
def test_rises_commute_under_gt(first: int, rises: list[tuple[int, int]], random: object) -> None:
    """`PEXPIREAT GT` in any order, any rise repeated, ends at the same instant."""

    def replay(order: list[int]) -> int:
        held = expire_at_ms(first, 0)
        for at in order:
            held = max(held, at)
        return held

    instants = [expire_at_ms(priority, sequence) for priority, sequence in rises]
    shuffled = instants + instants[:3]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert replay(instants) == replay(shuffled)
