"""`frugalads index build`, with an encoder that hashes words instead of the model."""

from __future__ import annotations

import gzip
import json
import resource
import zlib
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from retrieval.small_world import NEVER, load_folder, query

import models.scorer.bundle
from services.catalogue.importing import import_catalogue
from services.commands.index import register, sample_lines
from services.retrieval.delta import Delta
from services.retrieval.plan import Exact
from services.retrieval.search import search
from services.runtime.bundles import MANIFEST
from services.runtime.errors import UserError


class WordHashes:
    """Texts that share words are near."""

    def encode(
        self, texts: Sequence[str], progress: Callable[[int, int], None] = lambda *_: None
    ) -> np.ndarray:
        vectors = np.zeros((len(texts), 32), dtype=np.float32)
        for row, text in enumerate(texts):
            for word in text.lower().split():
                seed = zlib.crc32(word.encode())
                vectors[row] += np.random.default_rng(seed).standard_normal(32)
            progress(row + 1, len(texts))
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    scorer = SimpleNamespace(encoder=WordHashes(), encoder_fingerprint="words-1")
    monkeypatch.setattr(models.scorer.bundle, "load_scorer", lambda folder, threads: scorer)
    goods = ["toner", "printer", "boots", "coffee", "lamp"]
    with (tmp_path / "ads.jsonl").open("w") as stream:
        for ad_id in range(1, 301):
            ad = {
                "ad_id": ad_id,
                "title": f"Fine {goods[ad_id % 5]} number {ad_id}",
                "advertiser": f"shop {ad_id % 7}",
                "bid_usd": 1,
            }
            if ad_id % 2:
                ad |= {"category": goods[ad_id % 5], "product_price_usd": ad_id}
            stream.write(json.dumps(ad) + "\n")
    import_catalogue(tmp_path / "ads.jsonl", tmp_path / "catalogue")
    model = tmp_path / "model"
    model.mkdir()
    (model / MANIFEST).touch()

    def build(*options: object) -> int:
        parser = ArgumentParser()
        register(parser.add_subparsers())
        folders = ("--catalogue", tmp_path / "catalogue", "--model", model, "--out", tmp_path / "index")
        arguments = parser.parse_args(["index", "build", *map(str, (*folders, *options))])
        code: int = arguments.run(arguments)
        return code

    return build


def test_the_index_holds_the_catalogue_with_its_filter_fields(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queries = tmp_path / "queries.txt"
    queries.write_text("toner\ncoffee number 7\n\nboots\ntoner\n")
    assert run("--queries", queries) == 0
    shown = capsys.readouterr().out
    assert "ads          300" in shown
    assert "3 queries of yours" in shown
    catalogue = json.loads((tmp_path / "catalogue" / MANIFEST).read_text())["fingerprint"]
    assert json.loads((tmp_path / "index" / MANIFEST).read_text())["meta"]["catalogue"] == catalogue
    index = load_folder(tmp_path / "index")
    assert (index.size, index.encoder) == (300, "words-1")
    assert sorted([*index.columns.strings, *index.columns.numbers]) == [
        "advertiser",
        "category",
        "product_price_usd",
    ]
    even, odd = index.rows_of(np.array([100, 101]))
    assert index.columns.strings["category"].codes[even] == -1
    assert index.columns.numbers["product_price_usd"][odd] == 101
    assert np.isnan(index.columns.numbers["product_price_usd"][even])
    delta = Delta(index, tmp_path / "delta", 10)
    vector = WordHashes().encode(["Fine coffee number 98"])
    assert 98 in search(delta.snapshot, query(vector, 3, Exact()), 0, NEVER).rows[0].ad_ids
    delta.close()


def test_without_queries_the_summary_says_that_ads_stood_in(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == 0
    assert "noisy copies of ads (better: your own, by --queries FILE)" in capsys.readouterr().out


def test_a_sample_is_distinct_seeded_and_bounded(tmp_path: Path) -> None:
    plain, packed = tmp_path / "q.txt", tmp_path / "q.txt.gz"
    text = "\n".join(f" query {i % 50} " for i in range(200)) + "\n" + "x" * 900
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    everything = sample_lines(plain, 100, 1)
    assert everything == [*(f"query {i}" for i in range(50)), "x" * 500]
    assert sample_lines(packed, 10, 1) == sample_lines(plain, 10, 1) != sample_lines(plain, 10, 2)
    assert len(sample_lines(plain, 10, 1)) == 10


@pytest.mark.parametrize(
    ("content", "said"), [(None, "No such file"), (b"\xff\xfe", "UTF-8"), (b"\n \n", "holds no query")]
)
def test_an_unusable_query_file_is_named(tmp_path: Path, content: bytes | None, said: str) -> None:
    file = tmp_path / "q.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=rf"q\.txt: .*{said}"):
        sample_lines(file, 10, 1)


def test_a_folder_of_something_else_is_refused_before_the_catalogue_is_embedded(
    run: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WordHashes, "encode", None)
    with pytest.raises(UserError, match="holds something other than a bundle of kind 'index'"):
        run("--out", tmp_path)


@pytest.mark.parametrize(
    ("missing", "command"),
    [("model", "frugalads model build"), ("catalogue", "frugalads catalogue import FILE")],
)
def test_what_is_missing_is_named_with_its_command(
    run: Callable[..., int], tmp_path: Path, missing: str, command: str
) -> None:
    (tmp_path / missing / MANIFEST).unlink()
    with pytest.raises(UserError, match=rf"{missing} is missing; make it with: {command} --out .*{missing}"):
        run()


def test_an_index_that_cannot_be_written_is_said_in_a_sentence(
    run: Callable[..., int], tmp_path: Path
) -> None:
    """A traceback, after all the work: the folder would lie below a file, or the disk fills up."""
    with pytest.raises(UserError, match=r"below: cannot be written: "):
        run("--out", tmp_path / "ads.jsonl" / "below")
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, old[1]))
    try:
        with pytest.raises(UserError, match=r"index: cannot be written: "):
            run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".index", "index"))]


def test_a_quantized_index_takes_enough_ads(run: Callable[..., int]) -> None:
    with pytest.raises(UserError, match="300 ads: a quantized index needs at least 1024; build ivf_flat"):
        run("--kind", "ivf_pq")


@pytest.mark.parametrize("seed", ["-1", "x", "1" * 30])
def test_a_seed_that_numpy_does_not_take_is_refused(
    run: Callable[..., int], seed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run("--seed", seed)
    assert "is not a whole number of 1..18 digits" in capsys.readouterr().err
