"""A request log on disk: what is written comes back; what is wrong is refused and leaves nothing behind."""

from __future__ import annotations

import itertools
import resource
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_logs import logs, random_log

from loadtest.request_log.schema import DAY_MS, LISTED_COLUMNS, REQUEST_COLUMNS, RequestLog, Requests
from loadtest.request_log.storage import ADS, KIND, PHRASES, REQUESTS, LogWriter, open_log, read_log
from services.runtime.bundles import MANIFEST, open_bundle, write_bundle
from services.runtime.errors import BundleError, UserError

NAMES = [field.name for field in fields(RequestLog)]


def writer(log: RequestLog, folder: Path) -> LogWriter:
    return LogWriter(
        folder,
        ad_ids=log.ad_ids,
        phrases=log.phrases,
        prior_requests=log.prior_requests,
        prior_clicks=log.prior_clicks,
        prior_revenue_usd=log.prior_revenue_usd,
        meta={"stream": "test"},
    )


def write(log: RequestLog, folder: Path, *cuts: int) -> Path:
    """Writes a log in parts that end at `cuts`."""
    with writer(log, folder) as parts:
        bounds = [0, *sorted(cuts), len(log.time_ms)]
        for start, stop in itertools.pairwise(bounds):
            parts.append(part(log, start, stop))
    return folder


def part(log: Requests, start: int, stop: int) -> Requests:
    first, last = log.offsets[start], log.offsets[stop]
    arrays: dict[str, Any] = {c.name: getattr(log, c.name)[start:stop] for c in REQUEST_COLUMNS}
    arrays |= {c.name: getattr(log, c.name)[first:last] for c in LISTED_COLUMNS}
    return Requests(**arrays, offsets=log.offsets[start : stop + 1] - first)


def assert_same(found: RequestLog, wanted: RequestLog) -> None:
    for name in NAMES:
        ours, theirs = getattr(found, name), getattr(wanted, name)
        if isinstance(theirs, list):
            assert ours == theirs
        else:
            assert ours.dtype == theirs.dtype, name
            np.testing.assert_array_equal(ours, theirs, name)


@pytest.fixture
def log() -> RequestLog:
    return random_log(1, requests=400)


@pytest.fixture
def folder(log: RequestLog, tmp_path: Path) -> Path:
    return write(log, tmp_path / "log", 100)


@settings(max_examples=30)
@given(logs(), st.data())
def test_a_log_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, log: RequestLog, data: st.DataObject
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(log.time_ms)), max_size=3))
    folder = write(log, tmp_path_factory.mktemp("logs") / "log", *cuts)
    assert_same(read_log(folder), log)
    meta = open_log(folder).meta
    assert (meta["requests"], meta["listed"], meta["stream"]) == (len(log.time_ms), len(log.ads), "test")


def test_days_are_the_requests_of_those_days_and_all_tables(tmp_path: Path) -> None:
    log = random_log(2, requests=900, time_ms=np.sort(np.random.default_rng(2).integers(0, 5 * DAY_MS, 900)))
    folder = write(log, tmp_path / "log", 200, 450)
    day = log.time_ms // DAY_MS
    start, stop = np.searchsorted(day, (1, 3))
    assert 0 < start < stop < 900
    wanted = replace(log, **vars(part(log, start, stop)))
    assert_same(read_log(folder, days=(1, 3)), wanted)
    assert_same(read_log(folder, days=(0, 5)), log)
    with pytest.raises(UserError, match="no requests in days 5 up to 9"):
        read_log(folder, days=(5, 9))


AMISS: list[tuple[str, int, float, str]] = [
    ("time_ms", 7, -5, r"row 8, field time_ms: -5 is outside 0\.\.8640000000000"),
    ("time_ms", 399, 0, r"row 400, field time_ms: 0 is before \d+, the time of the request before it"),
    ("phrase", 7, 6, r"row 8, field phrase: 6 is outside 0\.\.5"),
    ("gender", 7, 3, r"row 8, field gender: 3 is outside 0\.\.2"),
    ("location", 7, -1, r"row 8, field location: -1 is outside 0\.\.127"),
    ("cost", 7, -1, r"row 8, field cost: -1.0 is outside 0\.\.1000000000"),
    ("cost", 7, np.inf, r"row 8, field cost: inf is outside"),
    ("throttle_level", 7, -0.5, r"row 8, field throttle_level: -0.5 is outside"),
    ("ads", 40, 12, r"row \d+, field ads: ad \d of the list: 12 is outside 0\.\.11"),
    ("ads", 40, -1, r"row \d+, field ads: ad \d of the list: -1 is outside 0\.\.11"),
    (
        "click_probability",
        0,
        1.5,
        r"row \d+, field click_probability: ad 1 of the list: 1.5 is outside 0\.\.1",
    ),
    ("click_probability", 0, np.nan, r"field click_probability: ad 1 of the list: nan is outside"),
    ("bid_usd", 0, -0.25, r"field bid_usd: ad 1 of the list: -0.25 is outside 0\.\.1000000000"),
    ("charge_usd", 0, np.inf, r"field charge_usd: ad 1 of the list: inf is outside"),
    ("shown_probability", 0, -1, r"field shown_probability: ad 1 of the list: -1.0 is outside 0\.\.1"),
]


@pytest.mark.parametrize(("column", "at", "value", "message"), AMISS)
def test_a_value_out_of_bounds_is_refused_by_writer_and_reader(
    log: RequestLog, folder: Path, tmp_path: Path, column: str, at: int, value: float, message: str
) -> None:
    getattr(log, column)[at] = value
    with pytest.raises(UserError, match=message):
        write(log, tmp_path / "other", 100)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log"]
    with pytest.raises(UserError, match=rf"{REQUESTS}: .*{message}"):
        read_log(altered(folder, REQUESTS, lambda table: with_value(table, column, at, value)))


def with_value(table: pa.Table, column: str, at: int, value: float) -> pa.Table:
    """The table with one value changed: of a list column, the one at that place of all lists."""
    place, field = table.schema.get_field_index(column), table.schema.field(column)
    array = table[column].combine_chunks()
    values = (array.values if pa.types.is_list(field.type) else array).to_numpy(zero_copy_only=False).copy()
    values[at] = value
    changed = pa.array(values)
    if pa.types.is_list(field.type):
        changed = pa.ListArray.from_arrays(array.offsets, changed, type=field.type)
    return table.set_column(place, field, changed)


def altered(folder: Path, name: str, change: Callable[[pa.Table], pa.Table]) -> Path:
    """The bundle with one file rewritten, its checksums right."""
    bundle = open_bundle(folder, KIND, max_bytes=1 << 30)
    tables = {file: pq.read_table(bundle.path(file)) for file in (REQUESTS, PHRASES, ADS)}
    tables[name] = change(tables[name])
    with write_bundle(folder, KIND, dict(bundle.meta)) as staging:
        for file, table in tables.items():
            pq.write_table(table, staging / file)
    return folder


def test_an_ad_that_a_list_holds_twice_is_refused(log: RequestLog, tmp_path: Path) -> None:
    row = int(np.flatnonzero(np.diff(log.offsets) > 1)[0])
    log.ads[log.offsets[row] + 1] = log.ads[log.offsets[row]]
    ad_id = log.ad_ids[log.ads[log.offsets[row]]]
    with pytest.raises(UserError, match=rf"row {row + 1}, field ads: {ad_id} comes twice in the list"):
        write(log, tmp_path / "log")


@pytest.mark.parametrize("name", ["time_ms", "click_probability"])
def test_a_missing_column_is_named(folder: Path, name: str) -> None:
    with pytest.raises(BundleError, match=rf"{REQUESTS}: no column {name}"):
        read_log(altered(folder, REQUESTS, lambda table: table.drop_columns([name])))


def test_a_column_of_another_type_is_refused(folder: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        return table.set_column(0, "time_ms", table["time_ms"].cast(pa.float64()))

    with pytest.raises(BundleError, match="columns are not those of a request log"):
        read_log(altered(folder, REQUESTS, change))


def test_lists_of_different_lengths_are_refused(folder: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        place, field = table.schema.get_field_index("bid_usd"), table.schema.field("bid_usd")
        lists = [bids[1:] for bids in table["bid_usd"].to_pylist()]
        return table.set_column(place, field, pa.array(lists, field.type))

    with pytest.raises(BundleError, match="lists of bid_usd are not as long as those of ads"):
        read_log(altered(folder, REQUESTS, change))


@pytest.mark.parametrize("name", [REQUESTS, PHRASES, ADS])
def test_a_cut_file_is_refused_even_where_the_checksum_was_made_of_it(folder: Path, name: str) -> None:
    bundle = open_bundle(folder, KIND, max_bytes=1 << 30)
    contents = {file: bundle.read(file) for file in (REQUESTS, PHRASES, ADS)}
    cut = contents[name][: len(contents[name]) * 2 // 3]
    (folder / name).write_bytes(cut)
    with pytest.raises(BundleError, match="bytes, the manifest says"):
        read_log(folder)
    with write_bundle(folder, KIND, dict(bundle.meta)) as staging:
        for file, content in (contents | {name: cut}).items():
            (staging / file).write_bytes(content)
    with pytest.raises(BundleError, match=rf"{name}: unreadable"):
        read_log(folder)


def test_flipped_bits_are_noticed(folder: Path) -> None:
    content = bytearray((folder / REQUESTS).read_bytes())
    content[len(content) // 2] ^= 4
    (folder / REQUESTS).write_bytes(content)
    with pytest.raises(BundleError, match="SHA-256 differs"):
        read_log(folder)


def test_a_log_without_requests_is_neither_written_nor_read(
    log: RequestLog, folder: Path, tmp_path: Path
) -> None:
    with (
        pytest.raises(UserError, match="the log holds no requests"),
        writer(log, tmp_path / "other") as parts,
    ):
        parts.append(part(log, 0, 0))
    assert not (tmp_path / "other").exists()
    with pytest.raises(UserError, match=rf"{REQUESTS}: no requests"):
        read_log(altered(folder, REQUESTS, lambda table: table.slice(0, 0)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"phrases": ["a", "b", "a", "c", "d", "e"]},
            r"phrases.parquet: row 3, field phrase: 'a' comes twice",
        ),
        ({"ad_ids": np.array([*range(1, 12), 4])}, r"ads.parquet: row 12, field ad_id: 4 comes twice"),
        ({"prior_clicks": np.array([0, 0, 0, -2, 0, 0])}, r"row 4, field prior_clicks: -2 is below 0"),
        ({"prior_revenue_usd": np.array([0, np.inf, 0, 0, 0, 0])}, r"row 2, field prior_revenue_usd: inf is"),
    ],
)
def test_tables_are_checked(log: RequestLog, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        write(replace(log, **change), tmp_path / "log")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_no_half_log_and_the_old_one_stays(folder: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, old[1]))
    try:
        for target in (folder, tmp_path / "new"):
            with pytest.raises(UserError, match=rf"{target}: cannot be written: "):
                write(random_log(3, requests=4000), target, 1000, 2000, 3000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("free_bytes", [1 << 40, 10])
def test_an_interrupt_leaves_nothing(log: RequestLog, tmp_path: Path, free_bytes: int) -> None:
    """Nor does a disk that is full by then hide it."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)

    def interrupted() -> None:
        with writer(log, tmp_path / "log") as parts:
            parts.append(part(log, 0, 100))
            resource.setrlimit(resource.RLIMIT_FSIZE, (free_bytes, old[1]))
            raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert not list(tmp_path.iterdir())


def test_a_folder_of_something_else_is_not_replaced(log: RequestLog, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="holds something other than a bundle of kind 'request-log'"):
        write(log, tmp_path / "log")
    assert (tmp_path / "log" / "thesis.txt").exists()


def test_tables_may_grow_while_requests_are_written(log: RequestLog, tmp_path: Path) -> None:
    ad_ids, phrases, none = log.ad_ids.tolist(), log.phrases[:3], [0, 0, 0]
    few = replace(log, phrase=(log.phrase % 3).astype(np.int32))
    growing = LogWriter(
        tmp_path / "log",
        ad_ids=ad_ids,
        phrases=phrases,
        prior_requests=none,
        prior_clicks=none,
        prior_revenue_usd=none,
        meta={},
    )
    with growing as parts:
        parts.append(part(few, 0, 300))
        with pytest.raises(UserError, match=r"field phrase: \d is outside 0\.\.2"):
            parts.append(part(log, 300, 400))
        phrases += log.phrases[3:]
        none += [0, 0, 0]
        parts.append(part(log, 300, 400))
    assert read_log(tmp_path / "log").phrases == log.phrases
    assert (tmp_path / "log" / MANIFEST).exists()
