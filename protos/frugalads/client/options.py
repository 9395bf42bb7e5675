"""How a client connects and how long it waits."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

MAX_TIMEOUT_S = 3600.0
MAX_ATTEMPTS = 5


@dataclass(frozen=True, kw_only=True)
class Tls:
    """Encrypt, and check who the server is.

    Files are PEM and are read once, when the client is made; make a new client after a rotation.

    root_ca: roots that the server's certificate must descend from; None takes the public ones gRPC ships.
    cert, key: certificate chain and private key of this client, where servers ask for one (mTLS).
    server_name: name to expect in the server's certificate instead of the host of the target. Needed with
        several addresses, and with an address that the certificate does not name.
    """

    root_ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    server_name: str = ""

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("tls: cert and key go together")

    def credentials(self) -> grpc.ChannelCredentials:
        """Reads the files.

        gRPC reports a bad file on every call as "UNAVAILABLE", so they are parsed here first: raises OSError
        for a file that cannot be read, ValueError naming one that is not PEM or a key of another certificate.
        """
        root_ca, cert, key = (_contents(path) for path in (self.root_ca, self.cert, self.key))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if root_ca is not None:
                context.load_verify_locations(cadata=root_ca.decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise ValueError(f"tls: root_ca: {self.root_ca} holds no PEM certificates: {error}") from error
        try:
            if self.cert is not None and self.key is not None:
                context.load_cert_chain(self.cert, self.key, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            raise ValueError(f"tls: cert, key: {self.cert} and {self.key} do not fit: {error}") from error
        return grpc.ssl_channel_credentials(root_ca, key, cert)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a client. The defaults suit servers in the same data centre.

    timeout_s: how long a call may take, all its tries together, unless the call says otherwise;
        0 < timeout_s <= 3600. There is no endless call.
    attempts: tries in all while the answer is UNAVAILABLE, 1..5; 1 never retries. They are spaced by
        jittered back-off from 50 ms to 1 s, or by what the server asks for (`grpc-retry-pushback-ms`), and
        are left out while most calls of the client fail. Nothing but UNAVAILABLE is retried.
    tls: encryption; None talks in plain text.
    max_message_bytes: largest message either way, bytes, at least 1024.
    keepalive_s: while calls run, ping a silent connection this often and give it up after 10 s without a
        reply. Servers refuse clients that ping more often than every 10 s, hence at least 20.
    """

    timeout_s: float = 2.0
    attempts: int = 3
    tls: Tls | None = None
    max_message_bytes: int = 4 << 20
    keepalive_s: float = 30.0

    def __post_init__(self) -> None:
        check_timeout_s(self.timeout_s)
        if not 1 <= self.attempts <= MAX_ATTEMPTS:
            raise ValueError(f"attempts: {self.attempts} is outside 1..{MAX_ATTEMPTS}")
        if not 1024 <= self.max_message_bytes <= 1 << 30:
            raise ValueError(f"max_message_bytes: {self.max_message_bytes} is outside 1024..{1 << 30}")
        if not 20.0 <= self.keepalive_s <= 7200.0:
            raise ValueError(f"keepalive_s: {self.keepalive_s} is outside 20..7200")


def check_timeout_s(timeout_s: float) -> float:
    """Returns `timeout_s` when it is a time that a call may take; raises ValueError otherwise."""
    if not 0.0 < timeout_s <= MAX_TIMEOUT_S:
        raise ValueError(f"timeout_s: {timeout_s} is outside 0 < timeout_s <= {MAX_TIMEOUT_S:.0f}")
    return timeout_s


def _contents(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()


def _no_password() -> str:
    """Without this, OpenSSL would ask the terminal for the password of an encrypted key, and wait."""
    raise ValueError("the key is encrypted")
