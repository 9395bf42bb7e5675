import json
from pathlib import Path

import pytest
from redis_process import RedisProcess
from scoring_stand_ins import urls

from loadtest import bench_pipeline
from loadtest.bench_pipeline import hit_throughput
from services.runtime.errors import UserError


def test_both_servers_are_measured_without_errors(valkey_server: RedisProcess) -> None:
    said: list[str] = []
    result = hit_throughput(
        *urls(valkey_server), rounds=1, calls=100, concurrency=4, keys=8, progress=said.append
    )
    assert result.errors == 0
    assert result.rank_ads_per_s > 0
    assert result.bare_per_s > 0
    assert result.ratio == result.rank_ads_per_s / result.bare_per_s
    assert result.cpu_ratio > 0
    assert len(said) == 2


def test_the_command_prints_a_table_and_writes_a_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bench.json"
    assert bench_pipeline.main(50, 1, str(file)) == 0
    assert "RankAds on a hit" in capsys.readouterr().out
    document = json.loads(file.read_text())
    assert document["rows"][0]["errors"] == 0
    assert document["rows"][0]["ratio"] > 0
    assert document["header"]


def test_senseless_lengths_are_refused() -> None:
    with pytest.raises(UserError, match="rounds 0"):
        bench_pipeline.main(100, 0, None)
