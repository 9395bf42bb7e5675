import json
from pathlib import Path

import grpc
import numpy as np
import pytest

from frugalads.scoring.v1 import scoring_pb2
from loadtest.report import BYPASSED_MEANS, FAILED_MEANS, SAVED_MEANS, render, run_header, summarize, write
from loadtest.runner import UNSENT, Samples

HIT, MISS = scoring_pb2.CACHE_STATE_HIT, scoring_pb2.CACHE_STATE_MISS
BYPASSED = scoring_pb2.CACHE_STATE_BYPASSED
REFRESHED = scoring_pb2.CACHE_STATE_REFRESHED
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]


def make(
    latencies_ms: list[float],
    states: list[int],
    *,
    queries: list[int] | None = None,
    compute_us: list[int] | None = None,
    codes: list[int] | None = None,
    revenue_usd: float = 0.01,
    late_ms: float = 0.0,
) -> Samples:
    """Samples due every 100 ms."""
    count = len(latencies_ms)
    code = np.array(codes or [0] * count, np.int16)
    scheduled_s = np.arange(1, count + 1) / 10
    sent = code != UNSENT
    return Samples(
        query=np.array(queries or range(count), np.int32),
        scheduled_s=scheduled_s,
        sent_s=np.where(sent, scheduled_s + late_ms / 1e3, np.nan),
        answered_s=np.where(sent, scheduled_s + np.array(latencies_ms) / 1e3, np.nan),
        code=code,
        cache_state=np.where(code == 0, np.array(states), 0).astype(np.int8),
        compute_us=np.array(compute_us or [0] * count, np.int64),
        revenue_usd=np.where(code == 0, revenue_usd, 0.0),
        ads=np.ones(count, np.int16),
        first_click=np.zeros(count),
        degraded=np.zeros(count, np.bool_),
        timeout_s=2.0,
    )


def test_percentiles_are_those_of_the_samples_by_nearest_rank() -> None:
    latencies = [float(ms) for ms in range(1, 1001)]
    summary = summarize(make(latencies[::-1], [MISS] * 1000))
    row, everything = summary.rows
    assert (row.outcome, row.count) == ("MISS", 1000)
    assert [row.p50_ms, row.p90_ms, row.p99_ms, row.max_ms] == pytest.approx([500, 900, 990, 1000])
    assert not row.p99_is_thin
    assert everything.outcome == "all sent"


def test_rows_are_split_by_cache_state() -> None:
    summary = summarize(make([1, 2, 30, 40, 50], [HIT, HIT, MISS, REFRESHED, MISS]))
    assert [(row.outcome, row.count, row.max_ms) for row in summary.rows] == [
        ("HIT", 2, pytest.approx(2)),
        ("MISS", 2, pytest.approx(50)),
        ("REFRESHED", 1, pytest.approx(40)),
        ("all sent", 5, pytest.approx(50)),
    ]
    assert summary.hit_share == pytest.approx(0.4)


def test_failures_count_at_the_deadline_and_are_named() -> None:
    summary = summarize(make([5, 1, 9], [MISS] * 3, codes=[0, UNAVAILABLE, 0]))
    failed, everything = summary.rows[-2:]
    assert (failed.outcome, failed.count, failed.max_ms) == ("failed", 1, pytest.approx(2000))
    assert everything.max_ms == pytest.approx(2000)
    assert summary.errors == {"UNAVAILABLE": 1}
    assert summary.revenue_per_1000_usd == pytest.approx(0.02 / 3 * 1000)


def test_rates_late_and_unsent_are_counted() -> None:
    codes = [0] * 8 + [UNSENT] * 2
    summary = summarize(make([10.0] * 10, [HIT] * 10, codes=codes, late_ms=10.5))
    assert summary.requests == 10
    assert summary.offered_per_s == pytest.approx(10)
    assert summary.achieved_per_s == pytest.approx(8 / 0.81)
    assert (summary.late, summary.unsent) == (8, 2)
    assert summary.rows[-1].count == 8
    assert "unsent requests have no latency" in render(summary)


def test_computation_saved_weighs_each_hit_by_its_own_query() -> None:
    # Query 0 costs 1000 us and is reused twice; query 1 costs 3000 us and is never; query 2 is only reused,
    # so it counts as the mean of all, 2000 us. Saved 2 x 1000 + 2000 of that and 4000 spent.
    samples = make(
        [1] * 5, [MISS, HIT, HIT, MISS, HIT], queries=[0, 0, 0, 1, 2], compute_us=[1000, 0, 0, 3000, 0]
    )
    assert summarize(samples).computation_saved == pytest.approx(4000 / 8000)


@pytest.mark.parametrize("state", [HIT, MISS])
def test_computation_saved_is_not_measured_where_nothing_was_computed(state: int) -> None:
    """A warm cache that served everything was said to save 0.0 %."""
    summary = summarize(make([1, 1], [state, state], compute_us=[0, 0]))
    assert summary.computation_saved is None
    assert "computation saved  not measured" in render(summary)


def test_nothing_is_saved_without_reuse() -> None:
    assert summarize(make([1, 1], [MISS, MISS], compute_us=[5, 5])).computation_saved == 0


def test_footnotes_say_what_is_unusual_in_a_run() -> None:
    samples = make([1, 30, 2], [MISS, MISS, BYPASSED], codes=[0, UNAVAILABLE, 0], late_ms=10.5)
    samples.example_error = "UNAVAILABLE: retrieval gave no answer"
    samples.degraded[2] = True
    samples.degraded_reasons["CACHE_UNAVAILABLE"] = 1
    text = render(summarize(samples))
    assert "degraded           1 (CACHE_UNAVAILABLE 1)\n" in text
    notes = (
        BYPASSED_MEANS,
        f"{FAILED_MEANS}; one of them: UNAVAILABLE: retrieval gave no answer",
        "this machine was too busy for this rate: 3 requests were sent late",
    )
    assert text.endswith("\n".join((SAVED_MEANS, *notes)))
    usual = render(summarize(make([1, 2], [HIT, MISS])))
    assert usual.endswith(SAVED_MEANS)
    assert "degraded           0\n" in usual


def test_a_run_without_any_answer_is_reported() -> None:
    for code in (UNSENT, UNAVAILABLE):
        summary = summarize(make([1, 1], [0, 0], codes=[code, code]))
        assert (summary.achieved_per_s, summary.hit_share, summary.revenue_per_1000_usd) == (0, 0, 0)
        assert "all sent" in render(summary)


def test_the_table_shows_every_figure_and_its_definition() -> None:
    text = render(summarize(make([1, 30], [HIT, MISS], queries=[0, 0], compute_us=[0, 500])))
    for words in (
        "HIT", "MISS", "10.0 a second offered", "late 0", "hit share          50.0%",
        "computation saved  50.0%", "$10.00 per 1,000 queries", "errors             none", SAVED_MEANS,
        "* p99 of fewer than 1000 samples",
    ):  # fmt: skip
        assert words in text


def test_the_document_and_the_raw_samples_agree(tmp_path: Path) -> None:
    samples = make([1, 30, 2], [HIT, MISS, HIT], codes=[0, 0, UNSENT])
    raw = write(tmp_path / "run.json", summarize(samples), samples, run_header({"rate": 10.0}, seed=3))
    document = json.loads((tmp_path / "run.json").read_text())
    assert set(document) == {"header", "rows"}
    assert set(document["header"]) == {"commit", "seed", "hardware", "versions", "options", "figures"}
    assert document["header"]["seed"] == 3
    assert document["header"]["options"] == {"rate": 10.0}
    assert [row["outcome"] for row in document["rows"]] == ["HIT", "MISS", "all sent"]
    with np.load(raw, allow_pickle=False) as arrays:
        again = Samples(**{name: arrays[name] for name in arrays if name != "timeout_s"}, timeout_s=2.0)
    assert summarize(again) == summarize(samples)
