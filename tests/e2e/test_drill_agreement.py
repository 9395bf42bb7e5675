"""The stack with its cache on and off saves and earns what the simulator, fed with its scores, says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from refresh_models import write_model
from stack_process import Stack

from loadtest.agreement import Stack as Shared
from loadtest.agreement import measure
from loadtest.queries import write_queries
from loadtest.runner import read_queries

pytestmark = [pytest.mark.drill, pytest.mark.timeout(14_400)]

# A request that is computed takes some 20 ms of two cores.
REQUESTS = 100_000 if os.environ.get("FRUGALADS_DRILL") else 400
POINTS = 2.0
EXPECTED_LOSS_USD = 0.02  # of every hit: about the price of a list, so that measured costs decide


def test_the_live_cache_saves_and_earns_what_the_simulator_says(stack: Stack, tmp_path: Path) -> None:
    catalogue, stream, model = stack.data / "catalogue", tmp_path / "queries.txt", tmp_path / "model"
    write_queries(catalogue, stream, requests=REQUESTS, seed=3)
    write_model(model, EXPECTED_LOSS_USD, probe_share=0.01)
    rows = measure(Shared.at(stack.ports), catalogue, read_queries(stream), model)
    assert [row.policy for row in rows] == ["none", "fixed", "predicted"]
    for row in rows:
        assert row.live_saved > 10, "the cache saves something"
        assert row.live_saved == pytest.approx(row.simulated_saved, abs=POINTS), row.policy
        assert row.live_revenue == pytest.approx(row.simulated_revenue, abs=POINTS), row.policy
    none, fixed, _ = rows
    assert fixed.live_saved < none.live_saved, "refreshes cost"
