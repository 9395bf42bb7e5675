"""`frugalads simulate`: rows, tables, page and faults, on small logs."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulator_logs import random_log

from loadtest.request_log.schema import RequestLog
from loadtest.request_log.storage import REQUESTS, LogWriter
from loadtest.simulator.comparison import POLICIES, redrawn
from loadtest.simulator.designs import DESIGNS
from loadtest.simulator.engine import simulate
from loadtest.simulator.published import PUBLISHED
from loadtest.simulator.report import Interval, interval
from services.commands import simulate as command
from services.runtime.errors import BundleError, UserError

PHRASES = 120
COLUMNS = [
    "policy", "cost_ratio", "stream", "seed", "clicks", "entries", "hit", "similarity", "cost_saving",
    "loss_pessimistic", "loss_pessimistic_realised", "revenue_auction", "net_profit_0.1", "net_profit_0.2",
    "net_profit_0.3", "refreshes", "probes", "prediction", "requests_per_s", "peak_bytes",
]  # fmt: skip

Run = Callable[..., int]


def small_log(seed: int) -> RequestLog:
    """One with popular phrases and lists that change little, so that policies differ."""
    log = random_log(seed, requests=4000, phrases=PHRASES, ads=40, longest=10)
    popular = np.random.default_rng(seed).geometric(0.03, 4000).clip(max=PHRASES) - 1
    return replace(log, phrase=popular.astype(np.int32))


def write(folder: Path, number: int, **meta: Any) -> Path:
    log = small_log(number)
    with LogWriter(
        folder,
        ad_ids=log.ad_ids,
        phrases=log.phrases,
        prior_requests=log.prior_requests,
        prior_clicks=log.prior_clicks,
        prior_revenue_usd=log.prior_revenue_usd,
        meta=meta,
    ) as writer:
        writer.append(log)
    return folder


@pytest.fixture
def run() -> Run:
    def run(*arguments: object) -> int:
        parser = argparse.ArgumentParser()
        command.register(parser.add_subparsers())
        parsed = parser.parse_args(["simulate", *map(str, arguments)])
        return int(parsed.run(parsed))

    return run


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    return [write(tmp_path / f"log{seed}", seed, stream="drawn", seed=seed) for seed in (1, 2)]


def test_a_row_for_every_policy_log_and_draw(
    run: Run, logs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*logs, "--seeds", 2, "--json", tmp_path / "rows.json") == 0
    document = json.loads((tmp_path / "rows.json").read_text())
    rows = document["rows"]
    assert all(list(row) == COLUMNS for row in rows)
    bounds = {"clairvoyant", "optimum"}
    keys = [(row["policy"], row["cost_ratio"], row["seed"], row["clicks"]) for row in rows]
    assert sorted(keys, key=str) == sorted(
        (
            (policy, ratio, seed, clicks)
            for policy in POLICIES
            for ratio in ((0.1, 0.2, 0.3) if policy in bounds else (None,))
            for seed in (1, 2)
            for clicks in (0, 1)
        ),
        key=str,
    )
    assert {row["stream"] for row in rows} == {"drawn"}
    header = document["header"]
    assert header["options"]["warmup"] == 0.25
    assert [log["seed"] for log in header["options"]["logs"]] == [1, 2]
    assert len(header["options"]["logs"][0]["fingerprint"]) == 32
    for row in rows:
        best = [r for r in rows if r["policy"] == "optimum" and r["seed"] == row["seed"]]
        if "merge" not in row["policy"] and "personal" not in row["policy"]:
            for ratio in (0.1, 0.2, 0.3):
                top = next(r for r in best if r["cost_ratio"] == ratio)[f"net_profit_{ratio}"]
                assert row[f"net_profit_{ratio}"] <= top + 1e-9
    captured = capsys.readouterr()
    assert "95 % interval over the logs of a stream (2 logs, 2 draws of clicks each)" in captured.out
    assert "SoCC'17, all three" in captured.out
    assert re.search(r"^optimum, c=0.2 .*±", captured.out, re.MULTILINE)
    assert re.search(r"replaying: (\d+) of \1$", captured.err, re.MULTILINE)


def test_rows_are_what_the_engine_says(run: Run, logs: list[Path], tmp_path: Path) -> None:
    run(logs[0], "--policies", "fixed2,adaptive", "--seeds", 2, "--json", tmp_path / "rows.json")
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    log = small_log(1)
    entries = round(0.155 * len(np.unique(log.phrase)))
    for row in rows:
        wanted = simulate(redrawn(log, row["clicks"]), DESIGNS[row["policy"]], entries, warmup=1000)
        assert (row["entries"], row["refreshes"]) == (entries, wanted.refreshes)
        for name in COLUMNS[6:12]:
            assert row[name] == getattr(wanted, name)
        assert row["net_profit_0.3"] == pytest.approx(0.3 * row["cost_saving"] - row["loss_pessimistic"])
    own, other = (row for row in rows if row["policy"] == "fixed2")
    assert own["loss_pessimistic"] == other["loss_pessimistic"]
    assert own["loss_pessimistic_realised"] != other["loss_pessimistic_realised"]


def test_entries_and_warmup_are_those_asked_for(run: Run, logs: list[Path], tmp_path: Path) -> None:
    options = ("--policies", "none", "--entries", 7, "--warmup", 0, "--json", tmp_path / "rows.json")
    run(logs[0], *options)
    (row,) = json.loads((tmp_path / "rows.json").read_text())["rows"]
    wanted = simulate(small_log(1), DESIGNS["none"], 7, warmup=0)
    assert (row["entries"], row["hit"], row["seed"]) == (7, wanted.hit, 1)


def test_the_page_needs_nothing_from_elsewhere(run: Run, logs: list[Path], tmp_path: Path) -> None:
    run(*logs, "--policies", "none,fixed5,adaptive,optimum", "--html", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    for loaded in re.findall(r"""(?:href|src|url)\s*[=(]\s*["']?([^"')\s>]+)""", text):
        assert loaded.startswith("#"), loaded
    assert "<script" not in text
    assert "@import" not in text
    assert text.count("<svg") == 2
    assert text.count("<table>") == 2
    for said in (
        "fixed5",
        "optimum, c=0.3",
        "no profit at c=0.2",
        "10.1145/3127479.3129255",
        PUBLISHED[3].design,
    ):
        assert said in text, said
    run(*logs, "--policies", "none,fixed5,adaptive,optimum", "--html", tmp_path / "again.html")
    plots = [re.findall(r"<svg.*?</svg>", file.read_text(), re.DOTALL) for file in tmp_path.glob("*.html")]
    assert plots[0] == plots[1]


def test_logs_of_two_streams_have_a_table_each(
    run: Run, logs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An imported log says nothing of its stream: its folder stands for it, and names in it are no markup."""
    mine = write(tmp_path / "<b>mine", 3)
    run(logs[0], mine, "--policies", "none", "--html", tmp_path / "page.html")
    assert re.findall(r"^(drawn|<b>mine) +hit %", capsys.readouterr().out, re.MULTILINE) == [
        "drawn",
        "<b>mine",
    ]
    text = (tmp_path / "page.html").read_text()
    assert "<b>" not in text
    assert text.count("<svg") == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--policies", "none,fixed3"), "--policies: 'fixed3' is none of all, learned, none, fixed2, "),
        (("--policies", ""), "--policies: '' is none of all"),
        (("--entries", 0), "--entries: 0 is outside 1..100000000"),
        (("--seeds", 0), "--seeds: 0 is outside 1..100"),
        (("--warmup", 1), "--warmup: 1.0 is outside 0..0.99"),
        (("--warmup", "nan"), "--warmup: nan is outside"),
        (("--json", "."), "--json: . is a folder"),
        (("--html", "/proc/nowhere/page.html"), "cannot write /proc/nowhere/page.html"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    run: Run, logs: list[Path], options: tuple[object, ...], message: str
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        run(logs[0], "--policies", "none", *options)


def test_logs_that_are_damaged_absent_or_given_twice_are_refused(
    run: Run, logs: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="two of the logs have the same stream and seed"):
        run(logs[0], logs[0])
    with pytest.raises(BundleError, match="no such bundle"):
        run(tmp_path / "nothing")
    (logs[0] / REQUESTS).write_bytes(b"PAR1")
    with pytest.raises(BundleError, match=f"{REQUESTS}: 4 bytes, the manifest says"):
        run(logs[0])


def test_intervals_are_those_of_student() -> None:
    """Over logs, each by the mean of its draws; over draws where there is one log; none for one value."""
    assert interval([[1.0, 3.0], [4.0, 4.0], [6.0, 6.0]]) == pytest.approx(
        Interval(4.0, 4.302653 * 2 / 3**0.5)
    )
    assert interval([[1.0, 3.0]]) == pytest.approx(Interval(2.0, 12.706205))
    assert interval([[5.0]]) == Interval(5.0, None)


def test_the_papers_rows_have_the_profit_that_the_papers_give() -> None:
    """Million dollars a quarter of 1465.85: SoCC'17 gives ranges for cost ratios .1 to .3."""
    given = {
        "no refresh": (-306.4, -171.5), "fixed n=2": (-166.1, -84.9), "two-level 20/1": (-5, 43.7),
        "adaptive": (-5.1, 66.7), "fixed + merge": (-130.9, -49.7), "adaptive + merge": (-12.2, 77.8),
        "fixed + all personalised": (-38.7, 12.9), "adaptive + all personalised": (7.5, 54.7),
        "adaptive + selective": (8.8, 64.5), "all three": (11.1, 71.5),
    }  # fmt: skip
    rows = {row.design: row for row in PUBLISHED if row.paper == "SoCC'17"}
    assert rows.keys() == given.keys()
    for design, (low, high) in given.items():
        found = [14.6585 * rows[design].net_profit(ratio) for ratio in (0.1, 0.3)]
        assert found == pytest.approx([low, high], abs=0.8), design
