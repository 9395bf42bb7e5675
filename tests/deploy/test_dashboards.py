"""The dashboards are well formed and say what to do. tests/e2e/test_observability.py asks their queries."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import yaml
from prometheus_process import DEPLOY, dashboards, panels

BOARDS = dashboards()
COLUMNS = 24
UNITS = {
    "s", "bytes", "Bps", "reqps", "ops", "percentunit", "short", "currencyUSD", "bool_yes_no", "bool_on_off",
}  # fmt: skip


def test_there_is_one_for_each_service_and_grafana_finds_them() -> None:
    assert set(BOARDS) == {"scoring.json", "retrieval.json", "inference.json", "eviction.json"}
    file = DEPLOY / "grafana" / "provisioning" / "dashboards" / "frugalads.yml"
    (provider,) = yaml.safe_load(file.read_text(encoding="utf-8"))["providers"]
    compose = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text(encoding="utf-8"))
    mounted = {
        str(mount["target"]) for mount in compose["services"]["grafana"]["volumes"] if "target" in mount
    }
    assert provider["options"]["path"] in mounted
    uids = [board["uid"] for board in BOARDS.values()]
    assert len(set(uids)) == len(uids)


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_begins_with_traffic_errors_and_latency(name: str) -> None:
    board = BOARDS[name]
    assert board["schemaVersion"] >= 39  # Grafana 11
    assert board["panels"][0]["title"] == "Traffic, errors, latency"
    assert [panel["gridPos"]["y"] for panel in board["panels"][1:4]] == [1, 1, 1]
    identifiers = [panel["id"] for panel in board["panels"]]
    assert len(set(identifiers)) == len(identifiers)


@pytest.mark.parametrize("name", BOARDS)
def test_a_panel_has_title_unit_queries_and_advice(name: str) -> None:
    titles = []
    for panel in panels(BOARDS[name]):
        titles.append(panel["title"])
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        assert len(panel["description"].split()) >= 6, panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "prometheus"}
        references = [target["refId"] for target in panel["targets"]]
        assert references
        assert len(set(references)) == len(references), panel["title"]
        assert all(target["expr"] and target["legendFormat"] for target in panel["targets"])
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("name", BOARDS)
def test_no_panel_lies_over_another(name: str) -> None:
    for panel in BOARDS[name]["panels"]:
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= COLUMNS, panel["title"]
    for one, other in combinations(BOARDS[name]["panels"], 2):
        assert not _overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])


def _overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(
        one[start] < other[start] + other[length] and other[start] < one[start] + one[length]
        for start, length in (("x", "w"), ("y", "h"))
    )
