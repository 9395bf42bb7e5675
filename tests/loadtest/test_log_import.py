"""`frugalads log import`: every format gives the same log, and every fault is named by row and field."""

from __future__ import annotations

import csv
import gzip
import json
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from simulator_logs import random_log

from loadtest.request_log.importing import import_log
from loadtest.request_log.schema import DAY_MS, RequestLog
from loadtest.request_log.sources import CHUNK_ROWS
from loadtest.request_log.storage import open_log, read_log
from loadtest.simulator.designs import DESIGNS
from loadtest.simulator.engine import simulate
from services.cli import main
from services.runtime.errors import UserError

Rows = Sequence[Mapping[str, Any]]
README = Path(__file__).parents[2] / "loadtest" / "request_log" / "README.md"

FULL = {
    "time_ms": 1_700_000_000_000,
    "query": "Laser  TONER",
    "location": "us-ca",
    "gender": "male",
    "age": "25-34",
    "device": "tablet",
    "cost": 812,
    "throttle_level": 0.5,
    "ads": [70, 50],
    "click_probability": [0.25, 0.125],
    "bid_usd": [1, 2.5],
    "charge_usd": [0.75, 0],
    "clicked": [True, False],
    "shown_probability": [0.1875, 0],
}
PLAIN = {
    "time_ms": 1_700_000_000_500,
    "query": "ink",
    "ads": [50, 90, 91],
    "click_probability": [0.5, 0.25, 0.125],
    "bid_usd": [1, 2, 3],
    "charge_usd": [0.5, 0, 0.25],
    "clicked": [False, False, False],
}
EMPTY = {
    "time_ms": 1_700_000_000_500,
    "query": "laser toner",
    "ads": [],
    "click_probability": [],
    "bid_usd": [],
    "charge_usd": [],
    "clicked": [],
}


def jsonl(path: Path, rows: Rows) -> Path:
    return packed(path, "".join(json.dumps(row) + "\n" for row in rows))


def as_csv(path: Path, rows: Rows) -> Path:
    """The encoding of README.md: | between the values of a list, 0 and 1 for clicks."""

    def cell(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return "|".join(str(int(v) if isinstance(v, bool) else v) for v in value)

    plain = path.with_name("plain.csv")
    with plain.open("w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
        out.writeheader()
        out.writerows({name: cell(value) for name, value in row.items()} for row in rows)
    return packed(path, plain.read_text(encoding="utf-8"))


def packed(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def parquet(path: Path, rows: Rows) -> Path:
    names = list(dict.fromkeys(name for row in rows for name in row))
    pq.write_table(pa.table({name: pa.array([row.get(name) for row in rows]) for name in names}), path)
    return path


FORMATS: list[tuple[str, Callable[[Path, Rows], Path]]] = [
    ("log.jsonl", jsonl),
    ("log.jsonl.gz", jsonl),
    ("log.csv", as_csv),
    ("log.csv.gz", as_csv),
    ("log.parquet", parquet),
]


@pytest.mark.parametrize(("name", "write"), FORMATS)
def test_every_format_gives_the_same_log(
    tmp_path: Path, name: str, write: Callable[[Path, Rows], Path]
) -> None:
    summary = import_log(write(tmp_path / name, [FULL, PLAIN, EMPTY]), tmp_path / "log")
    log = read_log(tmp_path / "log")
    noon_ms = 1_700_000_000_000 % DAY_MS
    wanted = {
        "time_ms": [noon_ms, noon_ms + 500, noon_ms + 500],
        "phrase": [0, 1, 0],
        "location": [1, 0, 0],
        "gender": [2, 0, 0],
        "age": [3, 0, 0],
        "device": [3, 0, 0],
        "cost": [812, 3, 0],
        "throttle_level": [0.5, np.nan, np.nan],
        "offsets": [0, 2, 5, 5],
        "ads": [1, 0, 0, 2, 3],
        "click_probability": [0.25, 0.125, 0.5, 0.25, 0.125],
        "bid_usd": [1, 2.5, 1, 2, 3],
        "charge_usd": [0.75, 0, 0.5, 0, 0.25],
        "shown_probability": [0.1875, 0, 0.5, 0, 0.125],
        "clicked": [True, False, False, False, False],
        "ad_ids": [50, 70, 90, 91],
        "prior_requests": [0, 0],
        "prior_clicks": [0, 0],
        "prior_revenue_usd": [0, 0],
    }
    for column, values in wanted.items():
        np.testing.assert_array_equal(getattr(log, column), values, column)
    assert log.phrases == ["laser toner", "ink"]
    assert (summary.requests, summary.listed, summary.clicks, summary.days) == (3, 5, 1, 1)
    assert summary.modelled_costs == summary.unknown_throttle_levels == 2
    assert summary.modelled_shown_probabilities == 2
    assert open_log(tmp_path / "log").meta["clicks"] == 1


def exported(log: RequestLog) -> list[dict[str, Any]]:
    """A log as a user's rows."""
    rows = []
    for i, (first, last) in enumerate(zip(log.offsets[:-1], log.offsets[1:], strict=True)):
        row = {name: getattr(log, name)[i].item() for name in ("time_ms", "cost")}
        row |= {"query": log.phrases[log.phrase[i]], "ads": log.ad_ids[log.ads[first:last]].tolist()}
        for name in ("click_probability", "bid_usd", "charge_usd", "shown_probability", "clicked"):
            row[name] = getattr(log, name)[first:last].tolist()
        rows.append(row)
    return rows


def test_an_imported_log_is_simulated_like_the_one_it_was_exported_from(tmp_path: Path) -> None:
    """Over several chunks, so that numbers of phrases and ads go on from one to the next."""
    log = random_log(4, requests=20_000, phrases=400, ads=500)
    none = np.zeros(400, np.int32)
    log = RequestLog(**{**{f.name: getattr(log, f.name) for f in fields(log)}, "prior_clicks": none})
    import_log(parquet(tmp_path / "log.parquet", exported(log)), tmp_path / "log")
    found = simulate(read_log(tmp_path / "log"), DESIGNS["adaptive"], 50, warmup=5000)
    wanted = simulate(log, DESIGNS["adaptive"], 50, warmup=5000)
    assert found.decisions.tolist() == wanted.decisions.tolist()
    assert found.sums.tolist() == pytest.approx(wanted.sums.tolist())


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"click_probability": [1.5, 0.1]}, "field click_probability: ad 1 of the list: 1.5 is outside 0..1"),
    ({"click_probability": [0.5, float("nan")]}, "field click_probability: ad 2 of the list: nan is outside"),
    ({"shown_probability": [-0.1, 0]}, "field shown_probability: ad 1 of the list: -0.1 is outside 0..1"),
    ({"bid_usd": [1, -2]}, "field bid_usd: ad 2 of the list: -2.0 is outside 0..1000000000"),
    ({"charge_usd": [1, 1e300]}, "field charge_usd: ad 2 of the list: 1e+300 is outside"),
    ({"time_ms": 5}, "field time_ms: 5 is before 1700000000000, the time of the request before it"),
    ({"time_ms": "noon"}, "field time_ms: 'noon' is not a whole number of milliseconds"),
    ({"time_ms": 1.5}, "field time_ms: 1.5 is not a whole number of milliseconds"),
    ({"ads": [50, 50]}, "field ads: 50 comes twice in the list"),
    ({"ads": [0, 50]}, "field ads: 0 is outside 1..9223372036854775807"),
    ({"ads": [2**64, 50]}, "field ads: [18446744073709551616, 50] is not a list of whole numbers"),
    ({"ads": [50]}, "field click_probability: 2 values for 1 listed ads"),
    ({"bid_usd": ["high", 1]}, "field bid_usd: ['high', 1] is not a list of numbers"),
    ({"bid_usd": 1.0}, "field bid_usd: 1.0 is not a list of numbers"),
    ({"bid_usd": [None, 1]}, "field bid_usd: [None, 1.0] holds null"),
    ({"clicked": [2, 0]}, "field clicked: ad 1 of the list: 2 is outside 0..1"),
    ({"clicked": None}, "field clicked: is missing"),
    ({"query": " \u200b"}, "has not 1..500 visible characters"),
    ({"query": "q" * 501}, "has not 1..500 visible characters"),
    ({"query": 7}, "field query: 7 is not text"),
    ({"gender": "m"}, "field gender: 'm' is none of female, male"),
    ({"age": "40"}, "field age: '40' is none of 13-17,"),
    ({"cost": -3}, "field cost: -3.0 is outside 0..1000000000"),
    ({"cost": True}, "field cost: true is not a number"),
    ({"throttle_level": float("inf")}, "field throttle_level: inf is outside"),
]


@pytest.mark.parametrize(("change", "message"), FAULTS)
def test_a_fault_is_named_by_row_field_value_and_limit(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as caught:
        import_log(jsonl(tmp_path / "log.jsonl", [FULL, FULL | change, FULL]), tmp_path / "log")
    first, second = str(caught.value).splitlines()[:2]
    assert first == f"{tmp_path / 'log.jsonl'}: nothing imported, 1 bad row; faults:"
    assert second.startswith("  row 2, field ")
    assert message in second
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


def test_all_bad_rows_are_counted_and_the_first_faults_shown(tmp_path: Path) -> None:
    rows = [FULL | ({"cost": -1} if i % 3 == 0 else {}) for i in range(30_000)]
    file = jsonl(tmp_path / "log.jsonl", rows)
    file.write_text(file.read_text().replace("{", "", 1))
    with pytest.raises(UserError) as caught:
        import_log(file, tmp_path / "log")
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{file}: nothing imported, 10000 bad rows; the first 20 faults:"
    assert lines[1].startswith("  row 1: not JSON")
    assert lines[2:] == [f"  row {i}, field cost: -1.0 is outside 0..1000000000" for i in range(4, 59, 3)]


def test_time_does_not_go_back_between_chunks(tmp_path: Path) -> None:
    times = [*range(1_700_000_000_000, 1_700_000_000_000 + CHUNK_ROWS), 1_700_000_000_001]
    file = jsonl(tmp_path / "log.jsonl", [FULL | {"time_ms": time_ms} for time_ms in times])
    message = rf"row {CHUNK_ROWS + 1}, field time_ms: 1700000000001 is before {times[-2]}, the time of"
    with pytest.raises(UserError, match=message):
        import_log(file, tmp_path / "log")


def test_csv_rows_of_another_width_are_named(tmp_path: Path) -> None:
    file = as_csv(tmp_path / "log.csv", [FULL, PLAIN, EMPTY])
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:2], "1,2,3", *lines[2:]]))
    with pytest.raises(UserError, match="row 2: 3 cells where the header has 14"):
        import_log(file, tmp_path / "log")


@pytest.mark.parametrize(("name", "write"), [FORMATS[2], FORMATS[4]])
def test_missing_columns_are_named(tmp_path: Path, name: str, write: Callable[[Path, Rows], Path]) -> None:
    rows = [{key: value for key, value in FULL.items() if key not in ("ads", "clicked")}]
    with pytest.raises(UserError, match=rf"{name}: no column ads, clicked; the file has \['time_ms', 'que"):
        import_log(write(tmp_path / name, rows), tmp_path / "log")


@pytest.mark.parametrize(("name", "write"), FORMATS)
def test_a_log_without_requests_is_refused(
    tmp_path: Path, name: str, write: Callable[[Path, Rows], Path]
) -> None:
    file = write(tmp_path / name, [FULL])
    if name.endswith(".parquet"):
        pq.write_table(pq.read_table(file).slice(0, 0), file)
    elif ".csv" in name:
        packed(file, ",".join(FULL) + "\n")
    else:
        packed(file, "\n")
    with pytest.raises(UserError, match=r"the file holds no requests"):
        import_log(file, tmp_path / "log")
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(("name", "write"), FORMATS[1::2] + FORMATS[4:])
def test_a_cut_file_leaves_the_old_log(
    tmp_path: Path, name: str, write: Callable[[Path, Rows], Path]
) -> None:
    import_log(jsonl(tmp_path / "old.jsonl", [FULL]), tmp_path / "log")
    before = open_log(tmp_path / "log").fingerprint
    file = write(tmp_path / name, [PLAIN | {"query": f"query {i * i}"} for i in range(5000)])
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(UserError, match=r"cut short|unreadable"):
        import_log(file, tmp_path / "log")
    assert open_log(tmp_path / "log").fingerprint == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("log.txt", b"x", r"must end in one of \.jsonl"),
        ("log.parquet", b"PAR1", "unreadable as Parquet after row 0"),
        ("log.csv", b"\xff\xfet\x00", "the file is UTF-16; save it as UTF-8"),
        ("log.csv", b"time_ms,qu\xffery\n", "line 1: byte 0xFF at position 11 is not UTF-8"),
        ("log.csv", b"", "the file is empty"),
        ("log.csv", b'time_ms,query\n1,"a', "no column ads"),
        ("log.csv", b"time_ms,time_ms\n", "column 'time_ms' comes twice"),
        ("log.jsonl", b"[]", "a JSON array; one object a line is due"),
    ],
)
def test_files_that_are_no_logs(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        import_log(tmp_path / name, tmp_path / "log")


def test_an_absent_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        import_log(tmp_path / "log.csv", tmp_path / "log")
    (tmp_path / "log.csv").mkdir()
    with pytest.raises(UserError, match="not a file"):
        import_log(tmp_path / "log.csv", tmp_path / "log")


def test_more_locations_than_codes_are_refused(tmp_path: Path) -> None:
    rows = [FULL | {"location": f"L{i}"} for i in range(128)]
    import_log(jsonl(tmp_path / "log.jsonl", rows[:127]), tmp_path / "log")
    with pytest.raises(UserError, match="row 128, field location: 'L127' is one too many, 127 may be"):
        import_log(jsonl(tmp_path / "log.jsonl", rows), tmp_path / "log")


def test_parquet_timestamps_are_times(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([FULL, PLAIN])
    times = pa.array([1_700_000_000_000_000, 1_700_000_000_500_999], pa.timestamp("us", "UTC"))
    pq.write_table(table.set_column(0, "time_ms", times), tmp_path / "log.parquet")
    import_log(tmp_path / "log.parquet", tmp_path / "log")
    assert np.diff(read_log(tmp_path / "log").time_ms).tolist() == [500]


def test_the_command_says_what_it_made_and_what_it_assumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = jsonl(tmp_path / "log.jsonl", [FULL, PLAIN | {"campaign": 3}])
    assert main(["log", "import", str(file), "--out", str(tmp_path / "log")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "2 requests of 2 phrases over 1 day; 4 ads, 2.5 a list; 1 click",
        "cost is the number of listed ads in 1 request, which gives none",
        "throttle_level is unknown in 1 request",
        "shown_probability is click_probability in 1 request, which gives none: expected losses rest on it",
        "ignored columns: campaign",
        f"request log: {tmp_path / 'log'}",
    ]
    file = jsonl(tmp_path / "bad.jsonl", [FULL | {"cost": -1}])
    assert main(["log", "import", str(file), "--out", str(tmp_path / "log")]) == 2
    assert "row 1, field cost: -1.0 is outside" in capsys.readouterr().err


def test_a_full_disk_is_said_in_a_sentence(tmp_path: Path) -> None:
    file = parquet(tmp_path / "log.parquet", exported(random_log(5, requests=4000)))
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, old[1]))
    try:
        with pytest.raises(UserError, match=r"log: cannot be written: "):
            import_log(file, tmp_path / "log")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert [path.name for path in tmp_path.iterdir()] == ["log.parquet"]


def test_the_examples_of_the_readme_are_imported(tmp_path: Path) -> None:
    examples = [block.partition("\n") for block in README.read_text(encoding="utf-8").split("```")[1::2]]
    texts = {kind: text for kind, _, text in examples}
    logs = []
    for kind, name in (("json", "log.jsonl"), ("csv", "log.csv")):
        (tmp_path / name).write_text(texts[kind])
        import_log(tmp_path / name, tmp_path / kind)
        logs.append(read_log(tmp_path / kind))
    for field in fields(RequestLog):
        np.testing.assert_array_equal(getattr(logs[0], field.name), getattr(logs[1], field.name), field.name)
