"""deploy/Dockerfile: linted, run by no root and through no shell, each image with what its server loads."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from deploy.image_files import DOCKERFILE, ROOT, Image, image, stages
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from services.runtime.config import SERVICES
from services.runtime.healthcheck import ANSWER_S
from services.stack.ports import Ports

TEXT = DOCKERFILE.read_text(encoding="utf-8")
TARGETS = (*SERVICES, "seed")
OURS = {"frugalads", "frugalads-server"}

# Loads a module in an interpreter that finds none of the distributions left out of the image.
WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
absent = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Absent())
import importlib
for name in sys.argv[2:]:
    importlib.import_module(name)
"""


def hadolint(text: str) -> subprocess.CompletedProcess[str]:
    binary = Path(sys.executable).with_name("hadolint")
    return subprocess.run(
        [binary, "--no-color", "-"], input=text, capture_output=True, text=True, timeout=60, check=False
    )


def breaches(text: str) -> list[str]:
    """What in the Dockerfile's images breaks the rules."""
    found = []
    for target in TARGETS:
        made = image(text, target)
        found += [f"{target}: {fault}" for fault in made.faults]
        if not re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+(@sha256:[0-9a-f]{64})?", made.base):
            found.append(f"{target}: base {made.base} is not pinned")
        if not made.user.isdecimal() or made.user == "0":
            found.append(f"{target}: runs as {made.user}")
        if made.entrypoint[:2] != ["python", "-m"]:
            found.append(f"{target}: PID 1 would be {made.entrypoint[:1]}")
        if target in SERVICES:
            found += [f"{target}: {fault}" for fault in _service_faults(target, made)]
    return found


def _service_faults(service: str, made: Image) -> list[str]:
    found = []
    ports = Ports()
    listens = {
        "HOST": "0.0.0.0",
        "PORT": str(ports.of(service)),
        "ADMIN_PORT": str(ports.of(service) + 10),
        "METRICS_PORT": str(ports.of(f"{service} metrics")),
    }
    for key, value in listens.items():
        if made.environment.get(f"FRUGALADS_{service.upper()}_{key}") != value:
            found.append(f"{key} is not {value}")
    if made.exposed != {ports.of(service), ports.of(f"{service} metrics")}:
        found.append(f"exposes {sorted(made.exposed)}")
    health = made.health
    if health is None:
        found.append("has no health check")
    elif health.test != [
        *("python", "-m", "services.runtime.healthcheck"),
        f"127.0.0.1:{ports.of(service)}",
        service,
    ]:
        found.append(f"its health check is {health.test}")
    elif health.timeout_s < ANSWER_S + 1:
        found.append("its health check is cut off before it can say why")
    return found


def installed(target: str) -> set[str]:
    """Canonical names of all distributions in the image of `target`, after its RUN pip install."""
    (origin,) = {origin for origin, _ in image(TEXT, target).copied if origin.startswith("install-")}
    (command,) = [rest for name, rest in stages(TEXT)[origin] if name == "RUN"]
    match = re.fullmatch(r"pip install --no-cache-dir -c constraints\.txt \./protos '\.\[(\w+)\]'", command)
    assert match, command
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    client = tomllib.loads((ROOT / "protos" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    waiting = [
        Requirement(text)
        for text in [
            *project["dependencies"],
            *project["optional-dependencies"][match[1]],
            *client["dependencies"],
        ]
    ]
    found: set[str] = set()
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name in OURS or name in found:
            continue
        found.add(name)
        for text in requires(name) or ():
            needed = Requirement(text)
            extras = wanted.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(needed)
    return found


def test_hadolint_has_nothing_to_say() -> None:
    done = hadolint(TEXT)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("python:3.11.14-slim-bookworm", "python:latest", "DL3007"),
        ("python:3.11.14-slim-bookworm", "python", "DL3006"),
        (
            'ENTRYPOINT ["python", "-m", "services.scoring"]',
            "ENTRYPOINT python -m services.scoring",
            "DL3025",
        ),
        ("WORKDIR /src", "WORKDIR src", "DL3000"),
        ("RUN python -m venv", "RUN sudo python -m venv", "DL3004"),
        ("--from=install-seed", "--from=seed", "DL3022|DL3023"),
        ("EXPOSE 7400 7420", "EXPOSE 74000", "DL3011"),
        ("FROM runtime AS seed", "FROM runtime AS scoring", "DL3024"),
    ],
)
def test_hadolint_catches(old: str, new: str, rule: str) -> None:
    assert old in TEXT
    done = hadolint(TEXT.replace(old, new))
    assert done.returncode == 1
    assert re.search(rule, done.stdout), done.stdout


def test_images_keep_the_rules() -> None:
    assert breaches(TEXT) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("python:3.11.14-slim-bookworm", "python:3.11-slim-bookworm", "scoring: base"),
        ("USER 10001:10001", "USER root", "seed: runs as root"),
        ("USER 10001:10001", "USER 0:0", "seed: runs as 0"),
        (
            'ENTRYPOINT ["python", "-m", "services.cli"]',
            "ENTRYPOINT frugalads",
            "seed: ENTRYPOINT is a shell's",
        ),
        ('ENTRYPOINT ["python", "-m", "services.cli"]', 'ENTRYPOINT ["sh", "-c", "x"]', "seed: PID 1"),
        ("FRUGALADS_INFERENCE_HOST=0.0.0.0", "FRUGALADS_INFERENCE_HOST=127.0.0.1", "inference: HOST"),
        ("EXPOSE 7403 7423", "EXPOSE 7403", "eviction: exposes"),
        ("--timeout=5s --start-period=300s", "--timeout=3s --start-period=300s", "retrieval: its health"),
        ('"127.0.0.1:7400", "scoring"]', '"127.0.0.1:7401", "retrieval"]', "scoring: its health check is"),
    ],
)
def test_a_breach_is_caught(old: str, new: str, said: str) -> None:
    assert old in TEXT
    assert [breach for breach in breaches(TEXT.replace(old, new)) if breach.startswith(said)]


def load_with(target: str, present: set[str]) -> subprocess.CompletedProcess[str]:
    """Loads what the process of `target` loads, where only the distributions of `present` exist."""
    absent = {
        module
        for module, owners in packages_distributions().items()
        if not {canonicalize_name(owner) for owner in owners} & (present | OURS)
    }
    modules = [f"services.{target}.server", "services.runtime.healthcheck"]
    if target == "seed":
        modules = ["services.cli", "services.commands.query", "services.stack.ads"]
    argv = [sys.executable, "-c", WITHOUT, ",".join(absent), *modules]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_installs_all_that_its_process_loads(target: str) -> None:
    done = load_with(target, installed(target))
    assert done.returncode == 0, done.stderr


def test_a_forgotten_library_is_noticed() -> None:
    done = load_with("eviction", installed("eviction") - {"redis"})
    assert "No module named 'redis" in done.stderr


@pytest.mark.parametrize(
    ("target", "strangers"),
    [
        ("retrieval", {"redis", "ctranslate2", "pyarrow", "torch"}),
        ("inference", {"redis", "faiss-cpu", "pyarrow", "torch"}),
        ("scoring", {"faiss-cpu", "ctranslate2", "pyarrow", "torch"}),
        ("eviction", {"faiss-cpu", "ctranslate2", "pyarrow", "torch"}),
        ("seed", {"redis", "faiss-cpu", "ctranslate2", "torch"}),
    ],
)
def test_an_image_installs_nothing_of_its_neighbours(target: str, strangers: set[str]) -> None:
    assert not installed(target) & strangers


def test_all_that_is_installed_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}
    assert {name for target in TARGETS for name in installed(target)} <= pinned


def test_the_build_is_sent_what_it_copies_and_nothing_else() -> None:
    ignore = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    lines = [line for line in ignore if line and not line.startswith("#")]
    assert lines[0] == "*"
    sent = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        source
        for target in TARGETS
        for stage in (target, f"install-{target}")
        for origin, sources in image(TEXT, stage).copied
        if not origin
        for source in sources
    }
    assert copied == sent
    assert all((ROOT / name).exists() for name in sent)
    # Last, so that nothing lets them in again.
    assert lines[-3:] == ["**/__pycache__", "**/*.egg-info", "**/.*"]
