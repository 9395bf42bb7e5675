"""Which child listens where, and whether those ports are free."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.runtime.errors import UserError

HOST = "127.0.0.1"
DEFAULT_BASE_PORT = 7400
_OFFSETS = {
    "scoring": 0,
    "retrieval": 1,
    "inference": 2,
    "eviction": 3,
    "retrieval admin": 11,
    "inference admin": 12,
    "scoring metrics": 20,
    "retrieval metrics": 21,
    "inference metrics": 22,
    "eviction metrics": 23,
    "cache": 30,
    "state": 31,
}
_HIGHEST_OFFSET = max(_OFFSETS.values())


@dataclass(frozen=True)
class Ports:
    """The ports of a stack, all at fixed distances from `base`."""

    base: int = DEFAULT_BASE_PORT

    def __post_init__(self) -> None:
        if not 1024 <= self.base <= 65535 - _HIGHEST_OFFSET:
            raise UserError(f"--base-port: {self.base} is not in 1024..{65535 - _HIGHEST_OFFSET}")

    def of(self, listener: str) -> int:
        """The port of a listener such as "scoring" or "retrieval admin"."""
        return self.base + _OFFSETS[listener]

    def all(self, *, embedded: Iterable[str] = ("cache", "state")) -> dict[str, int]:
        """Every listener's port; of the Redis roles, those in `embedded` only."""
        skipped = {"cache", "state"} - set(embedded)
        return {name: self.base + offset for name, offset in _OFFSETS.items() if name not in skipped}


def require_free(ports: Mapping[str, int]) -> None:
    """Raises UserError that names every listener whose port is taken.

    Binds without SO_REUSEPORT, so a server that would share its port counts as taken; SO_REUSEADDR lets
    ports pass that only old connections (TIME_WAIT) still hold.
    """
    taken = [f"{port} ({name})" for name, port in ports.items() if not is_free(port)]
    if taken:
        noun = "port" if len(taken) == 1 else "ports"
        raise UserError(
            f"{noun} {', '.join(taken)} on {HOST} already in use; "
            "stop what listens there, or choose other ports with --base-port"
        )


def is_free(port: int) -> bool:
    """Whether this process could listen on `port` of the loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_base(preferred: int = DEFAULT_BASE_PORT, step: int = 50, tries: int = 200) -> int:
    """The first base port from `preferred` on with every port of a stack free; UserError if none is."""
    for base in range(preferred, preferred + tries * step, step):
        if base > 65535 - _HIGHEST_OFFSET:
            break
        if all(is_free(port) for port in Ports(base).all().values()):
            return base
    raise UserError(f"no {len(_OFFSETS)} free ports from {preferred} on; choose with --base-port")
