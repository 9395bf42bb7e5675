"""The containers of deploy/docker-compose.yml: up in its order, healthy by its checks, ended by SIGTERM."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from deploy.compose_file import DEPLOY
from deploy.containers import PID_1, Containers, require_namespaces
from redis_process import wait_until

from frugalads.client import Client, UnavailableError
from services.stack.ports import HOST

ADS = 300


def frugalads(*arguments: object) -> None:
    argv = [sys.executable, "-m", "services.cli", *map(str, arguments)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a small catalogue and its index."""
    folder = tmp_path_factory.mktemp("bundles")
    model, catalogue, sample = folder / "models" / "scorer", folder / "catalogue", folder / "sample.jsonl"
    frugalads("model", "build", "--out", model)
    frugalads("catalogue", "sample", "--ads", ADS, "--out", sample)
    frugalads("catalogue", "import", sample, "--out", catalogue)
    for index in ("index", "index-2"):
        frugalads("index", "build", "--catalogue", catalogue, "--model", model, "--out", folder / index)
    return folder


def readme_script(word: str) -> str:
    """The Python script of deploy/README.md that has `word` in it."""
    text = (DEPLOY / "README.md").read_text(encoding="utf-8")
    (script,) = [found for found in re.findall(r"<<'END'\n(.*?)\nEND\n", text, re.DOTALL) if word in found]
    return str(script)


def stop_with_a_call_in_flight(containers: Containers, client: Client) -> tuple[int, float]:
    """Stops scoring while it computes an answer, which still has to arrive. What `Containers.stop` says."""
    metrics = f"http://{HOST}:{containers.ports.of('scoring metrics')}/metrics"

    def in_flight() -> bool:
        with urllib.request.urlopen(metrics, timeout=5) as page:
            return b"\nfrugalads_scoring_in_flight_calls 1.0\n" in page.read()

    with ThreadPoolExecutor(2) as pool:
        containers.pause("inference")
        answer = pool.submit(client.rank_ads, "a query that nobody asked before", slots=4)
        wait_until(in_flight, 1.5, "the call was in flight")
        stopped = pool.submit(containers.stop, "scoring")
        wait_until(lambda: "draining" in containers.said("scoring"), 1.5, what="scoring drained")
        assert not answer.done()
        containers.resume("inference")
        assert answer.result(10).request_id
        return stopped.result(20)


@pytest.fixture
def containers(tmp_path: Path, bundles: Path) -> Iterator[Containers]:
    require_namespaces()
    made = Containers(tmp_path, bundles)
    yield made
    made.close()


def test_the_stack_starts_in_order_answers_survives_a_crash_and_stops_with_0(containers: Containers) -> None:
    for name in containers.order():
        containers.start(name)
        containers.until_healthy(name)
    assert containers.order()[-1] == "scoring"

    assert containers.run("seed") == f"{ADS} ads sent to {HOST}:{containers.ports.of('scoring')}\n"
    assert "knows this catalogue" in containers.run("seed")
    with Client(f"{HOST}:{containers.ports.of('scoring')}") as client:
        info = client.info()
        assert info.ads == ADS
        assert all(info.dependencies.values()), info.dependencies
        assert client.rank_ads("laser printer toner", slots=4).request_id

        containers.kill("retrieval")
        wait_until(lambda: not containers.is_healthy("scoring"), what="scoring noticed")
        containers.start("retrieval")
        containers.until_healthy("retrieval")
        containers.until_healthy("scoring")
        assert client.rank_ads("quiet refrigerator", slots=4).request_id
        assert "current {" in containers.execute("retrieval", readme_script("SwapIndex"))

        ends = {"scoring": stop_with_a_call_in_flight(containers, client)}
        ends |= {name: containers.stop(name) for name in reversed(containers.order()) if name not in ends}
        assert {name: code for name, (code, _) in ends.items()} == dict.fromkeys(ends, 0)
        # A stop that takes longer is one that waits for its kill.
        assert max(took_s for _, took_s in ends.values()) < 5, ends
        with pytest.raises(UnavailableError):
            client.rank_ads("laser printer toner", slots=4)

    # What a restart brings back: the state survives it, so nothing is sent again.
    for name in containers.order():
        containers.start(name)
    containers.until_healthy("scoring")
    assert "knows this catalogue" in containers.run("seed")


def test_a_stop_while_it_loads_ends_it_with_0(containers: Containers) -> None:
    """Scoring waits for a state Redis that never comes; `docker stop` must not have to kill it."""
    containers.start("scoring")
    wait_until(lambda: "not_ready" in containers.said("scoring"), what="scoring listened")
    assert not containers.is_healthy("scoring")
    code, took_s = containers.stop("scoring")
    assert code == 0, containers.said("scoring")
    assert took_s < 5


def test_a_folder_without_bundles_is_said_and_ends_with_2(tmp_path: Path) -> None:
    require_namespaces()
    empty = tmp_path / "empty"
    empty.mkdir()
    containers = Containers(tmp_path, empty)
    try:
        containers.start("retrieval")
        assert containers.ended("retrieval") == 2
        assert f"retrieval: error: {empty / 'index'}: no such bundle" in containers.said("retrieval")
    finally:
        containers.close()


def test_pid_1_without_a_handler_would_not_hear_sigterm() -> None:
    """The test above can fail: in a namespace of its own, a process that does not listen is not ended."""
    require_namespaces()
    deaf = subprocess.Popen([*PID_1, "sleep", "30"])
    try:
        wait_until(lambda: bool(psutil.Process(deaf.pid).children()), what="sleep ran")
        (child,) = psutil.Process(deaf.pid).children()
        wait_until(lambda: child.name() == "sleep", what="sleep ran")
        child.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            deaf.wait(0.5)
        child.kill()
        assert deaf.wait(10) != 0
    finally:
        deaf.kill()
        deaf.wait()
