"""`frugalads bench eviction --live`: what it measures on real servers, and how it reduces it."""

from __future__ import annotations

import lzma
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loadtest import bench_eviction_live
from loadtest.bench_eviction_live import LEAST_REQUESTS, Options, Row, compare, rows_of, table, work_of
from loadtest.eviction.live import BACKSTOP, LFU, LRU, POLICIES, SIDECAR, Work, bytes_for, percentile
from loadtest.eviction.streams import stream_of
from services.cli import main
from services.runtime.errors import UserError
from services.stack.valkey import server_binary

OPTIONS = Options("zipf", "w1", "unit", "none", entries=200, seeds=1, requests=2 * LEAST_REQUESTS)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    keys = np.random.default_rng(0).zipf(1.2, 4_000) % 1_000
    file = tmp_path / "small.xz"
    file.write_bytes(lzma.compress(keys.astype(">i8").tobytes()))
    return file


@pytest.fixture
def work() -> Work:
    """Twice the keys that fit, the popular ones also the cheap ones."""
    draw = np.random.default_rng(0)
    keys = (draw.zipf(1.3, OPTIONS.requests) % 1_000).astype(np.int32)
    costs = np.where(np.arange(1_000) % 10 == 0, 1_000, 10)
    return Work(keys, costs, np.full(1_000, 10_000))


def test_every_policy_serves_the_same_requests_within_the_same_memory(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_eviction_live, "TURNS", 2)
    binary = server_binary()
    max_bytes = bytes_for(binary, work, OPTIONS.entries)
    rows = {row.policy: row for row in rows_of(binary, (LRU, SIDECAR), work, OPTIONS, 0, max_bytes)}
    assert list(rows) == [LRU, SIDECAR]
    for row in rows.values():
        assert 0 < row.object_miss < 1
        assert 0 < row.cost_miss < 1
        assert row.redis_cpu_s > 0
        assert 0 < row.get_p99_low_us <= row.get_p99_us <= row.get_p99_high_us
        assert 0 < row.keys <= 1.15 * OPTIONS.entries
        assert row.used_bytes <= 1.02 * max_bytes
        assert (row.failed, row.oom_errors) == (0, 0)
    assert rows[SIDECAR].cost_miss / rows[SIDECAR].object_miss < rows[LRU].cost_miss / rows[LRU].object_miss


def test_work_lies_behind_what_warms_and_differs_between_seeds(trace: Path) -> None:
    options = replace(OPTIONS, trace=str(trace))
    made = [work_of(options, seed) for seed in (0, 0, 1)]
    keys = stream_of(str(trace), 0).keys
    assert (made[0].keys == keys[len(keys) // 2 :][: options.requests]).all()
    assert made[0].value_bytes.min() == made[0].value_bytes.max() == 1_000
    assert (made[0].costs == made[1].costs).all()
    assert (made[0].costs != made[2].costs).any()
    assert len(np.unique(work_of(replace(options, sizes="meta"), 0).value_bytes)) > 100
    for larger in (replace(options, entries=5_000), replace(options, requests=3_000)):
        with pytest.raises(UserError, match="must be smaller"):
            work_of(larger, 0)


def test_the_percentile_has_the_interval_of_a_binomial_count() -> None:
    waits = percentile(np.arange(10_000, dtype=float)[::-1])
    assert waits.p99_us == 9_899
    assert 9_878 <= waits.low_us <= 9_880
    assert 9_919 <= waits.high_us <= 9_921
    assert percentile(np.array([3.0])) == (3.0, 3.0, 3.0)


def row(policy: str, seed: int, cost_miss: float) -> Row:
    return Row(policy, seed, cost_miss, 0.5, 0.02, 900.0, 800.0, 1_000.0, 100, 900, 1_000, 0, 0)


def test_ratios_are_paired_by_seed() -> None:
    theirs = {LRU: 0.4, LFU: 0.5, BACKSTOP: 0.8, SIDECAR: 0.2}
    rows = [row(policy, seed, theirs[policy] * (seed + 1)) for seed in (1, 0) for policy in POLICIES]
    ratios = {(ratio.against, ratio.column): ratio for ratio in compare(rows)}
    lru = ratios[LRU, "cost_miss"]
    assert lru.low is not None
    assert lru.high is not None
    assert (lru.ratio, lru.low, lru.high) == pytest.approx((0.5, 0.5, 0.5))
    assert ratios[BACKSTOP, "cost_miss"].ratio == pytest.approx(0.25)
    assert {column for _, column in ratios} == {"cost_miss", "object_miss", "redis_cpu_s", "get_p99_us"}
    text = table(OPTIONS, rows)
    assert [line.split()[0] for line in text.splitlines()[1:]] == list(POLICIES)
    one_seed = compare([row(policy, 0, 0.5) for policy in POLICIES])
    assert all(ratio.low is None for ratio in one_seed)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--costs", "w9"), "costs: 'w9' is none of w1, w2, w3, w4, w5, lognormal"),
        (("--costs", "w1", "w2"), "--live takes one of --costs and one of --entries"),
        (("--entries", "10"), "entries: 10 is outside 1000..10000000"),
        (("--requests", "10"), "requests: 10 is outside 1000..10000000"),
        (("--seeds", "0"), "seeds: 0 is outside 1..1000"),
    ],
)
def test_wrong_options_name_themselves(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "eviction", "--live", *arguments]) == 2
    assert said in capsys.readouterr().err
