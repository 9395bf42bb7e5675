"""Answers over real products fit the query, judged by people's ratings of query and product."""

from __future__ import annotations

import csv
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from stack_process import Stack, frugalads, running_stack

from frugalads.client import Client

pytestmark = pytest.mark.data

QUERIES = 20
SLOTS = 8
RELEVANT = 2
SEED = 20


@pytest.fixture(scope="module")
def real_stack(
    data_folder: Path, model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """A stack over the Icecat products, prepared by the commands of the README."""
    data = tmp_path_factory.mktemp("icecat") / "data"
    (data / "models").mkdir(parents=True)
    shutil.copytree(model_folder, data / "models" / "scorer")
    frugalads("catalogue", "import", data_folder / "icecat/products.jsonl.gz", "--out", data / "catalogue")
    frugalads(
        "index", "build",
        "--catalogue", data / "catalogue", "--model", data / "models" / "scorer", "--out", data / "index",
        timeout_s=600,
    )  # fmt: skip
    with running_stack(data) as stack:
        yield stack


def ratings(folder: Path) -> dict[str, dict[int, int]]:
    """Ratings 0..3 by query and product."""
    rated: dict[str, dict[int, int]] = {}
    with (folder / "icecat" / "Broad_Query_Set_rated.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rated.setdefault(row["query"], {})[int(row["docid"])] = int(row["rating"])
    return rated


@pytest.mark.timeout(900)
def test_ads_of_twenty_rated_queries_fit(real_stack: Stack, data_folder: Path) -> None:
    rated = ratings(data_folder)
    # Queries that have several relevant products, so that a good answer exists to be found.
    known = sorted(query for query, grades in rated.items() if _relevant(grades) >= 8)
    queries = random.Random(SEED).sample(known, QUERIES)
    with Client(real_stack.target) as client:
        answers = {query: [ad.ad_id for ad in client.rank_ads(query, slots=SLOTS).ads] for query in queries}
    assert all(len(ads) >= SLOTS // 2 for ads in answers.values())
    judged, fits, answered = _judge(answers, rated)
    # Of all rated products of these queries 69 % are relevant; an answer must do clearly better than that.
    assert judged >= 50
    assert fits >= 0.9 * judged
    assert answered >= 14
    # The control: each answer judged for another query hardly ever fits, so the check above can fail.
    turned = dict(zip(queries, [answers[query] for query in queries[1:] + queries[:1]], strict=True))
    assert _judge(turned, rated)[1] <= 5


def _judge(answers: dict[str, list[int]], rated: dict[str, dict[int, int]]) -> tuple[int, int, int]:
    """Shown ads that were rated, those of them that are relevant, and queries with a relevant one."""
    grades = {query: [rated[query][ad] for ad in ads if ad in rated[query]] for query, ads in answers.items()}
    fits = [sum(grade >= RELEVANT for grade in seen) for seen in grades.values()]
    return sum(map(len, grades.values())), sum(fits), sum(fit > 0 for fit in fits)


def _relevant(grades: dict[int, int]) -> int:
    return sum(grade >= RELEVANT for grade in grades.values())
