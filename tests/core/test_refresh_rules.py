"""The published rules, each beside what its paper says."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.ads_list import AdsList, Versions
from services.core.refresh.adaptive import AdaptiveRefresh
from services.core.refresh.adaptive_ttl import AdaptiveTtl
from services.core.refresh.policy import RefreshPolicy
from services.core.refresh.two_level import TwoLevelRefresh
from services.core.refresh.xfetch import XFetch

KEY = b"k" * 16
UNDEFINED = math.nan


def written(at_ms: int, cost_us: int = 0) -> AdsList:
    return AdsList((), (), at_ms, cost_us, Versions())


class List:
    """The list of one key under a policy; each write is a millisecond after the one before."""

    def __init__(self, policy: RefreshPolicy, similarity: float | None = None, at_ms: int = 1) -> None:
        self.policy, self.at_ms = policy, at_ms
        policy.on_write(KEY, written(at_ms), similarity)

    def refreshed(self, similarity: float) -> None:
        self.at_ms += 1
        self.policy.on_write(KEY, written(self.at_ms), similarity)

    def every(self, most: int = 100) -> int:
        """The hit that refreshes, counted from the write."""
        for hit in range(1, most):
            if self.policy.on_hit(KEY, written(self.at_ms), self.at_ms).refresh:
                return hit
        raise AssertionError("no hit refreshes")

    def lives_ms(self, ages_ms: list[int]) -> int:
        """The least of some rising ages at which the list has expired, and not a millisecond before."""
        for age_ms in ages_ms:
            assert not self.policy.on_hit(KEY, written(self.at_ms), self.at_ms + age_ms - 1).refresh
            if self.policy.on_hit(KEY, written(self.at_ms), self.at_ms + age_ms).refresh:
                return age_ms
        raise AssertionError("it outlives all")


def test_two_levels_are_every_hit_where_the_phrase_earns_and_the_twentieth_elsewhere() -> None:
    earning = {b"e" * 8}
    policy = TwoLevelRefresh(lambda key: key[:8] in earning)
    assert List(policy).every() == 20
    earning.add(KEY[:8])
    assert List(policy).every() == 1


def test_a_phrase_that_earns_is_refreshed_at_its_next_hit() -> None:
    for kind in (TwoLevelRefresh, AdaptiveRefresh):
        earning: set[bytes] = set()
        policy = kind(lambda key, earning=earning: key in earning)  # type: ignore[misc]
        cached = List(policy)
        assert not policy.on_hit(KEY, written(1), 1).refresh
        earning.add(KEY)
        assert cached.every() == 1


def test_algorithm_1_starts_at_every_hit_and_follows_the_similarity() -> None:
    cached = List(AdaptiveRefresh(lambda _: True))
    assert cached.every() == 1
    for similarity, every in [
        (0.91, 2), (1.0, 3), (0.9, 3), (0.7, 3), (0.8, 3), (0.69, 2), (0.0, 1), (0.0, 1), (1.0, 2),
    ]:  # fmt: skip
        cached.refreshed(similarity)
        assert cached.every() == every, similarity


def test_algorithm_1_leaves_phrases_that_never_earned_at_the_twentieth_hit() -> None:
    cached = List(AdaptiveRefresh(lambda _: False))
    for similarity in (1.0, 1.0, 0.0):
        cached.refreshed(similarity)
        assert cached.every() == 20


def test_empty_lists_do_not_move_n() -> None:
    """The trap: taken as similar, they let n drift upwards on phrases that sometimes find no ads."""
    cached = List(AdaptiveRefresh(lambda _: True))
    cached.refreshed(1.0)
    for _ in range(30):
        cached.refreshed(UNDEFINED)
        assert cached.every() == 2


def test_an_evicted_list_starts_again_at_every_hit() -> None:
    policy = AdaptiveRefresh(lambda _: True)
    cached = List(policy)
    for _ in range(4):
        cached.refreshed(1.0)
    assert cached.every() == 5
    assert List(policy, at_ms=cached.at_ms + 1).every() == 1


def test_a_refresh_by_another_process_moves_no_rate() -> None:
    policy = AdaptiveRefresh(lambda _: True)
    cached = List(policy)
    cached.refreshed(1.0)
    cached.at_ms += 1  # written by another, without a word to this policy
    assert cached.every() == 2


def test_a_ttl_doubles_while_lists_stay_and_falls_back_when_one_changed() -> None:
    cached = List(AdaptiveTtl(100, longest_ttl_ms=500))
    ages_ms = [100, 200, 400, 500]
    assert cached.lives_ms(ages_ms) == 100
    for similarity, ttl_ms in [(0.95, 200), (1.0, 400), (UNDEFINED, 400), (1.0, 500), (1.0, 500), (0.9, 100)]:
        cached.refreshed(similarity)
        assert cached.lives_ms([age_ms for age_ms in ages_ms if age_ms >= ttl_ms]) == ttl_ms
    cached.refreshed(1.0)
    assert List(cached.policy, at_ms=9).lives_ms(ages_ms) == 100


@given(
    st.integers(0, 3000),
    st.integers(0, 10**6),
    st.floats(0, 1, exclude_min=True),
    st.sampled_from([0.5, 1.0]),
)
def test_xfetch_is_the_formula_of_the_paper(age_ms: int, cost_us: int, uniform: float, beta: float) -> None:
    policy = XFetch(1000, beta, uniform=lambda: uniform)
    due = age_ms - beta * cost_us / 1000 * math.log(uniform) >= 1000
    assert policy.on_hit(KEY, written(50, cost_us), 50 + age_ms).refresh is due


def test_xfetch_never_serves_an_expired_list_and_survives_a_draw_of_zero() -> None:
    assert XFetch(10, uniform=lambda: 0.999).on_hit(KEY, written(0), 10).refresh
    assert XFetch(10**8, uniform=lambda: 0.0).on_hit(KEY, written(0, 10**9), 0).refresh


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_xfetch_refreshes_early_as_often_as_it_says(share: float) -> None:
    """A list with `cost` to go is refreshed early when U <= 1/e; with cost * ln(1/share), when U <= share."""
    draws = iter(i / 1000 for i in range(1, 1001))
    policy = XFetch(100_000, uniform=lambda: next(draws))
    age_ms = 100_000 - int(1000 * math.log(1 / share))
    early = sum(policy.on_hit(KEY, written(0, 1_000_000), age_ms).refresh for _ in range(1000))
    assert early == pytest.approx(1000 * share, abs=2)
