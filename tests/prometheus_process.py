"""A real Prometheus as a child process, its `promtool`, and the files that the deployment gives to both."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from redis_process import free_port, wait_until

DEPLOY = Path(__file__).parents[1] / "deploy"
CONFIG = DEPLOY / "prometheus" / "prometheus.yml"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"


def binary(name: str) -> str:
    """`prometheus` or `promtool`; skips locally, fails in CI, when it is absent."""
    found = shutil.which(name)
    if found is None:
        if os.environ.get("CI"):
            raise AssertionError(f"{name} is missing: CI must install Debian's package prometheus")
        pytest.skip(f"{name} is not installed (Debian's package prometheus)")
    return found


def promtool(*arguments: object, stdin: str | None = None) -> str:
    """What promtool prints; fails with it when promtool finds a fault."""
    argv = [binary("promtool"), *map(str, arguments)]
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def config() -> dict[str, Any]:
    """The shipped configuration."""
    loaded: dict[str, Any] = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    return loaded


def alerts() -> dict[str, dict[str, Any]]:
    """The shipped alerts by name."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    named = {rule["alert"]: rule for rule in rules}
    assert len(named) == len(rules), "two alerts have one name"
    return named


def dashboards() -> dict[str, dict[str, Any]]:
    """The shipped dashboards by file name."""
    files = sorted((DEPLOY / "grafana" / "dashboards").iterdir())
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in files}


def panels(dashboard: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Panels that show something; rows are only headings."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


class Sample(NamedTuple):
    """One series of an answer."""

    labels: dict[str, str]
    value: float


class Prometheus:
    """A server that scrapes loopback ports every second and evaluates the shipped alerts."""

    def __init__(self, folder: Path, ports: Mapping[str, int]) -> None:
        self.port = free_port()
        settings = config()
        settings["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        settings["rule_files"] = [str(ALERTS)]
        for job in settings["scrape_configs"]:
            job["static_configs"] = [{"targets": [f"127.0.0.1:{ports[job['job_name']]}"]}]
        file = folder / "prometheus.yml"
        file.write_text(yaml.safe_dump(settings), encoding="utf-8")
        self._log = (folder / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [
                binary("prometheus"),
                f"--config.file={file}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, "GOMAXPROCS": "1"},
        )

    def api(self, path: str, **parameters: str) -> Any:
        """The data of an API answer; fails with Prometheus' own words when it is an error."""
        address = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            answer = urllib.request.urlopen(address, timeout=10).read()
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{parameters}: {error.read().decode()}") from None
        return json.loads(answer)["data"]

    def query(self, expression: str) -> list[Sample]:
        """The series of an instant query."""
        result: Sequence[Any] = self.api("query", query=expression)["result"]
        return [Sample(series["metric"], float(series["value"][1])) for series in result]

    def scrapes_all(self) -> bool:
        """Whether every target was scraped and answered."""
        with contextlib.suppress(urllib.error.URLError):  # until it listens, and while it answers 503
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=10).close()
            targets = self.api("targets", state="active")["activeTargets"]
            return bool(targets) and all(target["health"] == "up" for target in targets)
        return False

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)
        self._log.close()


@contextlib.contextmanager
def running_prometheus(folder: Path, ports: Mapping[str, int]) -> Iterator[Prometheus]:
    """A server that scrapes every job at its port, for the time of a block."""
    server = Prometheus(folder, ports)
    try:
        wait_until(server.scrapes_all, 30, "every target was up")
        yield server
    finally:
        server.stop()
