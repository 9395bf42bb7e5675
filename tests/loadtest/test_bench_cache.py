"""`frugalads bench cache`: real servers, real calls; what it says of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest import bench_cache
from services.runtime import forests
from services.runtime.errors import UserError

FIGURES = [
    ("decision", "none"),
    ("decision", "predicted"),
    ("hit", "none"),
    ("hit", "predicted"),
    ("refresh", "fixed"),
    ("refresh", "predicted"),
]


def test_a_figure_for_each_path_with_the_policy_off_and_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forests, "parse_in_child", lambda *_: None)  # takes a second, tested elsewhere
    file = tmp_path / "cache.json"
    assert bench_cache.main(20, 1, str(file)) == 0
    document = json.loads(file.read_text())
    rows = document["rows"]
    assert [(row["what"], row["policy"]) for row in rows] == FIGURES
    assert all(row["us"] == row["us_p25"] == row["us_p75"] > 0 for row in rows), "one round has no spread"
    for off, on in zip(rows[::2], rows[1::2], strict=True):
        assert off["ratio"] == 1
        assert on["ratio"] == on["us"] / off["us"]
    assert document["header"]["options"]["requests"] == 20
    assert "policy on/off" in capsys.readouterr().out


@pytest.mark.parametrize(("calls", "rounds"), [(9, 1), (10, 0)])
def test_senseless_lengths_are_refused(calls: int, rounds: int) -> None:
    with pytest.raises(UserError, match=f"requests {calls} must be 10 or more, rounds {rounds} 1"):
        bench_cache.main(calls, rounds, None)
