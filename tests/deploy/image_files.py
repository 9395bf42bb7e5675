"""A Dockerfile as its builder reads it: stages, and what an image built from a target says about itself."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"

Instruction = tuple[str, str]


@dataclass(frozen=True)
class HealthCheck:
    """A container's health check; times in seconds."""

    test: list[str]
    interval_s: float = 30
    timeout_s: float = 30
    start_period_s: float = 0
    start_interval_s: float = 5
    retries: int = 3


@dataclass
class Image:
    """What an image says: its last words win, as in a build."""

    base: str = ""
    user: str = "root"
    environment: dict[str, str] = field(default_factory=dict)
    entrypoint: list[str] = field(default_factory=list)
    health: HealthCheck | None = None
    exposed: set[int] = field(default_factory=set)
    copied: list[tuple[str, list[str]]] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def stages(text: str) -> dict[str, list[Instruction]]:
    """The instructions of each stage by its name; the first of each is its FROM."""
    found: dict[str, list[Instruction]] = {}
    current: list[Instruction] = []
    for name, rest in _instructions(text):
        if name == "FROM":
            current = found.setdefault(rest.split()[2], [])
        current.append((name, rest))
    return found


def image(text: str, target: str) -> Image:
    """The image of one target, with all that it inherits from stages before it."""
    all_stages = stages(text)
    instructions = list(all_stages[target])
    made = Image()
    while (base := instructions[0][1].split()[0]) in all_stages:
        instructions = all_stages[base] + instructions[1:]
    made.base = base
    for name, rest in instructions:
        _apply(made, name, rest)
    return made


def seconds(text: str) -> float:
    """A duration such as 15s, 5m0s or 1m30s."""
    parts = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?", text)
    assert text
    assert parts, f"{text!r} is no duration"
    hours, minutes, rest = (float(part or 0) for part in parts.groups())
    return hours * 3600 + minutes * 60 + rest


def _instructions(text: str) -> Iterator[Instruction]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        name, _, rest = line.strip().partition(" ")
        yield name.upper(), " ".join(rest.split())


def _apply(made: Image, name: str, rest: str) -> None:
    if name == "ENV":
        made.environment |= dict(pair.split("=", 1) for pair in shlex.split(rest))
    elif name == "USER":
        made.user = rest.partition(":")[0]
    elif name == "EXPOSE":
        made.exposed |= {int(port) for port in rest.split()}
    elif name == "RUN":
        made.ran.append(rest)
    elif name == "COPY":
        *sources, _ = [word for word in rest.split() if not word.startswith("--")]
        origin = re.search(r"--from=(\S+)", rest)
        made.copied.append((origin[1] if origin else "", sources))
    elif name in ("ENTRYPOINT", "CMD"):
        if not rest.startswith("["):
            made.faults.append(f"{name} is a shell's: {rest}")
        elif name == "ENTRYPOINT":
            made.entrypoint = json.loads(rest)
    elif name == "HEALTHCHECK":
        made.health = _health(rest)


def _health(rest: str) -> HealthCheck | None:
    if rest == "NONE":
        return None
    options = dict(re.findall(r"--([\w-]+)=(\S+)", rest))
    names = ("interval", "timeout", "start-period", "start-interval")
    times = {f"{name.replace('-', '_')}_s": seconds(options[name]) for name in names if name in options}
    command = json.loads(rest.partition("CMD ")[2])
    return HealthCheck(command, retries=int(options.get("retries", 3)), **times)
