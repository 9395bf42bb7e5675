"""The stack of one machine: which children, with which configuration, on which ports."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from services.runtime.errors import UserError
from services.stack import valkey
from services.stack.ads import send_catalogue
from services.stack.ports import HOST, Ports, require_free
from services.stack.probes import grpc_health, redis_ping
from services.stack.supervisor import Child, Supervisor
from services.stack.work_folder import require_bundles

DEFAULT_DATA = Path(".frugalads")
_SECRET_BYTES = 32
_LEAST_SECRET_CHARS = 16


@dataclass(frozen=True)
class LocalStack:
    """A stack over the work folder `data`. Redis roles without a URL get an embedded server."""

    data: Path = DEFAULT_DATA
    ports: Ports = field(default_factory=Ports)
    cache_mb: int = 64
    cache_url: str | None = None
    state_url: str | None = None

    def __post_init__(self) -> None:
        if not 8 <= self.cache_mb <= 1 << 20:
            raise UserError(f"--cache-mb: {self.cache_mb} is not in 8..{1 << 20}")

    @property
    def target(self) -> str:
        """Address of the scoring service."""
        return f"{HOST}:{self.ports.of('scoring')}"

    @property
    def run_folder(self) -> Path:
        """Logs, server configurations and the lock."""
        return self.data / "run"

    def children(self) -> list[Child]:
        """The processes, in the order in which they start; they stop in reverse.

        Writes what they need below `data`. Raises UserError when a bundle is missing or of another catalogue,
        a port is taken or no server is found for an embedded role.
        """
        require_bundles(self.data)
        roles = [role for role, url in (("cache", self.cache_url), ("state", self.state_url)) if not url]
        require_free(self.ports.all(embedded=roles))
        self.run_folder.mkdir(parents=True, exist_ok=True)
        redis_roles = [self._redis(role) for role in roles]
        after = {role: tuple(needed for needed in (role,) if needed in roles) for role in ("cache", "state")}
        cache_url, state_url = self._url("cache", self.cache_url), self._url("state", self.state_url)
        delta = self.data / "delta"
        delta.mkdir(exist_ok=True)
        return [
            *redis_roles,
            self._service(
                "retrieval",
                {
                    "index": self.data / "index",
                    "delta_dir": delta,
                    "stop_model": self._model("termination"),
                },
            ),
            self._service("inference", {"model": self.data / "models" / "scorer"}),
            self._service("eviction", {"redis_url": cache_url}, after=after["cache"]),
            self._service(
                "scoring",
                {
                    "cache_url": cache_url,
                    "state_url": state_url,
                    "click_secret": _click_secret(self.data / "secret"),
                    "refresh_model": self._model("refresh"),
                    **{
                        f"{peer}_target": f"{HOST}:{self.ports.of(peer)}"
                        for peer in ("retrieval", "inference", "eviction")
                    },
                },
                after=(*after["cache"], *after["state"]),
            ),
        ]

    async def start(self, supervisor: Supervisor, on_progress: Callable[[int, int], None]) -> int:
        """Returns once every child is ready and scoring shows the catalogue; the number of ads sent to it.

        For a supervisor that keeps `children`.
        """
        await supervisor.ready()
        return await send_catalogue(
            self.target,
            self.data / "catalogue",
            self.data / "state",
            self.state_url or "embedded",
            on_progress,
        )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the work folder: two stacks must not write one state. Raises UserError when it is held.

        The lock ends with the process, however that ends.
        """
        self.run_folder.mkdir(parents=True, exist_ok=True)
        with (self.run_folder / "lock").open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                file.seek(0)
                raise UserError(
                    f"a stack already runs from {self.data} (process {file.read().strip() or 'unknown'})"
                ) from error
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            yield

    def _url(self, role: str, given: str | None) -> str:
        return given or f"redis://{HOST}:{self.ports.of(role)}/0"

    def _model(self, name: str) -> Path | str:
        """The bundle of a learned decision, empty where none was trained."""
        folder = self.data / "models" / name
        return folder if folder.exists() else ""

    def _redis(self, role: str) -> Child:
        port, config = self.ports.of(role), self.run_folder / f"{role}.conf"
        valkey.write_config(
            role, config, host=HOST, port=port, folder=self.data / role, cache_mb=self.cache_mb
        )
        argv = (str(valkey.server_binary()), str(config))
        return Child(role, argv, f"{HOST}:{port}", redis_ping(HOST, port))

    def _service(self, name: str, keys: dict[str, str | int | Path], *, after: tuple[str, ...] = ()) -> Child:
        port, known = self.ports.of(name), self.ports.all()
        options: dict[str, str | int | Path] = {
            "host": HOST,
            "port": port,
            "admin_port": known.get(f"{name} admin", 0),
            "metrics_port": known[f"{name} metrics"],
            "log_format": "text",
            **keys,
        }
        return Child(
            name,
            (sys.executable, "-m", f"services.{name}"),
            f"{HOST}:{port}",
            grpc_health(HOST, port, f"frugalads.{name}.v1.{name.capitalize()}Service"),
            env={f"FRUGALADS_{name}_{key}".upper(): str(value) for key, value in options.items()},
            after=after,
        )


def _click_secret(file: Path) -> str:
    """The secret that signs click tokens, made once, so that tokens outlive a restart."""
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as new:
            new.write(secrets.token_hex(_SECRET_BYTES))
    if file.stat().st_mode & 0o077:
        raise UserError(f"{file}: others may read this secret; run: chmod 600 {file}, or delete it")
    secret = file.read_text(encoding="ascii").strip()
    if len(secret) < _LEAST_SECRET_CHARS:
        raise UserError(f"{file}: shorter than {_LEAST_SECRET_CHARS} characters; delete it to get a new one")
    return secret
