import gzip
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from loadtest.preparation import KEY_STREAM, RATINGS, WEB_QUERIES, prepare, query_arguments
from loadtest.runner import Samples, read_queries
from loadtest.showcase import FREQUENT, examples
from services.runtime.bundles import MANIFEST
from services.runtime.errors import UserError


def samples(query: list[int], ads: list[int], first_click: list[float] | None = None) -> Samples:
    count = len(query)
    return Samples(
        query=np.array(query, np.int32),
        scheduled_s=np.arange(count, dtype=np.float64),
        sent_s=np.arange(count, dtype=np.float64),
        answered_s=np.arange(count, dtype=np.float64),
        code=np.zeros(count, np.int16),
        cache_state=np.ones(count, np.int8),
        compute_us=np.zeros(count, np.int64),
        revenue_usd=np.zeros(count),
        ads=np.array(ads, np.int16),
        first_click=np.array(first_click or [0.0] * count),
        degraded=np.zeros(count, np.bool_),
        timeout_s=1.0,
    )


def test_examples_are_frequent_queries_whose_first_ad_fits_best() -> None:
    # "head" is asked three times under three line numbers, "bare" gets no ad, "thin" one of four.
    queries = ["head", "head", "bare", "tail", "thin", "head", "mid", "mid"]
    clicks = [0.02, 0.01, 0.0, 0.09, 0.5, 0.02, 0.04, 0.03]
    run = samples(list(range(8)), [4, 4, 0, 4, 1, 4, 4, 4], clicks)
    assert examples(run, queries) == ["tail", "mid", "head"]
    assert examples(run, queries, count=2) == ["tail", "mid"]


def test_examples_leave_out_rare_queries() -> None:
    queries = [f"q{at}" for at in range(FREQUENT)] * 2 + ["rare"]
    clicks = [0.01] * 2 * FREQUENT + [0.9]
    run = samples(list(range(len(queries))), [4] * len(queries), clicks)
    assert examples(run, queries, count=1) == ["q0"]


def test_a_run_without_ads_has_no_examples() -> None:
    assert examples(samples([0, 1], [0, 0]), ["a", "b"]) == []


@pytest.mark.parametrize("file", [None, "ads.csv"])
def test_a_catalogue_of_ones_own_is_not_replaced(tmp_path: Path, file: str | None) -> None:
    for name in ("catalogue", "models/scorer"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / MANIFEST).write_text("{}")
    catalogue = None if file is None else tmp_path / file
    if catalogue is not None:
        catalogue.write_text("ad_id,title,advertiser\n1,Lock,A\n")
    with pytest.raises(UserError, match="is a catalogue of your own; run make demo with DATA=DIR"):
        prepare(tmp_path, catalogue, 10, print)
    assert (tmp_path / "catalogue" / MANIFEST).read_text() == "{}"


def test_a_missing_catalogue_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "models" / "scorer").mkdir(parents=True)
    (tmp_path / "models" / "scorer" / MANIFEST).write_text("{}")
    with pytest.raises(UserError, match=r"absent\.csv: No such file"):
        prepare(tmp_path, tmp_path / "absent.csv", 10, print)


def test_queries_are_read_a_line_each(tmp_path: Path) -> None:
    file = tmp_path / "q.txt"
    file.write_text("toner\nusb cable\ntoner\n")
    packed = tmp_path / "q.txt.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert read_queries(file) == read_queries(packed) == ["toner", "usb cable", "toner"]


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "no queries"), (b"toner\n\ncable\n", "line 2 is empty"), (b"\xff\xfe", "not a UTF-8 text file")],
)
def test_a_bad_query_file_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "q.txt"
    file.write_bytes(content)
    with pytest.raises(UserError, match=words) as caught:
        read_queries(file)
    assert str(file) in str(caught.value)


def test_an_absent_query_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.txt: No such file or directory$"):
        read_queries(tmp_path / "absent.txt")


def test_public_data_and_ratings_are_used_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRUGALADS_DATA", str(tmp_path))
    catalogue = tmp_path / "mine" / "ads.csv"
    assert query_arguments(None, 10) == ["--seed", 1]
    assert query_arguments(catalogue, 10) == ["--seed", 1, "--requests", 10]
    files = [tmp_path / KEY_STREAM, tmp_path / WEB_QUERIES, catalogue.parent / RATINGS]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    assert query_arguments(catalogue, 10) == [
        *("--seed", 1, "--key-stream", files[0], "--web-queries", files[1], "--ratings", files[2]),
        *("--requests", 10),
    ]


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_while_building_leaves_no_process(tmp_path: Path, signum: int, code: int) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "loadtest.demo", "--data", str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert demo.stdout is not None
    assert demo.stdout.readline() == "building the scorer model\n"
    end = time.monotonic() + 20
    while not (children := psutil.Process(demo.pid).children(recursive=True)):
        assert time.monotonic() < end, "no step was started"
    while "services.cli" not in children[0].cmdline():
        assert time.monotonic() < end, "no step runs"
    assert os.getsid(children[0].pid) != os.getsid(demo.pid), "a Ctrl-C of the terminal would reach the step"
    children[0].suspend()  # so that it cannot end by itself
    demo.send_signal(signum)
    demo.communicate(timeout=20)
    assert demo.returncode == code
    assert psutil.wait_procs(children, timeout=5)[1] == []
