"""Entries, priorities and guards of `frugalads.client.cache`, without any server."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from frugalads.client.cache import guards
from frugalads.client.cache.entries import Entry, decode, encode
from frugalads.client.cache.priorities import Priorities
from frugalads.eviction.v1 import eviction_pb2
from services.core.eviction import priority

NOW_S = 1_000_000.0
number = st.integers(0, 2**62)
entries = st.builds(Entry, st.binary(max_size=200), number, number, number)
keys = st.binary(min_size=1, max_size=40)


@given(entries, keys)
def test_an_entry_comes_back_under_its_own_key_only(entry: Entry, key: bytes) -> None:
    data = encode(entry, key)
    assert decode(data, key) == entry
    assert decode(data, key + b"x") is None
    assert len(data) == 40 + len(entry.value)


@given(entries, keys, st.data())
def test_bytes_that_are_not_the_entry_are_no_entry(entry: Entry, key: bytes, draw: st.DataObject) -> None:
    data = encode(entry, key)
    at = draw.draw(st.integers(0, len(data) - 1))
    flipped = bytes([data[at] ^ draw.draw(st.integers(1, 255))])
    assert decode(data[:at] + flipped + data[at + 1 :], key) is None
    assert decode(data[:at], key) is None
    assert decode(data + b"x", key) is None


def test_no_value_and_foreign_values_are_no_entry() -> None:
    assert [decode(data, b"k") for data in (None, b"", b"FAC1", b"<html>" * 40)] == [None] * 4


def entry(age_s: float, compute_s: float = 0.0) -> Entry:
    return Entry(b"", round((NOW_S - age_s) * 1000), 0, round(compute_s * 1e6))


def test_freshness_ends_with_the_time_to_live() -> None:
    assert entry(9.9).is_fresh(10, NOW_S)
    assert not entry(10.1).is_fresh(10, NOW_S)
    assert entry(1e9).is_fresh(None, NOW_S)
    assert entry(-9).is_fresh(10, NOW_S), "a writer whose clock is ahead"
    assert not entry(-1000).is_fresh(10, NOW_S), "an absurd time of writing does not keep a value for ever"


def test_early_refresh_is_that_of_xfetch() -> None:
    """Due when age - compute x ln(u) reaches the time to live: with the chance e^-(left / compute)."""
    draws = [(i + 0.5) / 10_000 for i in range(10_000)]
    for left_s, compute_s in ((0.5, 1.0), (2.0, 1.0), (1.0, 5.0)):
        due = sum(entry(10 - left_s, compute_s).is_due(10, NOW_S, draw) for draw in draws) / len(draws)
        assert abs(due - math.exp(-left_s / compute_s)) < 1e-3
    assert not any(entry(9.9, 0.0).is_due(10, NOW_S, draw) for draw in draws)
    assert not entry(1e9, 1.0).is_due(None, NOW_S, 0.0)


@given(st.integers(0, 2**50), st.integers(0, 1023))
def test_the_expiry_is_the_one_that_the_sidecar_reads(clock: int, times: int) -> None:
    """An entry that costs nothing starts at the clock: its expiry is that of `services.core`."""
    made = Priorities()
    made.learn(eviction_pb2.ReportResponse(clock=clock))
    stamp = made.stamp(b"k", 100, 0)
    assert stamp.expire_at_ms == priority.expire_at_ms(clock, stamp.sequence)
    assert made.stamp(b"k", 100, 0).sequence == stamp.sequence + 1
    assert made.stamp(b"k", 1, 2**40).expire_at_ms < priority.EXPIRE_LIMIT_MS


def test_the_rule_and_the_frequencies_are_those_last_told() -> None:
    made = Priorities()
    rule = eviction_pb2.PriorityRule(
        scale=2, cost_power=1, size_power=1, frequency_power=2, overhead_bytes=10
    )
    hint = eviction_pb2.FrequencyHint(key=b"hot", frequency=3)
    made.learn(eviction_pb2.ReportResponse(clock=1_000, rule=rule, frequency_hints=[hint]))
    made.learn(eviction_pb2.ReportResponse(clock=900))  # the clock never falls, the rule stays
    known = {key: priority.priority_of(made.stamp(key, 90, 5_000).expire_at_ms) for key in (b"hot", b"new")}
    assert known == {b"hot": 1_000 + 900, b"new": 1_000 + 100}


def test_a_dearer_or_smaller_entry_stays_longer_before_any_word_of_the_sidecar() -> None:
    made = Priorities()
    order = [
        made.stamp(b"k", size, cost).expire_at_ms for size, cost in ((1000, 10), (1000, 500), (100, 500))
    ]
    assert sorted(order) == order


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_the_breaker_opens_at_the_third_failure_and_tries_again_now_and_then() -> None:
    clock = Clock()
    breaker = guards.Breaker(clock)
    assert [breaker.failure() for _ in range(4)] == [False, False, True, False]
    assert not breaker.allows()
    clock.now_s += guards.Breaker.COOL_DOWN_S
    assert [breaker.allows() for _ in range(3)] == [True, False, False]
    assert [breaker.success(), breaker.success()] == [True, False]
    assert breaker.allows()


def test_failed_refreshes_wait_longer_each_time_and_are_bounded() -> None:
    clock = Clock()
    cooling = guards.CoolDowns(clock)
    for delay_s in (1, 2, 4, 8, 16, 32, 60, 60):
        cooling.failure(b"k")
        clock.now_s += 0.99 * delay_s
        assert cooling.is_cooling(b"k")
        clock.now_s += 0.02 * delay_s
        assert not cooling.is_cooling(b"k")
    cooling.success(b"k")
    cooling.failure(b"k")
    for n in range(guards.CoolDowns.CAPACITY):
        cooling.failure(b"%d" % n)
    assert not cooling.is_cooling(b"k")
    assert cooling.is_cooling(b"0")
