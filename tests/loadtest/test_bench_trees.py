from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest import bench_trees
from loadtest.bench_trees import Contender, Shape, measure
from services import cli
from services.runtime.errors import UserError

SMALL = Shape(9, 4)
ROWS = 50


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_trees, "ROWS", ROWS)
    monkeypatch.setattr(bench_trees, "SHAPES", (SMALL,))


def test_every_library_is_measured_on_the_models_it_reads() -> None:
    rows = measure(SMALL, 3)
    assert sorted((row.library, row.trained_by, row.batch) for row in rows) == sorted(
        [
            *(("ours", by, batch) for by in ("lightgbm", "xgboost") for batch in (1, ROWS)),
            *(("treelite", by, batch) for by in ("lightgbm", "xgboost") for batch in (1, ROWS)),
            *(("ours-kernel", by, 1) for by in ("lightgbm", "xgboost")),
            *(("lightgbm", "lightgbm", batch) for batch in (1, ROWS)),
            ("lightgbm-fast", "lightgbm", 1),
            *(("xgboost", "xgboost", batch) for batch in (1, ROWS)),
        ]
    )
    for row in rows:
        assert (row.trees, row.leaves) == SMALL
        assert 0 < row.us_per_row_p25 <= row.us_per_row <= row.us_per_row_p75
        assert row.load_ms > 0
        assert row.bytes is None or row.bytes > 0


def test_the_command_prints_a_table_and_writes_a_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trees.json"
    assert cli.main(["bench", "trees", "--rounds", "2", "--json", str(file)]) == 0
    assert "lightgbm-fast  lightgbm" in capsys.readouterr().out
    document = json.loads(file.read_text())
    assert set(document["header"]["libraries"]) == {"lightgbm", "xgboost", "treelite", "numba"}
    assert document["header"]["options"]["rounds"] == 2
    assert len(document["rows"]) == 15
    assert {"library", "trees", "leaves", "batch", "us_per_row", "load_ms", "bytes"} <= set(
        document["rows"][0]
    )


def test_no_figure_is_given_when_a_library_disagrees(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: Any) -> list[Contender]:
        return [Contender("wrong", "xgboost", ROWS, object, lambda _: np.full(ROWS, 1e3))]

    monkeypatch.setattr(bench_trees, "_treelite", wrong)
    with pytest.raises(RuntimeError, match=r"differs by .* on the model that xgboost trained"):
        measure(SMALL, 2)


def test_no_figure_is_given_for_a_model_of_another_size() -> None:
    with pytest.raises(RuntimeError, match=r"lightgbm\.txt: \d+ leaves in 2 trees"):
        measure(Shape(2, 5000), 2)


@pytest.mark.parametrize("absent", bench_trees.LIBRARIES)
def test_an_absent_library_is_named_with_what_installs_it(
    absent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else find(name))
    with pytest.raises(UserError, match=rf"{absent}, which is not installed: pip install 'frugalads-server"):
        measure(SMALL, 2)


def test_one_round_is_too_few() -> None:
    with pytest.raises(UserError, match="rounds 1 must be 2 or more"):
        measure(SMALL, 1)
