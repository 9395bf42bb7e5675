"""`frugalads loadtest` as a process: interrupted, and writing where it cannot."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from redis_process import wait_until

from frugalads.scoring.v1 import scoring_pb2, scoring_pb2_grpc


class Scoring(scoring_pb2_grpc.ScoringServiceServicer):
    """Answers at once, every tenth time in a minute."""

    def __init__(self) -> None:
        self.asked = 0

    def RankAds(self, request: scoring_pb2.RankAdsRequest, context: Any) -> scoring_pb2.RankAdsResponse:
        self.asked += 1
        if self.asked % 10 == 0:
            while context.is_active():
                time.sleep(0.02)
        return scoring_pb2.RankAdsResponse(cache_state=scoring_pb2.CACHE_STATE_MISS)


@pytest.fixture
def scoring() -> Iterator[tuple[Scoring, str]]:
    service = Scoring()
    with ThreadPoolExecutor(16) as pool:
        server = grpc.server(pool, options=[("grpc.so_reuseport", 0)])
        scoring_pb2_grpc.add_ScoringServiceServicer_to_server(service, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield service, f"127.0.0.1:{port}"
        server.stop(0).wait()


def start(target: str, folder: Path, *options: object) -> subprocess.Popen[str]:
    (folder / "q.txt").write_text("usb cable\n")
    words = ("--queries", folder / "q.txt", "--target", target, *options)
    argv = [sys.executable, "-m", "services.cli", "loadtest", *map(str, words)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_an_interrupted_run_reports_what_it_has(scoring: tuple[Scoring, str], tmp_path: Path) -> None:
    """An hour of load was lost to a Ctrl-C."""
    service, target = scoring
    report = tmp_path / "report.json"
    process = start(target, tmp_path, "--rate", 100, "--requests", 100_000, "--json", report)
    wait_until(lambda: service.asked >= 35 or process.poll() is not None, 60)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "interrupted: this is the report of " in out
    figures = json.loads(report.read_text())["header"]["figures"]
    assert 20 <= figures["requests"] <= service.asked
    assert (figures["unsent"], figures["errors"]) == (0, {}), "those in flight at the interrupt are left out"
    assert 50 < figures["offered_per_s"] < 200


@pytest.mark.parametrize("report", ["q.txt/report.json", "."])
def test_a_report_that_cannot_be_written_is_a_sentence(
    scoring: tuple[Scoring, str], tmp_path: Path, report: str
) -> None:
    process = start(scoring[1], tmp_path, "--rate", 100, "--requests", 3, "--json", tmp_path / report)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 2
    assert err.splitlines()[-1].startswith("frugalads: error: ")
    assert "Traceback" not in err
