"""Transport security of servers and of the channels they open, from PEM files named in the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from services.runtime.config import ServerConfig
from services.runtime.errors import ConfigError


@dataclass(frozen=True)
class ClientTls:
    """What a channel trusts and, under mTLS, shows."""

    roots: bytes
    key: bytes | None = None
    certificate: bytes | None = None


def server_credentials(config: ServerConfig) -> grpc.ServerCredentials | None:
    """Credentials of a server; None when it serves plain text. Raises ConfigError for an unreadable file."""
    if not config.tls_cert:
        return None
    pair = (_read("tls_key", config.tls_key), _read("tls_cert", config.tls_cert))
    roots = _read("tls_client_ca", config.tls_client_ca) if config.tls_client_ca else None
    return grpc.ssl_server_credentials([pair], roots, require_client_auth=roots is not None)


def peer_tls(config: ServerConfig) -> ClientTls | None:
    """What channels to other services use; None for plain text. Raises ConfigError for an unreadable file."""
    if not config.peer_ca:
        return None
    key = _read("peer_key", config.peer_key) if config.peer_key else None
    certificate = _read("peer_cert", config.peer_cert) if config.peer_cert else None
    return ClientTls(_read("peer_ca", config.peer_ca), key, certificate)


def _read(key: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read: {error.strerror}") from error
