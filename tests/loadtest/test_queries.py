"""Query streams: popularity, kinds, distinctness, and what happens to faulty inputs."""

from __future__ import annotations

import lzma
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from loadtest.popularity import (
    CURVE,
    UNIVERSE,
    drawn_keys,
    popularity,
    ranks_by_frequency,
    share_of_top,
    trace_keys,
)
from loadtest.queries import QuerySummary, normalise, write_queries
from loadtest.sample import write_sample
from services.catalogue.importing import import_catalogue
from services.runtime.errors import UserError

DATA = Path(os.environ.get("FRUGALADS_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("catalogue")
    write_sample(folder / "s.jsonl", ads=2000, seed=1)
    import_catalogue(folder / "s.jsonl", folder / "out")
    return folder / "out"


def generator(seed: int = 1) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def trace(path: Path, keys: list[int]) -> Path:
    path.write_bytes(lzma.compress(np.array(keys, ">i8").tobytes()))
    return path


def test_popularity_passes_through_the_digitised_points() -> None:
    shares = popularity(UNIVERSE)
    assert shares.sum() == pytest.approx(1.0)
    assert (np.diff(shares) <= 0).all()
    points = np.loadtxt(CURVE, delimiter=",", skiprows=1)
    ends = np.cumsum(shares)
    for percent, share in points[1:-1]:
        assert ends[round(percent / 100 * UNIVERSE) - 1] == pytest.approx(share, abs=0.01)
    assert share_of_top(np.array([1.0, 10.0, 100.0])) == pytest.approx([0.639, 0.766, 1.0], abs=0.005)


def test_draws_carry_the_published_head() -> None:
    keys = drawn_keys(200_000, generator())
    assert (keys < UNIVERSE // 100).mean() == pytest.approx(0.639, abs=0.01)
    assert Counter(keys.tolist()).most_common(1)[0][0] == 0


def test_keys_are_ranked_by_frequency() -> None:
    ranks, distinct = ranks_by_frequency(np.array([9, 4, 4, 7, 4, 7, 1], np.int64), generator())
    assert distinct == 4
    assert ranks[[1, 2, 4]].tolist() == [0, 0, 0]
    assert ranks[[3, 5]].tolist() == [1, 1]
    assert sorted(ranks[[0, 6]].tolist()) == [2, 3]


def test_the_default_stream_has_2000_distinct_queries(catalogue: Path, tmp_path: Path) -> None:
    summary = write_queries(catalogue, tmp_path / "q.txt")
    lines = (tmp_path / "q.txt").read_text(encoding="utf-8").splitlines()
    counts = Counter(normalise(line) for line in lines)
    assert len(lines) == summary.requests
    assert len(counts) == summary.distinct == 2000
    assert set(counts) == {normalise(line) for line in set(lines)}
    assert len(set(lines)) == 2000
    assert summary.made_up_web == 800
    assert summary.from_catalogue == 1200
    assert 0.35 < summary.web_share < 0.45
    ordered = sorted(counts.values(), reverse=True)
    assert 0.01 < ordered[0] / len(lines) < 0.04
    assert sum(ordered[:20]) / len(lines) > 0.2
    assert ordered[1000:] == [1] * 1000


def test_a_trace_keeps_its_order_and_repeats(catalogue: Path, tmp_path: Path) -> None:
    keys = [5, 9, 5, 5, -3, 9, 2, 5, 2**62, 9]
    path = trace(tmp_path / "t.xz", keys)
    summary = write_queries(catalogue, tmp_path / "q.txt", key_stream=path)
    lines = (tmp_path / "q.txt").read_text().splitlines()
    assert (summary.requests, summary.distinct) == (10, 5)
    assert summary.made_up_web == 2
    for left in range(10):
        for right in range(10):
            assert (lines[left] == lines[right]) == (keys[left] == keys[right])
    assert write_queries(catalogue, tmp_path / "q.txt", key_stream=path, requests=4).distinct == 2


def test_the_same_seed_writes_the_same_stream(catalogue: Path, tmp_path: Path) -> None:
    def stream(seed: int) -> bytes:
        write_queries(catalogue, tmp_path / "q.txt", requests=300, seed=seed)
        return (tmp_path / "q.txt").read_bytes()

    assert stream(4) == stream(4) != stream(5)


def test_rated_and_web_queries_come_first(catalogue: Path, tmp_path: Path) -> None:
    ratings, web = tmp_path / "r.csv", tmp_path / "w.txt"
    ratings.write_text("query,docid,rating\nBike  Lock,1,2\nbike lock,2,3\nsofa,1,0\nsofa,2,1\n")
    web.write_text("Weather\nSOFA\nnews\nweather\n\nbad\x07query\n" + "z" * 200 + "\n")
    keys = [at for at in range(50) for _ in range(50 - at)]
    summary = write_queries(
        catalogue,
        tmp_path / "q.txt",
        key_stream=trace(tmp_path / "t.xz", keys),
        ratings=ratings,
        web_queries_file=web,
    )
    lines = (tmp_path / "q.txt").read_text().splitlines()
    assert summary == QuerySummary(
        requests=len(keys),
        distinct=50,
        shared=0,
        rated=2,
        from_catalogue=28,
        from_web_file=2,
        made_up_web=18,
        top_1_percent_share=50 / len(keys),
        web_share=summary.web_share,
    )
    head = Counter(lines).most_common(5)
    assert {"bike lock", "sofa", "weather", "news"} < {normalise(query) for query, _ in head}
    assert len({normalise(line) for line in lines}) == 50


def test_faulty_inputs_are_named(catalogue: Path, tmp_path: Path) -> None:
    def refusal(**inputs: object) -> str:
        with pytest.raises(UserError) as caught:
            write_queries(catalogue, tmp_path / "q.txt", **inputs)  # type: ignore[arg-type]
        assert not (tmp_path / "q.txt").exists()
        return str(caught.value)

    good = trace(tmp_path / "good.xz", [1, 2, 3])
    bad = tmp_path / "bad"
    assert "requests: 0 is outside 1.." in refusal(requests=0)
    assert "requests: 4 is more than the 3 keys" in refusal(key_stream=good, requests=4)
    assert "No such file" in refusal(key_stream=tmp_path / "none.xz")
    bad.write_bytes(good.read_bytes()[:-9])
    assert "not a whole xz file" in refusal(key_stream=bad)
    bad.write_bytes(b"plain")
    assert "not a whole xz file" in refusal(key_stream=bad)
    bad.write_bytes(lzma.compress(b"seven b"))
    assert "7 bytes are not a number of 64-bit keys" in refusal(key_stream=bad)
    bad.write_bytes(lzma.compress(b""))
    assert "0 bytes" in refusal(key_stream=bad)
    bad.write_text("q,docid\nx,1\n")
    assert "no column query" in refusal(ratings=bad)
    bad.write_bytes(b"query\ncaf\xe9\n")
    assert "UTF-8" in refusal(ratings=bad)
    assert "UTF-8" in refusal(web_queries_file=bad)
    assert "No such file" in refusal(web_queries_file=tmp_path / "none")


def test_the_queries_of_a_small_catalogue_come_again(tmp_path: Path) -> None:
    write_sample(tmp_path / "s.jsonl", ads=2)
    import_catalogue(tmp_path / "s.jsonl", tmp_path / "out")
    summary = write_queries(tmp_path / "out", tmp_path / "q.txt")
    lines = (tmp_path / "q.txt").read_text(encoding="utf-8").splitlines()
    assert len(set(lines)) == summary.distinct == 2000 - summary.shared
    assert summary.from_catalogue == 1200 - summary.shared < 1200
    assert len(lines) == summary.requests
    assert summary.top_1_percent_share < 0.5


@pytest.mark.data
def test_the_scarab_order_over_real_products_and_queries(tmp_path: Path) -> None:
    if not DATA.exists() and not os.environ.get("CI"):
        pytest.skip(f"{DATA} is absent; set FRUGALADS_DATA")
    import_catalogue(DATA / "icecat" / "products.jsonl.gz", tmp_path / "out")
    key_stream = DATA / "traces" / "scarab-recs.trace.xz"
    summary = write_queries(
        tmp_path / "out",
        tmp_path / "q.txt",
        key_stream=key_stream,
        ratings=DATA / "icecat" / "Broad_Query_Set_rated.csv",
        web_queries_file=DATA / "queries" / "trec_tb05_stream_50k.txt",
    )
    assert (summary.requests, summary.distinct, summary.rated) == (1_245_184, 258_368, 135)
    assert summary.from_web_file > 40_000
    assert summary.web_share == pytest.approx(0.4, abs=0.03)
    lines = (tmp_path / "q.txt").read_text(encoding="utf-8").splitlines()
    keys = trace_keys(key_stream).tolist()
    pairs = set(zip(keys, map(normalise, lines), strict=True))
    assert len(pairs) == len({key for key, _ in pairs}) == len({query for _, query in pairs}) == 258_368
