"""Import of users' files: every format, every way they are wrong."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.catalogue.bundle import read_catalogue
from services.catalogue.importing import import_catalogue
from services.catalogue.schema import Ad, daily_budgets
from services.runtime.bundles import open_bundle
from services.runtime.errors import BundleError, UserError

DATA = Path(os.environ.get("FRUGALADS_DATA", Path(__file__).parents[3] / "shared" / "data"))

Rows = Sequence[Mapping[str, Any]]

FULL = {
    "ad_id": 7,
    "title": "Trail Running Shoes",
    "description": "Mesh upper.",
    "advertiser": "Meadowdale Sports",
    "category": "Running Shoes",
    "bid_usd": 1.25,
    "product_price_usd": 89.99,
    "locations": ["US-CA", "US-OR"],
    "genders": ["female"],
    "age_bands": ["25-34", "65+"],
    "devices": ["mobile", "tablet"],
    "daily_budget_usd": 250.0,
}
PLAIN = {"ad_id": 8, "title": "Bike Lock", "advertiser": "Velvetside Sports", "bid_usd": 0.5}
ADS = [
    Ad(
        ad_id=7,
        title="Trail Running Shoes",
        advertiser="Meadowdale Sports",
        bid_usd=1.25,
        description="Mesh upper.",
        category="Running Shoes",
        product_price_usd=89.99,
        locations=("US-CA", "US-OR"),
        genders=("female",),
        age_bands=("25-34", "65+"),
        devices=("mobile", "tablet"),
        daily_budget_usd=250.0,
    ),
    Ad(ad_id=8, title="Bike Lock", advertiser="Velvetside Sports", bid_usd=0.5),
]


def jsonl(path: Path, rows: Rows) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def as_csv(path: Path, rows: Rows) -> Path:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    plain = path.with_name("plain.csv")
    with plain.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for row in rows:
            writer.writerow({k: "|".join(v) if isinstance(v, list) else v for k, v in row.items()})
    path.write_bytes(gzip.compress(plain.read_bytes()) if path.suffix == ".gz" else plain.read_bytes())
    return path


def parquet(path: Path, rows: Rows) -> Path:
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path)
    return path


WRITERS = {
    "ads.jsonl": jsonl,
    "ads.jsonl.gz": jsonl,
    "ads.csv": as_csv,
    "ads.csv.gz": as_csv,
    "ads.parquet": parquet,
}


def refusal(path: Path, out: Path) -> str:
    """The message of a failed import, which must leave nothing behind."""
    before = sorted(out.parent.iterdir())
    with pytest.raises(UserError) as caught:
        import_catalogue(path, out)
    assert sorted(out.parent.iterdir()) == before
    return str(caught.value)


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_ads(tmp_path: Path, name: str) -> None:
    summary = import_catalogue(WRITERS[name](tmp_path / name, [FULL, PLAIN]), tmp_path / "out")
    assert read_catalogue(tmp_path / "out") == ADS
    assert (summary.ads, summary.advertisers, summary.advertisers_with_budget, summary.categories) == (
        2,
        2,
        1,
        1,
    )
    assert summary.modelled_bids == 0
    assert daily_budgets(ADS) == {"Meadowdale Sports": 250.0, "Velvetside Sports": None}


def test_aliases_and_types_of_a_product_feed(tmp_path: Path) -> None:
    row = {
        "id": "3920564",
        "title": " Toner \t cartridge\n",
        "short_description": None,
        "supplier": "Inkworth",
        "price_cents": "4995",
        "attrs": {"type": "Original", "printing_colours": "Black"},
        "date_released": "2009-12-10",
    }
    summary = import_catalogue(jsonl(tmp_path / "feed.jsonl", [row]), tmp_path / "out")
    (ad,) = read_catalogue(tmp_path / "out")
    assert (ad.ad_id, ad.title, ad.advertiser, ad.category) == (
        3920564,
        "Toner cartridge",
        "Inkworth",
        "Original",
    )
    assert ad.product_price_usd == 49.95
    assert summary.ignored_columns == ("date_released",)
    assert summary.modelled_bids == 1
    assert open_bundle(tmp_path / "out", "catalogue", max_bytes=1 << 20).meta["modelled_bids"] == 1


def test_the_first_alias_that_holds_something_counts(tmp_path: Path) -> None:
    row = PLAIN | {"category": "", "product_type": "Lock", "attrs": {"type": "Other"}}
    import_catalogue(jsonl(tmp_path / "a.jsonl", [row]), tmp_path / "out")
    assert read_catalogue(tmp_path / "out")[0].category == "Lock"


def test_parquet_reads_unknown_columns_as_ignored_and_nested_types(tmp_path: Path) -> None:
    row = PLAIN | {"attrs": {"type": "Lock", "weight": 3}, "colour": "black"}
    summary = import_catalogue(parquet(tmp_path / "a.parquet", [row]), tmp_path / "out")
    assert summary.ignored_columns == ("colour",)
    assert read_catalogue(tmp_path / "out")[0].category == "Lock"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"ad_id": None}, "field ad_id or id: is missing"),
        ({"ad_id": 0}, "field ad_id: 0 is outside 1..9223372036854775807"),
        ({"ad_id": 2**63}, "field ad_id: 9223372036854775808 is outside"),
        ({"ad_id": "12x"}, "field ad_id: '12x' is not an integer; keep SKUs in another column"),
        ({"ad_id": True}, "field ad_id: true is not an integer"),
        ({"ad_id": 1.5}, "field ad_id: 1.5 is not an integer"),
        ({"title": "  "}, "field title: is missing"),
        ({"title": 5}, "field title: 5 is not text"),
        ({"title": "a\x00b"}, "holds the control character U+0000"),
        ({"title": "a\ud800b"}, "holds the control character U+D800"),
        ({"advertiser": "x" * 101}, "has 101 characters, the limit is 100"),
        ({"category": "c" * 101}, "has 101 characters, the limit is 100"),
        ({"bid_usd": 0}, "field bid_usd: 0 is outside 0.000001..1000 US dollars"),
        ({"bid_usd": 4e-7}, "field bid_usd: 4e-07 is outside 0.000001..1000 US dollars"),
        ({"bid_usd": 1000.01}, "field bid_usd: 1000.01 is outside 0.000001..1000 US dollars"),
        ({"bid_usd": "1,5"}, "field bid_usd: '1,5' is not a number"),
        ({"bid_usd": "nan"}, "field bid_usd: 'nan' is not a number"),
        ({"bid_usd": float("nan")}, "field bid_usd: nan is not a number"),
        ({"bid_usd": float("inf")}, "field bid_usd: inf is outside"),
        ({"bid_usd": True}, "field bid_usd: true is not a number"),
        ({"bid_usd": "1e999"}, "field bid_usd: '1e999' is outside"),
        ({"price_cents": "abc"}, "field price_cents: 'abc' is not a number"),
        ({"product_price_usd": -1}, "field product_price_usd: -1 is outside 0..1000000000"),
        ({"locations": {"a": 1}}, "is neither a list nor text"),
        ({"locations": ["x" * 65]}, "has more than 64 characters"),
        ({"locations": [f"r{at}" for at in range(1001)]}, "1001 values, the limit is 1000"),
        ({"locations": "US-CA,US-OR"}, "'US-CA,US-OR' is no region code; use | between values, or a list"),
        (
            {"locations": ["US-CA; US-OR"]},
            "'US-CA; US-OR' is no region code; use | between values, or a list",
        ),
        ({"locations": "New York"}, "'New York' is no region code"),
        ({"genders": ["female", "f"]}, "field genders: 'f' is none of female, male"),
        ({"age_bands": "18-24|99"}, "field age_bands: '99' is none of 13-17, 18-24"),
        ({"devices": [None]}, "field devices: null is not text"),
        ({"daily_budget_usd": -5}, "field daily_budget_usd: -5 is outside 0.000001..1000000000 US dollars"),
    ],
)
def test_a_faulty_field_is_named_with_row_value_and_limit(
    tmp_path: Path, change: dict[str, object], problem: str
) -> None:
    message = refusal(jsonl(tmp_path / "a.jsonl", [FULL, PLAIN | change]), tmp_path / "out")
    assert "row 2, " in message
    assert problem in message


def test_twenty_faults_are_listed_and_reading_stops(tmp_path: Path) -> None:
    rows = [PLAIN | {"ad_id": at, "price_cents": "abc"} for at in range(1, 40)]
    message = refusal(jsonl(tmp_path / "a.jsonl", rows), tmp_path / "out")
    assert message.count("'abc' is not a number") == 20
    assert "row 20, field price_cents" in message
    assert "row 21" not in message


def test_every_fault_of_a_row_is_listed(tmp_path: Path) -> None:
    message = refusal(jsonl(tmp_path / "a.jsonl", [{"ad_id": "x", "bid_usd": 0}]), tmp_path / "out")
    assert message.count("row 1, field") == 4


def test_a_repeated_ad_id_names_both_rows(tmp_path: Path) -> None:
    rows = [PLAIN | {"ad_id": at} for at in (5, 6, 7, "6", 5)]
    message = refusal(jsonl(tmp_path / "a.jsonl", rows), tmp_path / "out")
    assert "row 4, field ad_id: 6 is also the id of row 2" in message
    assert "row 5, field ad_id: 5 is also the id of row 1" in message


def test_jsonl_rows_are_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(PLAIN) + "\n\n  \n" + "{oops\n[1]\n" + json.dumps(PLAIN) + "\n")
    message = refusal(path, tmp_path / "out")
    assert "row 4: not JSON: " in message
    assert "row 5: [1] is not a JSON object" in message
    assert "row 6, field ad_id: 8 is also the id of row 1" in message


def test_a_json_array_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for indent in (None, 2):
        path.write_text("\n" + json.dumps([PLAIN], indent=indent))
        assert "a.jsonl: a JSON array; one object a line is due (jq -c '.[]')" in refusal(
            path, tmp_path / "out"
        )
    path.write_text(json.dumps(PLAIN) + "\nnull\n")
    assert "row 2: null is not a JSON object" in refusal(path, tmp_path / "out")


def test_locations_are_kept_in_upper_case(tmp_path: Path) -> None:
    row = PLAIN | {"locations": "us-ca|US-CA| us-or "}
    import_catalogue(jsonl(tmp_path / "a.jsonl", [row]), tmp_path / "out")
    assert read_catalogue(tmp_path / "out")[0].locations == ("US-CA", "US-OR")


def test_bids_below_the_reserve_are_counted(tmp_path: Path) -> None:
    rows = [PLAIN | {"ad_id": at, "bid_usd": bid} for at, bid in enumerate((0.01, 0.049, 0.05, 1), start=1)]
    assert import_catalogue(jsonl(tmp_path / "a.jsonl", rows), tmp_path / "out").bids_below_reserve == 2


def test_two_budgets_of_one_advertiser_are_refused(tmp_path: Path) -> None:
    rows = [
        PLAIN | {"ad_id": 1, "daily_budget_usd": 20},
        PLAIN | {"ad_id": 2},
        PLAIN | {"ad_id": 3, "daily_budget_usd": 20.0},
        PLAIN | {"ad_id": 4, "daily_budget_usd": 30},
    ]
    message = refusal(jsonl(tmp_path / "a.jsonl", rows), tmp_path / "out")
    assert "row 4, field daily_budget_usd: 30 differs from 20 in row 1" in message
    import_catalogue(jsonl(tmp_path / "b.jsonl", rows[:3]), tmp_path / "out")
    assert daily_budgets(read_catalogue(tmp_path / "out")) == {"Velvetside Sports": 20.0}


def test_long_texts_are_cut_and_counted(tmp_path: Path) -> None:
    row = PLAIN | {"title": "t" * 301, "description": "word " * 500}
    summary = import_catalogue(jsonl(tmp_path / "a.jsonl", [row]), tmp_path / "out")
    (ad,) = read_catalogue(tmp_path / "out")
    assert len(ad.title) == 300
    assert len(ad.description) == 1999
    assert (summary.cut_titles, summary.cut_descriptions) == (1, 1)


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_cut_short_is_refused(tmp_path: Path, name: str) -> None:
    rows = [PLAIN | {"ad_id": at, "title": f"Lock {at * 7919 % 1009}"} for at in range(1, 400)]
    path = WRITERS[name](tmp_path / name, rows)
    path.write_bytes(path.read_bytes()[:-40])
    message = refusal(path, tmp_path / "out")
    assert str(path) in message


def test_files_that_are_not_what_they_are_called(tmp_path: Path) -> None:
    for name in WRITERS:
        path = tmp_path / name
        path.write_bytes(b"\x80\x81\x82 neither this nor that \xff" * 20)
        assert str(path) in refusal(path, tmp_path / "out")


def test_wrong_encodings_are_told(tmp_path: Path) -> None:
    line = json.dumps(PLAIN | {"title": "Café"}, ensure_ascii=False) + "\n"
    path = tmp_path / "a.jsonl"
    path.write_bytes(line.encode("latin-1"))
    assert "row 1: byte 0xE9 at position 27 is not UTF-8" in refusal(path, tmp_path / "out")
    path.write_bytes(line.encode("utf-16"))
    assert "the file is UTF-16; save it as UTF-8" in refusal(path, tmp_path / "out")
    for encoding in ("utf-16-le", "utf-16-be"):  # without the mark that says so
        path.write_bytes(line.encode(encoding))
        assert "NUL bytes in line 1; UTF-16? save it as UTF-8" in refusal(path, tmp_path / "out")
    path.write_bytes(line.encode("utf-8-sig"))
    import_catalogue(path, tmp_path / "out")
    assert read_catalogue(tmp_path / "out")[0].title == "Café"
    table = tmp_path / "a.csv"
    table.write_bytes("ad_id,title,advertiser\n1,Lock,A\n2,Café,B\n".encode("latin-1"))
    assert "line 3: byte 0xE9" in refusal(table, tmp_path / "other")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "ad_id,title\n1,Lock\n",
            "no column advertiser or supplier or merchant; the file has ['ad_id', 'title']",
        ),
        (
            "id,name\n",
            "no column title, no column advertiser or supplier or merchant; the file has ['id', 'name']",
        ),
        ("ad_id;title;advertiser\n", "; the values are separated by semicolons, commas are due"),
        ("ad_id\ttitle\tadvertiser\n", "; the values are separated by tabs, commas are due"),
        ("ad_id,Title,Supplier\n", "are lower-case: rename 'Title' to title, 'Supplier' to supplier"),
        ("ad_id,title,title,advertiser\n", "column 'title' comes twice"),
        ("ad_id,title,advertiser\n1,Lock,A\n2,Lock\n", "row 2: 2 cells where the header has 3"),
        ('ad_id,title,advertiser\n1,"Lock,A\n', "not CSV after row 0"),
        ("ad_id,title,advertiser\n", "the file holds no ads"),
    ],
)
def test_faulty_csv(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    assert problem in refusal(path, tmp_path / "out")


def test_csv_cells_may_span_lines_and_rows_are_counted_as_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'ad_id,title,advertiser\r\n1,"Bike\r\nLock",A\r\n\r\n2,Lock,\r\n')
    assert "row 2, field advertiser or supplier or merchant: is missing" in refusal(path, tmp_path / "out")


def test_paths_that_hold_no_catalogue_file(tmp_path: Path) -> None:
    empty, folder, text = tmp_path / "empty.jsonl", tmp_path / "folder.csv", tmp_path / "ads.txt"
    empty.touch()
    folder.mkdir()
    text.touch()
    assert "the file is empty" in refusal(empty, tmp_path / "out")
    assert "not a file" in refusal(folder, tmp_path / "out")
    assert "must end in one of .jsonl" in refusal(text, tmp_path / "out")
    assert "no such file" in refusal(tmp_path / "none.parquet", tmp_path / "out")
    assert "File name too long" in refusal(tmp_path / f"{'n' * 300}.csv", tmp_path / "out")


@pytest.mark.parametrize(
    "column",
    [pa.array([2**30], pa.date32()), pa.array([2**62], pa.timestamp("us")), pa.array([1], pa.time64("ns"))],
    ids=str,
)
def test_parquet_dates_beyond_those_of_python_are_refused(tmp_path: Path, column: pa.Array) -> None:
    """Arrow raises OverflowError for them, which ended in a traceback."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"ad_id": [1], "title": column, "advertiser": ["A"]}), path)
    assert "a.parquet: unreadable after row 0: " in refusal(path, tmp_path / "out")


def test_lines_and_numbers_without_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"ad_id": ' + b"1" * (1 << 20) + b"}\n")
    assert "line 1 is longer than 1048576 bytes" in refusal(path, tmp_path / "out")
    path.write_bytes(b'{"ad_id": ' + b"1" * 5000 + b"}\n" + b"[" * 100_000 + b"\n")
    message = refusal(path, tmp_path / "out")
    assert "row 1: not JSON that can be read: a number is too long" in message
    assert "row 2: not JSON" in message


def test_a_failed_import_leaves_the_catalogue_that_was_there(tmp_path: Path) -> None:
    import_catalogue(jsonl(tmp_path / "good.jsonl", [FULL]), tmp_path / "out")
    refusal(jsonl(tmp_path / "bad.jsonl", [PLAIN, PLAIN]), tmp_path / "out")
    assert read_catalogue(tmp_path / "out") == ADS[:1]
    import_catalogue(jsonl(tmp_path / "new.jsonl", [PLAIN]), tmp_path / "out")
    assert read_catalogue(tmp_path / "out") == ADS[1:]


def test_a_folder_of_something_else_is_never_replaced(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [PLAIN])
    home = tmp_path / "home"
    home.mkdir()
    (home / "diary.txt").write_text("dear diary")
    assert "holds something other than a bundle of kind 'catalogue'" in refusal(path, home)
    assert (home / "diary.txt").read_text() == "dear diary"
    assert "holds something other than a bundle" in refusal(path, path)


def test_progress_reaches_its_end(tmp_path: Path) -> None:
    for name, write in WRITERS.items():
        steps: list[tuple[int, int]] = []
        path = write(tmp_path / name, [PLAIN | {"ad_id": at} for at in range(1, 3000)])
        import_catalogue(path, tmp_path / "out", lambda *step, steps=steps: steps.append(step))
        assert steps[-1][0] == steps[-1][1] > 0
        assert [done for done, _ in steps] == sorted(done for done, _ in steps)
        assert len(steps) == 4


def test_an_altered_catalogue_is_refused(tmp_path: Path) -> None:
    import_catalogue(jsonl(tmp_path / "a.jsonl", [PLAIN]), tmp_path / "out")
    file = tmp_path / "out" / "ads.parquet"
    file.write_bytes(file.read_bytes()[:-1] + b"\x00")
    with pytest.raises(BundleError, match=r"ads\.parquet: its SHA-256 differs"):
        read_catalogue(tmp_path / "out")
    with pytest.raises(BundleError, match="no such bundle"):
        read_catalogue(tmp_path / "none")


def test_importing_twice_gives_the_same_fingerprint(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [FULL, PLAIN])
    import_catalogue(path, tmp_path / "one")
    import_catalogue(path, tmp_path / "two")
    prints = {
        open_bundle(tmp_path / name, "catalogue", max_bytes=1 << 20).fingerprint for name in ("one", "two")
    }
    assert len(prints) == 1


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_import(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    for name in WRITERS:
        path = folder / name
        path.write_bytes(content)
        with pytest.raises(UserError):
            import_catalogue(path, folder / "out")


@pytest.mark.data
def test_the_icecat_feed_imports(tmp_path: Path) -> None:
    feed = DATA / "icecat" / "products.jsonl.gz"
    if not feed.exists() and not os.environ.get("CI"):
        pytest.skip(f"{feed} is absent; set FRUGALADS_DATA")
    summary = import_catalogue(feed, tmp_path / "out")
    ads = read_catalogue(tmp_path / "out")
    assert summary.ads == len(ads) == summary.modelled_bids == 19_406
    assert summary.advertisers == 161
    assert summary.ignored_columns == ("date_released",)
    assert all(ad.text for ad in ads)
