"""The configuration of Prometheus is valid and scrapes what the services listen on."""

from __future__ import annotations

import yaml
from prometheus_process import ALERTS, CONFIG, DEPLOY, config, promtool

from services.stack.ports import DEFAULT_BASE_PORT, Ports

SERVICES = ("scoring", "retrieval", "inference", "eviction")


def test_promtool_accepts_configuration_and_alerts() -> None:
    assert "SUCCESS" in promtool("check", "config", CONFIG)
    assert "SUCCESS" in promtool("check", "rules", ALERTS)


def test_every_service_is_scraped_at_its_metrics_port() -> None:
    ports = Ports(DEFAULT_BASE_PORT)
    targets = {job["job_name"]: job["static_configs"] for job in config()["scrape_configs"]}
    assert targets == {name: [{"targets": [f"{name}:{ports.of(f'{name} metrics')}"]}] for name in SERVICES}


def test_grafana_knows_the_scrape_interval() -> None:
    file = DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yml"
    (source,) = yaml.safe_load(file.read_text(encoding="utf-8"))["datasources"]
    assert source["uid"] == "prometheus"
    assert source["jsonData"]["timeInterval"] == config()["global"]["scrape_interval"]
