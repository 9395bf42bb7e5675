"""`frugalads bench eviction`, whole, on a small trace; its streams; how it compares."""

from __future__ import annotations

import json
import lzma
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.bench_eviction import ZIPF_ENTRIES, Options, Workload, measure
from loadtest.eviction.bounds import previous_requests
from loadtest.eviction.report import Cell, Row, compare, ratio_interval
from loadtest.eviction.streams import Stream, stream_of
from services.cli import main
from services.core.eviction.orders import ORDERS
from services.core.eviction.replay import replay

COLUMNS = {
    "policy", "costs", "entries", "seed", "part", "cost_vs_lru", "misses_vs_lru", "object_miss", "byte_miss",
    "evictions", "ns_per_op", "state_bytes_per_key",
}  # fmt: skip


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    keys = np.random.default_rng(0).zipf(1.2, 4000).clip(max=600) * 1_000_003
    file = tmp_path / "small.xz"
    file.write_bytes(lzma.compress(keys.astype(">i8").tobytes()))
    return file


def bench(trace: object, *options: object) -> int:
    return main(["bench", "eviction", "--trace", str(trace), *map(str, options)])


def test_a_table_and_a_document_with_every_policy_on_every_seed(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    assert bench(trace, "--costs", "w1", "w4", "--entries", 50, "--seeds", 3, "--json", file) == 0
    table = capsys.readouterr().out
    document = json.loads(file.read_text())
    rows = document["rows"]
    assert all(set(row) == COLUMNS for row in rows)
    for costs in ("w1", "w4"):
        assert f"{costs}, 50 entries" in table
        for seed in range(3):
            made = [row for row in rows if (row["costs"], row["seed"], row["part"]) == (costs, seed, "test")]
            assert [row["policy"] for row in made] == [*ORDERS, "clairvoyant"]
            assert made[0]["cost_vs_lru"] == made[0]["misses_vs_lru"] == 1.0
            assert all(0 < row["object_miss"] == row["byte_miss"] < 1 for row in made)
            assert all(row["evictions"] > 0 for row in made)
            assert all(row["ns_per_op"] > 0 and row["state_bytes_per_key"] > 0 for row in made[:-1])
            assert (made[-1]["ns_per_op"], made[-1]["state_bytes_per_key"]) == (None, None)
            assert made[-1]["cost_vs_lru"] == min(row["cost_vs_lru"] for row in made)
        part = [row for row in rows if (row["costs"], row["part"]) == (costs, "slice")]
        assert [row["policy"] for row in part] == [*ORDERS, "clairvoyant", "optimum"]
        assert part[-1]["cost_vs_lru"] == min(row["cost_vs_lru"] for row in part)
    header = document["header"]
    assert header["options"] | {"seeds": 3, "sizes": "unit", "correlation": "none"} == header["options"]
    assert "first half" in header["split"]
    compared = {(found["policy"], found["against"]) for found in header["comparisons"]}
    assert compared == {(policy, name) for policy in (*ORDERS, "clairvoyant") for name in ("lru", "gdsf")}
    assert all(found["low"] <= found["ratio"] <= found["high"] for found in header["comparisons"])


def test_equal_costs_leave_greedydual_what_lru_is(trace: Path) -> None:
    rows = measure(options(trace, costs=("w4",)))
    made = {row.policy: row for row in rows if row.part == "test"}
    assert made["greedydual"].cost_vs_lru == 1.0
    assert all(row.cost_vs_lru == pytest.approx(row.misses_vs_lru) for row in made.values())


def test_sizes_in_bytes_have_no_optimum_and_a_byte_miss_of_their_own(trace: Path) -> None:
    rows = measure(options(trace, sizes="meta"))
    assert "optimum" not in {row.policy for row in rows}
    assert all(row.byte_miss != row.object_miss for row in rows)


def test_the_same_options_give_the_same_figures_and_correlation_gives_others(trace: Path) -> None:
    first, again, other = (
        figures(options(trace, correlation=name)) for name in ("positive", "positive", "negative")
    )
    assert first == again != other


def test_only_what_comes_behind_the_first_half_is_measured(trace: Path) -> None:
    stream = stream_of(str(trace), 0)
    ones = np.ones(stream.count, np.int64)
    hit = replay("lru", stream.keys, ones, ones, 50).hit
    lru = next(row for row in measure(options(trace)) if (row.policy, row.part) == ("lru", "test"))
    assert stream.warm == len(stream.keys) // 2
    assert lru.object_miss == pytest.approx((~hit[stream.warm :]).mean())


def options(trace: Path, **changes: Any) -> Options:
    base = Options(str(trace), ("w1",), "unit", "none", (50,), 1)
    return replace(base, **changes)


def figures(chosen: Options) -> list[tuple[str, str, float, float]]:
    return [(row.policy, row.part, row.cost_vs_lru, row.object_miss) for row in measure(chosen)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--costs", "w9"), "costs: 'w9' is none of w1, w2, w3, w4, w5, lognormal"),
        (("--sizes", "big"), "sizes: 'big' is none of unit, meta"),
        (("--correlation", "some"), "correlation: 'some' is none of none, positive, negative"),
        (("--entries", 0), "entries: 0 is outside 1..10000000"),
        (("--seeds", 0), "seeds: 0 is outside 1..1000"),
        (("--entries", 10_000), "entries: 10000 hold all 369 keys"),
    ],
)
def test_a_mistake_is_a_sentence_that_names_it(
    trace: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[object, ...], said: str
) -> None:
    assert bench(trace, *arguments) == 2
    assert said in capsys.readouterr().err


def test_a_trace_that_is_missing_cut_short_or_too_small_is_a_sentence(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(tmp_path / "none.xz") == 2
    assert "No such file" in capsys.readouterr().err
    cut = tmp_path / "cut.xz"
    cut.write_bytes(trace.read_bytes()[:-40])
    assert bench(cut) == 2
    assert "not a whole xz file" in capsys.readouterr().err
    few = tmp_path / "few.xz"
    few.write_bytes(lzma.compress(np.arange(9, dtype=">i8").tobytes()))
    assert bench(few) == 2
    assert "9 requests are fewer than 100" in capsys.readouterr().err


def test_speed_by_number_of_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "speed.json"
    assert main(["bench", "eviction-speed", "--keys", "50", "500", "--json", str(file)]) == 0
    assert "million/s" in capsys.readouterr().out
    rows = json.loads(file.read_text())["rows"]
    assert {(row["policy"], row["keys"]) for row in rows} >= {("lru", 50), ("ours", 500)}
    assert all(row["ns_per_op"] > 0 and row["state_bytes_per_key"] > 0 for row in rows)
    assert main(["bench", "eviction-speed", "--keys", "0"]) == 2
    assert "keys: 0 is outside" in capsys.readouterr().err


def test_ratios_are_paired_by_seed() -> None:
    ratio, low, high = ratio_interval([0.9, 1.8, 3.6], [1.0, 2.0, 4.0])
    assert (ratio, low, high) == pytest.approx((0.9, 0.9, 0.9)), "the spread between seeds is not theirs"
    ratio, low, high = ratio_interval([1.0, math.e], [1.0, 1.0])
    assert ratio == pytest.approx(math.exp(0.5))
    assert low is not None
    assert math.log(ratio / low) == pytest.approx(12.706 * 0.5, rel=1e-3), "t of one degree of freedom"
    assert ratio_interval([0.5], [1.0]) == (0.5, None, None)


def test_a_slice_takes_no_part_in_a_comparison() -> None:
    row = Row("lru", "w1", 5, 0, "test", 1.0, 1.0, 0.5, 0.5, 1, 1.0, 1.0)
    rows = [row, replace(row, policy="gdsf", cost_vs_lru=0.5), replace(row, part="slice", cost_vs_lru=9.0)]
    assert {(found.policy, found.against): found.ratio for found in compare(rows)} == {
        ("lru", "lru"): 1.0,
        ("lru", "gdsf"): 2.0,
        ("gdsf", "lru"): 0.5,
        ("gdsf", "gdsf"): 1.0,
    }


@pytest.fixture(scope="module")
def zipf() -> Stream:
    return stream_of("zipf", 0)


def test_the_modelled_stream_loads_every_record_and_lru_hits_as_stated(zipf: Stream) -> None:
    assert sorted(zipf.keys[: zipf.count].tolist()) == list(range(zipf.count))
    ones = np.ones(zipf.count, np.int64)
    hit = replay("lru", zipf.keys, ones, ones, ZIPF_ENTRIES[0]).hit
    assert hit[zipf.warm :].mean() == pytest.approx(0.96, abs=0.001)
    assert (previous_requests(zipf.keys)[zipf.warm :] >= 0).all(), "no miss is a first request"


def test_the_modelled_stream_is_zipf_scattered_over_the_records(zipf: Stream) -> None:
    requests = np.bincount(zipf.keys[zipf.count :], minlength=zipf.count)
    shares = np.sort(requests)[::-1] / requests.sum()
    assert shares[:2] == pytest.approx([1 / 26.469, 0.5**0.99 / 26.469], rel=0.02)
    assert shares[len(shares) // 2 :].sum() > 0.2, "the hash evens out the tail"
    assert not np.array_equal(zipf.keys, stream_of("zipf", 1).keys)


@pytest.mark.data
def test_greedydual_and_gdsf_do_on_the_real_trace_what_our_first_study_found(data_folder: Path) -> None:
    """Costs of w1 at 10,000 entries relative to LRU: .810 and .760, one seed."""
    stream = stream_of(str(data_folder / "traces" / "scarab-recs.trace.xz"), 0)
    assert (len(stream.keys), stream.count) == (1_245_184, 258_368)
    workload = Workload.drawn(stream, options(Path()), Cell("w1", 10_000), 0)
    paid = {
        order: workload.missed(
            replay(order, stream.keys, workload.costs, workload.sizes, workload.capacity).hit, workload.costs
        )
        for order in ("lru", "greedydual", "gdsf", "ours")
    }
    assert paid["greedydual"] / paid["lru"] == pytest.approx(0.810, abs=0.02)
    assert paid["gdsf"] / paid["lru"] == pytest.approx(0.760, abs=0.02)
    assert paid["ours"] < 0.98 * paid["gdsf"]
