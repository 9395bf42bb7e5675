"""The simulator against the plain one beside this file, design by design."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_simulator import Reference
from simulator_logs import logs, random_log

from loadtest.request_log.schema import RequestLog
from loadtest.simulator.auction import market
from loadtest.simulator.designs import DESIGNS, SOCC17, Design
from loadtest.simulator.engine import simulate
from loadtest.simulator.outcome import COUNTS, Outcome

DECISIONS = ["miss", "hit", "refresh"]
PLAIN = {name: design for name, design in DESIGNS.items() if design.policy != "predicted"}
"""Designs without a model."""

designs = st.sampled_from(list(PLAIN.values())).flatmap(
    lambda design: st.builds(
        dataclasses.replace,
        st.just(design),
        every=st.integers(1, 4),
        cold_every=st.integers(1, 5),
        ttl_ms=st.sampled_from([1, 600_000, 7_200_000]),
        ms_per_candidate=st.sampled_from([0.0, 300.0]),
        queue_ads=st.integers(1, 10),
    )
)


def check(log: RequestLog, design: Design, entries: int, warmup: int) -> None:
    """Same decisions and sums, to the last bit but for the auction, which sums in another order."""
    found = simulate(log, design, entries, warmup=warmup)
    wanted = Reference(log, design, entries, warmup, market(log))
    assert [DECISIONS[decision] for decision in found.decisions] == wanted.decisions
    for name in COUNTS.names or ():
        exact = wanted.sums[name]
        assert found.sums[name] == (pytest.approx(exact) if name.startswith("auction") else exact), name


@settings(max_examples=150)
@given(logs(), designs, st.integers(1, 30), st.data())
def test_every_design_does_what_the_plain_simulator_does(
    log: RequestLog, design: Design, entries: int, data: st.DataObject
) -> None:
    check(log, design, entries, data.draw(st.integers(0, len(log.phrase) - 1)))


@pytest.mark.parametrize("name", PLAIN)
def test_designs_with_their_own_parameters(name: str) -> None:
    check(random_log(5, requests=3000, phrases=60, ads=80), DESIGNS[name], 40, 500)


def test_a_log_of_which_nothing_repeats_only_misses() -> None:
    log = random_log(1, requests=20, phrases=20, phrase=np.arange(20, dtype=np.int32))
    assert set(simulate(log, DESIGNS["none"], 5, warmup=0).decisions) == {0}


def test_an_identical_list_loses_nothing_and_another_one_all() -> None:
    once = random_log(3, requests=1, longest=5)
    assert len(once.ads)
    twice = twin(once)
    outcome = simulate(twice, DESIGNS["none"], 1, warmup=1)
    figures = (outcome.hit, outcome.similarity, outcome.cost_saving)
    assert (*figures, outcome.loss_pessimistic, outcome.revenue_auction) == (100, 100, 100, 0, 0)
    elsewhere = dataclasses.replace(twice, ads=twice.ads.copy())
    elsewhere.ads[len(once.ads) :] = np.setdiff1d(np.arange(12), once.ads)[: len(once.ads)]
    outcome = simulate(elsewhere, DESIGNS["none"], 1, warmup=1)
    assert (outcome.similarity, outcome.loss_pessimistic, outcome.revenue_auction) == (0, 100, -100)


def twin(log: RequestLog) -> RequestLog:
    """A log of one request, twice."""
    doubled: dict[str, Any] = {
        field.name: np.concatenate([getattr(log, field.name)] * 2)
        for field in dataclasses.fields(log)
        if field.name not in ("offsets", "ad_ids", "phrases", "prior_requests")
        and not field.name.startswith("prior")
    }
    return dataclasses.replace(log, **doubled, offsets=np.array([0, len(log.ads), 2 * len(log.ads)]))


def outcome_of(**sums: float) -> Outcome:
    row = np.zeros(1, COUNTS)
    for name, value in sums.items():
        row[name] = value
    return Outcome("any", 1, row[0], np.zeros(10, np.int8), 0.5, 1)


def test_figures_are_percent_of_what_they_say() -> None:
    outcome = outcome_of(
        requests=8, hits=2, refreshes=3, compared=2, similarity=0.5, cost=40, cost_saved=10, revenue_usd=20,
        lost_usd=1, revenue_realised_usd=10, lost_realised_usd=1, auction_usd=15,
    )  # fmt: skip
    assert (outcome.hit, outcome.similarity, outcome.cost_saving) == (25, 25, 25)
    assert (outcome.loss_pessimistic, outcome.loss_pessimistic_realised) == (5, 10)
    assert (outcome.revenue_auction, outcome.requests, outcome.refreshes) == (-25, 8, 3)
    assert [outcome.net_profit(ratio) for ratio in (0.1, 0.2, 0.3)] == [-2.5, 0.0, 2.5]
    assert outcome.requests_per_s == 20


def test_figures_of_nothing_are_zero() -> None:
    outcome = outcome_of(requests=1)
    assert (outcome.hit, outcome.similarity, outcome.loss_pessimistic, outcome.revenue_auction) == (
        0,
        0,
        0,
        0,
    )


def test_the_warm_up_is_replayed_but_not_counted() -> None:
    log = random_log(2, requests=100)
    by_share, by_count = (simulate(log, DESIGNS["fixed2"], 9, warmup=w) for w in (0.25, 25))
    assert by_share.requests == by_count.requests == 75
    assert by_share.sums == by_count.sums
    assert len(by_share.decisions) == 100


def test_progress_ends_with_the_log() -> None:
    steps: list[tuple[int, int]] = []
    simulate(random_log(2, requests=50), DESIGNS["none"], 9, warmup=0, progress=lambda *at: steps.append(at))
    assert steps == [(50, 50)]


def test_arrays_that_cannot_be_written_give_the_same() -> None:
    log = random_log(4)
    frozen: dict[str, Any] = {
        f.name: np.array(getattr(log, f.name)) for f in dataclasses.fields(log) if f.name != "phrases"
    }
    for array in frozen.values():
        array.setflags(write=False)
    options: dict[str, Any] = {"entries": 4, "warmup": 0}
    one = simulate(log, DESIGNS["adaptive_selective_merge"], **options)
    other = simulate(dataclasses.replace(log, **frozen), DESIGNS["adaptive_selective_merge"], **options)
    assert one.sums == other.sums


@pytest.mark.parametrize("warmup", [60, -1, 1.0, -0.1])
def test_a_warm_up_that_leaves_nothing_is_refused(warmup: float) -> None:
    with pytest.raises(ValueError, match="leaves none of 60 requests"):
        simulate(random_log(1), DESIGNS["none"], 4, warmup=warmup)


def test_a_cache_without_entries_is_refused() -> None:
    with pytest.raises(ValueError, match="entries 0"):
        simulate(random_log(1), DESIGNS["none"], 0, warmup=0)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"every": 0}, "every"),
        ({"cold_every": 0}, "cold_every"),
        ({"queue_ads": 0}, "queue_ads"),
        ({"ttl_ms": 0}, "ttl_ms"),
        ({"ttl_ms": 10, "longest_ttl_ms": 9}, "longest_ttl_ms"),
        ({"beta": float("nan")}, "beta"),
    ],
)
def test_senseless_designs_are_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        Design("mine", "fixed", **changes)


def test_the_ten_designs_of_the_paper_are_there() -> None:
    assert len(SOCC17) == 10
    assert all(DESIGNS[name].name == name for name in DESIGNS)
