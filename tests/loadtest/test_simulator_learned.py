"""Learned policies in the simulator: no look at the future, and a rule that does what it says."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from simulator_logs import random_log

from loadtest.request_log.schema import RequestLog
from loadtest.simulator.comparison import COST_RATIOS, NamedLog, chosen, compare, steps
from loadtest.simulator.designs import LEARNED
from loadtest.simulator.engine import simulate
from loadtest.simulator.learned import INFERENCE_SHARE, Learned
from loadtest.simulator.outcome import HIT, MISS, REFRESH, Outcome
from loadtest.simulator.traffic import traffic
from models.refresh.training import Trained, train_refresh
from services.runtime.errors import UserError

REQUESTS = 3_000
TRAINED_ON = 2_000
ENTRIES = 40
COST_RATIO = 1.0  # at which a random log has hits of both kinds


def log() -> RequestLog:
    return random_log(4, requests=REQUESTS, phrases=60, ads=40)


@cache
def model(name: str) -> Trained:
    recipe = LEARNED[name].recipe
    assert recipe is not None
    return train_refresh(traffic(log()), TRAINED_ON, recipe, 1)


def replayed(given: RequestLog, name: str = "predicted", **changes: Any) -> Outcome:
    rule = model(name).rule(COST_RATIO)._replace(**changes)
    learned = Learned(model(name).forest.arrays, rule)
    return simulate(given, LEARNED[name], ENTRIES, warmup=TRAINED_ON, learned=learned)


@pytest.mark.parametrize("name", ["predicted", "predicted_unmerged", "www18"])
def test_decisions_know_nothing_of_later_requests(name: str) -> None:
    first, given = 2_500, log()
    other = random_log(9, requests=REQUESTS, phrases=60, ads=40)
    listed = int(given.offsets[first])
    from_then: dict[str, Any] = {
        "phrase": np.concatenate([given.phrase[:first], other.phrase[first:]]),
        "cost": np.concatenate([given.cost[:first], other.cost[first:]]),
        "charge_usd": np.concatenate([given.charge_usd[:listed], 2 * given.charge_usd[listed:]]),
        "clicked": np.concatenate([given.clicked[:listed], ~given.clicked[listed:]]),
    }
    one, changed = replayed(given, name), replayed(replace(given, **from_then), name)
    np.testing.assert_array_equal(one.decisions[:first], changed.decisions[:first])
    assert (one.decisions[first:] != changed.decisions[first:]).any()
    assert {HIT, MISS, REFRESH} == set(one.decisions.tolist())


def test_free_computing_refreshes_what_loses_and_dear_computing_nothing() -> None:
    free, usual, dear = (
        replayed(log(), cost_ratio=ratio, probe_share=0.0) for ratio in (1e-9, COST_RATIO, 1e9)
    )
    assert free.hit < usual.hit < dear.hit
    assert dear.refreshes == 0
    assert free.loss_pessimistic < usual.loss_pessimistic < dear.loss_pessimistic


def test_probes_cost_hits_and_are_counted() -> None:
    none, many = (replayed(log(), probe_share=share) for share in (0.0, 0.2))
    assert none.probes == 0
    assert 0 < many.probes <= many.refreshes
    assert many.hit < none.hit


def test_inference_is_paid_from_the_saving() -> None:
    outcome = replayed(log())
    served = log().cost[TRAINED_ON:][outcome.decisions[TRAINED_ON:] == HIT].sum(dtype=np.float64)
    assert float(outcome.sums["cost_saved"]) == pytest.approx((1 - INFERENCE_SHARE) * served)


def test_learned_policies_have_a_row_for_each_cost_ratio() -> None:
    names = ("predicted", "predicted_unprobed", "fixed2", "optimum")
    done: list[None] = []
    named = NamedLog(log(), "drawn", 1)
    rows = list(compare(named, names, ENTRIES, 2, TRAINED_ON, lambda: done.append(None)))
    assert len(done) == steps(names, 2)
    ratios = [(row["policy"], row["cost_ratio"]) for row in rows if row["clicks"] == 0]
    per_ratio = [(name, ratio) for name in names for ratio in COST_RATIOS if name != "fixed2"]
    assert sorted(ratios, key=str) == sorted([*per_ratio, ("fixed2", None)], key=str)
    assert {row["policy"] for row in rows if row["probes"]} == {"predicted"}
    assert {row["prediction"] for row in rows if row["policy"] in ("fixed2", "optimum")} == {None}


def test_learned_policies_are_a_group_of_their_own() -> None:
    assert set(LEARNED).isdisjoint(chosen("all"))
    assert chosen("learned, optimum") == (*LEARNED, "optimum")


def test_a_learned_policy_needs_a_model_and_a_warm_up_to_train_on() -> None:
    with pytest.raises(ValueError, match="predicted needs a model"):
        simulate(log(), LEARNED["predicted"], ENTRIES, warmup=0)
    with pytest.raises(UserError, match="training rows"):
        list(compare(NamedLog(log(), "drawn", 1), ("predicted",), ENTRIES, 1, 100))
