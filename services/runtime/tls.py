"""Transport security of servers and of the channels they open, from PEM files named in the configuration.

gRPC reports a file that it cannot use as a port that it cannot open, or on every call as UNAVAILABLE. So the
files are parsed here first.
"""

from __future__ import annotations

import ssl
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
    """Credentials of a server; None when it serves plain text. Raises ConfigError for an unusable file."""
    if not config.tls_cert:
        return None
    pair = _pair("tls", config.tls_key, config.tls_cert)
    roots = _roots("tls_client_ca", config.tls_client_ca) if config.tls_client_ca else None
    return grpc.ssl_server_credentials([pair], roots, require_client_auth=roots is not None)


def peer_tls(config: ServerConfig) -> ClientTls | None:
    """What channels to other services use; None for plain text. Raises ConfigError for an unusable file."""
    if not config.peer_ca:
        return None
    roots = _roots("peer_ca", config.peer_ca)
    if not config.peer_cert:
        return ClientTls(roots)
    return ClientTls(roots, *_pair("peer", config.peer_key, config.peer_cert))


def _pair(prefix: str, key: str, certificate: str) -> tuple[bytes, bytes]:
    """A private key and the certificate chain that belongs to it."""
    contents = _read(f"{prefix}_key", key), _read(f"{prefix}_cert", certificate)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"{prefix}_cert, {prefix}_key: {certificate} and {key} are not a certificate and its key: {error}"
        ) from error
    return contents


def _roots(key: str, path: str) -> bytes:
    contents = _read(key, path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=contents.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{key}: {path} holds no PEM certificates: {error}") from error
    return contents


def _no_password() -> str:
    """Without this, OpenSSL would ask the terminal for the password of an encrypted key, and wait."""
    raise ValueError("the key is encrypted")


def _read(key: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read: {error.strerror}") from error
