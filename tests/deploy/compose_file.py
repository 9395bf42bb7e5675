"""The compose file as docker compose itself resolves it, and the rules that this stack keeps."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from deploy.image_files import ROOT, HealthCheck, Image, image, seconds

from services.runtime.config import SERVICES, ServerConfig, load

DEPLOY = ROOT / "deploy"
SECRET = "a-secret-of-32-characters-or-more"
ROLES = ("cache", "state")
PUBLISHED = {"scoring", "prometheus", "grafana"}
# Who must be healthy before whom.
BEFORE = {
    "retrieval": ROLES,
    "inference": ROLES,
    "eviction": ROLES,
    "scoring": ("retrieval", "inference", "eviction", *ROLES),
    "seed": ("scoring",),
    "grafana": ("prometheus",),
}
ROLE_SETTINGS = {
    "cache": {
        "maxmemory-policy": "volatile-ttl",
        "maxmemory-samples": "10",
        "maxmemory-clients": "5%",
        "save": '""',
        "appendonly": "no",
    },
    "state": {
        "maxmemory-policy": "noeviction",
        "save": '""',
        "appendonly": "yes",
        "appendfsync": "always",
    },
}
CLOSING_S = 5

Service = dict[str, Any]


def compose(
    *arguments: str, folder: Path = DEPLOY, **variables: str | Path
) -> subprocess.CompletedProcess[str]:
    """Runs docker compose over the compose file of `folder`, with these variables and no `.env`."""
    package = find_spec("compose")
    assert package is not None
    assert package.origin is not None
    # The binary inside the package: its Python wrapper exits with 0 whatever happens.
    binary = Path(package.origin).with_name("docker-compose")
    argv = [str(binary), "--env-file", os.devnull, "-f", str(folder / "docker-compose.yml"), *arguments]
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    environment |= {name: str(value) for name, value in variables.items()}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)


def resolved(folder: Path = DEPLOY, **variables: str | Path) -> dict[str, Any]:
    """The compose file with everything filled in."""
    done = compose(
        "config", "--format", "json", folder=folder, **{"FRUGALADS_CLICK_SECRET": SECRET, **variables}
    )
    assert done.returncode == 0, done.stderr
    model: dict[str, Any] = json.loads(done.stdout)
    return model


def built_image(service: Service, folder: Path = DEPLOY) -> Image | None:
    """What the image of a service says, where it is one of ours."""
    if "build" not in service:
        return None
    return image((folder / "Dockerfile").read_text(encoding="utf-8"), service["build"]["target"])


def health_check(service: Service, folder: Path = DEPLOY) -> HealthCheck | None:
    """The health check that a container of the service gets."""
    said = service.get("healthcheck")
    if said is None:
        built = built_image(service, folder)
        return built.health if built else None
    kind, *test = said["test"]
    assert kind == "CMD"
    return HealthCheck(
        test,
        seconds(said["interval"]),
        seconds(said["timeout"]),
        seconds(said.get("start_period", "0s")),
        retries=said["retries"],
    )


def environment(service: Service, folder: Path = DEPLOY) -> dict[str, str]:
    """The environment of a container: its image's, then the compose file's."""
    built = built_image(service, folder)
    return (built.environment if built else {}) | (service.get("environment") or {})


def server_config(name: str, service: Service, folder: Path = DEPLOY) -> ServerConfig:
    """What a server of ours is configured to; raises ConfigError."""
    module = importlib.import_module(f"services.{name}.config")
    table: type[ServerConfig] = getattr(module, f"{name.capitalize()}Config")
    (file,) = [v["source"] for v in service["volumes"] if v["target"] == "/etc/frugalads/frugalads.toml"]
    return load(table, name, environment(service, folder), Path(file))


def settings(role: str, folder: Path = DEPLOY) -> dict[str, str]:
    """The settings of a Redis role."""
    lines = (folder / "redis" / f"{role}.conf").read_text(encoding="utf-8").splitlines()
    return dict(line.split(None, 1) for line in lines if line and not line.startswith("#"))


def bytes_of(text: str) -> int:
    """A size of a Redis configuration."""
    match = re.fullmatch(r"(\d+)(kb|mb|gb)", text)
    assert match, f"{text!r} is no size"
    return int(match[1]) << {"kb": 10, "mb": 20, "gb": 30}[match[2]]


def faults(folder: Path = DEPLOY) -> list[str]:
    """Every breach of the stack's rules, as "service: what"."""
    model = resolved(folder)
    services: dict[str, Service] = model["services"]
    found = [
        f"{name}: {fault}" for name, service in services.items() for fault in _common(name, service, folder)
    ]
    found += [f"{name}: {fault}" for name in SERVICES for fault in _ours(name, services, folder)]
    found += [f"{role}: {fault}" for role in ROLES for fault in _redis(role, services[role], folder)]
    found += [
        f"{name}: {fault}"
        for name, needed in BEFORE.items()
        for fault in _order(services, name, needed, folder)
    ]
    if not model["networks"]["stores"].get("internal"):
        found.append("stores: the network reaches outside")
    members = {name for name, service in services.items() if "stores" in service.get("networks", {})}
    if members != {"cache", "state", "scoring", "eviction"}:
        found.append(f"stores: its members are {sorted(members)}")
    return found


def _common(name: str, service: Service, folder: Path) -> Iterator[str]:
    built = built_image(service, folder)
    if not re.search(r":v?\d+\.\d+\.\d+(-[\w.]+)?(@sha256:[0-9a-f]{64})?$", service["image"]):
        yield f"image {service['image']} is not pinned"
    if service.get("user", built.user if built else "root").partition(":")[0] in ("root", "0", ""):
        yield "runs as root"
    if service.get("entrypoint"):
        yield "replaces the entry point of its image"
    if service.get("privileged") or service.get("cap_drop") != ["ALL"]:
        yield "keeps capabilities"
    if "no-new-privileges:true" not in service.get("security_opt", []):
        yield "may gain privileges"
    if not service.get("read_only"):
        yield "its root file system is writable"
    for volume in service.get("volumes", []):
        if volume["type"] == "bind" and not volume.get("read_only"):
            yield f"may write to {volume['source']}"
        # Left out, docker makes a missing file into a folder of root's; said `false`, it is shown as {}.
        if volume["type"] == "bind" and volume.get("bind", {"create_host_path": True}).get(
            "create_host_path"
        ):
            yield f"a missing {volume['source']} would be created"
    if "mem_limit" not in service:
        yield "has no memory limit"
    if service.get("logging", {}).get("options", {}).get("max-size") is None:
        yield "its log may fill the disk"
    one_shot = name == "seed"
    if service.get("restart") != ("no" if one_shot else "unless-stopped"):
        yield f"restart is {service.get('restart')}"
    if not one_shot and health_check(service, folder) is None:
        yield "has no health check"
    ports = service.get("ports", [])
    if bool(ports) != (name in PUBLISHED):
        yield f"publishes {[port['published'] for port in ports]}"
    for port in ports:
        if port.get("host_ip") != "127.0.0.1":
            yield f"port {port['published']} is published on {port.get('host_ip', 'every address')}"


def _ours(name: str, services: dict[str, Service], folder: Path) -> Iterator[str]:
    service = services[name]
    config = server_config(name, service, folder)
    ends_s = (config.drain_ms + config.grace_ms) / 1000 + CLOSING_S
    if seconds(service.get("stop_grace_period", "10s")) < ends_s:
        yield f"is killed before the {ends_s:g} s that it may take to stop"
    health = health_check(service, folder)
    if health is None or health.test[-2:] != [f"127.0.0.1:{config.port}", name]:
        yield "its health check asks another address than it listens on"
    for key, target in environment(service, folder).items():
        if key.endswith("_TARGET"):
            host, _, port = target.partition(":")
            if host not in services or int(port) != server_config(host, services[host], folder).port:
                yield f"{key} {target} is not where that service listens"
        elif key.endswith("_URL") and not re.fullmatch(r"redis://(cache|state):6379/0", target):
            yield f"{key} {target} is no Redis of the stack"
    for port in service.get("ports", []):
        if port["target"] != config.port:
            yield f"publishes {port['target']}, where nothing listens"


def _redis(role: str, service: Service, folder: Path) -> Iterator[str]:
    held = settings(role, folder)
    for key, wanted in ROLE_SETTINGS[role].items():
        if held.get(key) != wanted:
            yield f"{key} is {held.get(key)}, not {wanted}"
    if bytes_of(held["maxmemory"]) > 0.75 * int(service["mem_limit"]):
        yield "maxmemory is more than 3/4 of the memory limit"
    if service.get("memswap_limit") != service["mem_limit"]:
        yield "may swap"
    kinds = {volume["target"]: volume["type"] for volume in service["volumes"]}
    if role == "state" and kinds.get("/data") != "volume":
        yield "its data is not on a volume"
    if service.get("working_dir") != "/data":
        yield f"works in {service.get('working_dir')}"


def _order(services: dict[str, Service], name: str, needed: tuple[str, ...], folder: Path) -> Iterator[str]:
    healthy: set[str] = set()
    waiting = [name]
    while waiting:
        for other, how in services[waiting.pop()].get("depends_on", {}).items():
            if how["condition"] == "service_healthy" and other not in healthy:
                healthy.add(other)
                waiting.append(other)
    for other in needed:
        if other not in healthy:
            yield f"does not wait until {other} is healthy"
        elif health_check(services[other], folder) is None:
            yield f"waits for the health of {other}, which has none"
