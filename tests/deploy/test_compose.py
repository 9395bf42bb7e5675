"""deploy/docker-compose.yml: docker compose takes it, it keeps the rules, and each rule catches a breach."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from deploy.compose_file import DEPLOY, SECRET, compose, faults, health_check, resolved, server_config
from redis_process import binary

from services.runtime.errors import ConfigError

COMPOSE, DOCKERFILE = "docker-compose.yml", "Dockerfile"
CACHE, STATE = "redis/cache.conf", "redis/state.conf"

# A mistake each: in which file, what is replaced by what, and what is said about it.
MISTAKES = [
    (COMPOSE, "image: valkey/valkey:8.1.8", "image: valkey/valkey:latest", "cache: image"),
    (COMPOSE, "image: prom/prometheus:v3.5.0", "image: prom/prometheus", "prometheus: image"),
    (COMPOSE, 'user: "999"', "user: root", "cache: runs as root"),
    (DOCKERFILE, "USER 10001:10001\n", "", "scoring: runs as root"),
    (COMPOSE, "  cap_drop: [ALL]\n", "", "scoring: keeps capabilities"),
    (COMPOSE, '"no-new-privileges:true"', '"label:disable"', "state: may gain privileges"),
    (COMPOSE, "  read_only: true\n\n", "\n", "eviction: its root file system is writable"),
    (COMPOSE, "target: /bundles\n  read_only: true", "target: /bundles", "retrieval: may write to"),
    (COMPOSE, "read_only: true\n  bind: {create_host_path: false}", "read_only: true", "scoring: a missing"),
    (COMPOSE, "    mem_limit: 2g\n", "", "retrieval: has no memory limit"),
    (COMPOSE, "max-size: 20m, ", "", "scoring: its log may fill the disk"),
    (COMPOSE, "  restart: unless-stopped\n  command", "  command", "inference: restart is None"),
    (COMPOSE, 'restart: "no"', "restart: always", "seed: restart is always"),
    (DOCKERFILE, '"127.0.0.1:7402", "inference"]', '"127.0.0.1:7401", "inference"]', "inference: its health"),
    (
        DOCKERFILE,
        "FRUGALADS_EVICTION_PORT=7403",
        "FRUGALADS_EVICTION_PORT=7409",
        "scoring: FRUGALADS_SCORING_EV",
    ),
    (
        COMPOSE,
        "retrieval:7401",
        "retrieval:7402",
        "scoring: FRUGALADS_SCORING_RETRIEVAL_TARGET retrieval:7402",
    ),
    (COMPOSE, "redis://cache:6379/0", "redis://127.0.0.1:6379/0", "eviction: FRUGALADS_EVICTION_REDIS_URL"),
    (COMPOSE, '"127.0.0.1:7400:7400"', '"7400:7400"', "scoring: port 7400 is published on every address"),
    (COMPOSE, '"127.0.0.1:7400:7400"', '"127.0.0.1:7400:7420"', "scoring: publishes 7420"),
    (
        COMPOSE,
        "    mem_limit: 768m\n",
        '    mem_limit: 768m\n    ports: ["127.0.0.1:1:1"]\n',
        "eviction: publishes",
    ),
    (COMPOSE, "stop_grace_period: 15s", "stop_grace_period: 9s", "scoring: is killed before the 10 s"),
    (
        COMPOSE,
        "eviction: {condition: service_healthy}",
        "eviction: {condition: service_started}",
        "scoring: does not",
    ),
    (COMPOSE, "      state: {condition: service_healthy}\n", "", "retrieval: does not wait until state"),
    (COMPOSE, "stores: {internal: true}", "stores: {}", "stores: the network reaches outside"),
    (
        COMPOSE,
        "    mem_limit: 2g\n",
        "    mem_limit: 2g\n    networks: [default, stores]\n",
        "stores: its members",
    ),
    (COMPOSE, "memswap_limit: 1g", "memswap_limit: 2g", "cache: may swap"),
    (COMPOSE, "mem_limit: 1g", "mem_limit: 900m", "cache: maxmemory is more than 3/4"),
    (COMPOSE, "      - state:/data\n", "", "state: its data is not on a volume"),
    (CACHE, "volatile-ttl", "allkeys-lru", "cache: maxmemory-policy is allkeys-lru"),
    (CACHE, "maxmemory-clients 5%\n", "", "cache: maxmemory-clients is None"),
    (STATE, "appendfsync always", "appendfsync everysec", "state: appendfsync is everysec"),
    (STATE, "noeviction", "volatile-ttl", "state: maxmemory-policy is volatile-ttl"),
]

# What docker compose itself refuses.
REFUSED = [
    ("    mem_limit: 2g\n", "    memory_limit: 2g\n", "memory_limit"),
    (
        "      retrieval: {condition: service_healthy}",
        "      retreival: {condition: service_healthy}",
        "retreival",
    ),
    (
        "    depends_on: &stores-healthy\n",
        "    depends_on: &stores-healthy\n      scoring: {condition: service_healthy}\n",
        "cycle",
    ),
    ("  seed: {}\n", "", "undefined volume seed"),
    ("networks: [stores]", "networks: [store]", "undefined network store"),
    ("stop_grace_period: 15s", "stop_grace_period: soon", "soon"),
]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The deploy folder, to plant mistakes in."""
    return Path(shutil.copytree(DEPLOY, tmp_path / "deploy", ignore=shutil.ignore_patterns(".env")))


def plant(folder: Path, name: str, old: str, new: str) -> None:
    file = folder / name
    text = file.read_text(encoding="utf-8")
    assert old in text, f"{name} no longer has {old!r}"
    file.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_docker_compose_takes_the_file() -> None:
    done = compose("config", "-q", FRUGALADS_CLICK_SECRET=SECRET)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_stack_keeps_its_rules() -> None:
    assert faults() == []


@pytest.mark.parametrize(("file", "old", "new", "said"), MISTAKES, ids=[f"{m[0]}: {m[3]}" for m in MISTAKES])
def test_a_mistake_is_caught(copy: Path, file: str, old: str, new: str, said: str) -> None:
    plant(copy, file, old, new)
    found = faults(copy)
    assert [fault for fault in found if fault.startswith(said)], found


@pytest.mark.parametrize(("old", "new", "said"), REFUSED, ids=[mistake[2] for mistake in REFUSED])
def test_docker_compose_refuses(copy: Path, old: str, new: str, said: str) -> None:
    plant(copy, COMPOSE, old, new)
    done = compose("config", "-q", folder=copy, FRUGALADS_CLICK_SECRET=SECRET)
    assert done.returncode != 0
    assert said in done.stderr


def test_without_a_secret_the_stack_says_how_to_give_one() -> None:
    for done in (compose("config", "-q"), compose("config", "-q", FRUGALADS_CLICK_SECRET="")):
        assert done.returncode != 0
        assert "required variable FRUGALADS_CLICK_SECRET is missing" in done.stderr
        assert "deploy/.env" in done.stderr


def test_an_option_that_no_service_has_is_refused(copy: Path) -> None:
    plant(copy, COMPOSE, "FRUGALADS_RETRIEVAL_INDEX:", "FRUGALADS_RETRIEVAL_INDEXES:")
    with pytest.raises(ConfigError, match="FRUGALADS_RETRIEVAL_INDEXES: unknown key"):
        faults(copy)


def test_an_index_may_load_for_as_long_as_it_is_allowed_to() -> None:
    """docker/compose #11131, #11474: a start that is slow but sound must not count as unhealthy."""
    service = resolved()["services"]["retrieval"]
    health, config = health_check(service), server_config("retrieval", service)
    assert health is not None
    assert health.start_period_s * 1000 >= config.load_timeout_ms  # type: ignore[attr-defined]
    assert health.start_interval_s <= 1


def test_the_redis_images_are_of_the_version_that_the_tests_run_on() -> None:
    said = subprocess.run([binary("valkey"), "--version"], capture_output=True, text=True, check=True).stdout
    services = resolved()["services"]
    for role in ("cache", "state"):
        assert f"v={services[role]['image'].partition(':')[2]} " in said


def test_bundles_and_options_come_from_where_the_operator_says(tmp_path: Path) -> None:
    model = resolved(FRUGALADS_BUNDLES=tmp_path / "bundles", FRUGALADS_CONFIG=DEPLOY / "frugalads.toml")
    for name in ("retrieval", "inference", "seed"):
        sources = {volume["target"]: volume for volume in model["services"][name]["volumes"]}
        assert sources["/bundles"]["source"] == str(tmp_path / "bundles")


def test_what_prometheus_and_grafana_read_is_where_they_look() -> None:
    services = resolved()["services"]
    mounted = {
        name: {volume["target"]: Path(volume["source"]) for volume in services[name]["volumes"]}
        for name in ("prometheus", "grafana")
    }
    (file,) = [word for word in services["prometheus"]["command"] if word.startswith("--config.file=")]
    folder, _, name = file.partition("=")[2].rpartition("/")
    assert (mounted["prometheus"][folder] / name).is_file()
    provisioning = mounted["grafana"]["/etc/grafana/provisioning"]
    providers = (provisioning / "dashboards" / "frugalads.yml").read_text(encoding="utf-8")
    (path,) = re.findall(r"path: (\S+)", providers)
    assert len(list(mounted["grafana"][path].glob("*.json"))) >= 4
    sources = (provisioning / "datasources" / "prometheus.yml").read_text(encoding="utf-8")
    assert "url: http://prometheus:9090\n" in sources
