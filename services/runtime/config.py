"""Typed configuration: one table per service, from defaults, a TOML file and the environment.

A table is a frozen dataclass whose fields are made by `option`: type, default, bounds and meaning stand in
one row. Precedence: environment (`FRUGALADS_<SERVICE>_<KEY>`), then the TOML table `[<service>]`, then the
default. A key that no table knows is an error, so a typing mistake never passes as a default.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from services.runtime.errors import ConfigError, shown

ENV_PREFIX = "FRUGALADS_"
SERVICES = ("retrieval", "scoring", "eviction", "inference")

Value = bool | int | float | str
ConfigT = TypeVar("ConfigT", bound="ServerConfig")


@dataclass(frozen=True)
class Row:
    """One option of a table, as the reference shows it."""

    key: str
    type: type
    default: Value
    meaning: str
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    secret: bool


def option(
    default: Value,
    meaning: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    """A row of a configuration table: default (whose type is the option's), closed bounds, meaning.

    A `secret` is never shown in logs, errors or the reference.
    """
    metadata = {"meaning": meaning, "low": low, "high": high, "choices": choices, "secret": secret}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Options that every server has."""

    host: str = option("127.0.0.1", "Address to listen on.")
    port: int = option(0, "Port of the public services; 0 takes a free one.", low=0, high=65535)
    admin_port: int = option(
        0, "Port of the admin services, on loopback only; 0 takes a free one.", low=0, high=65535
    )
    metrics_port: int = option(
        -1, "Port of the Prometheus endpoint; 0 takes a free one, -1 has none.", low=-1, high=65535
    )
    max_concurrent: int = option(
        256, "Calls served or waiting at once; more are refused with RESOURCE_EXHAUSTED.", low=1, high=100_000
    )
    max_message_bytes: int = option(
        4 << 20, "Largest message either way, bytes.", low=1 << 10, high=256 << 20
    )
    drain_ms: int = option(
        0, "Time between NOT_SERVING and refusing new calls, so that balancers notice.", low=0, high=60_000
    )
    grace_ms: int = option(5_000, "Time that running calls have to end on shutdown.", low=0, high=300_000)
    tls_cert: str = option("", "PEM certificate chain of the server; empty serves plain text.")
    tls_key: str = option("", "PEM private key of the server.")
    tls_client_ca: str = option("", "PEM roots that client certificates must descend from (mTLS).")
    peer_ca: str = option("", "PEM roots that called services must descend from; empty calls in plain text.")
    peer_cert: str = option("", "PEM certificate chain shown to called services (mTLS).")
    peer_key: str = option("", "PEM private key for peer_cert.")
    reflection: bool = option(True, "Offer server reflection.")
    otlp_endpoint: str = option(
        "", "Address host:port of an OTLP/gRPC collector, plain text; empty records no spans."
    )
    trace_share: float = option(
        1.0, "Share of requests to trace where the caller did not decide.", low=0.0, high=1.0
    )
    log_level: str = option("info", "Least level logged.", choices=("debug", "info", "warning", "error"))
    log_format: str = option("json", "Form of a log line.", choices=("json", "text"))


def rows(table: type[ServerConfig]) -> Iterator[Row]:
    """The options of a table in order."""
    for field in dataclasses.fields(table):
        default = field.default
        assert isinstance(default, (bool, int, float, str))
        meta = field.metadata
        yield Row(
            field.name,
            type(default),
            default,
            meta["meaning"],
            meta["low"],
            meta["high"],
            meta["choices"],
            meta["secret"],
        )


def load(table: type[ConfigT], service: str, environ: Mapping[str, str], file: Path | None) -> ConfigT:
    """Reads the options of `service`; raises ConfigError that names source, key, value and limit."""
    known = {row.key: row for row in rows(table)}
    values: dict[str, Any] = {}
    for source, key, raw in [*_from_file(service, file), *_from_environ(service, environ)]:
        row = known.get(key)
        if row is None:
            raise ConfigError(f"{source}: unknown key; {service} knows {', '.join(sorted(known))}")
        values[key] = _checked(source, row, raw)
    config = table(**values)
    if bool(config.tls_cert) != bool(config.tls_key):
        raise ConfigError(f"{service}: tls_cert and tls_key go together")
    if config.tls_client_ca and not config.tls_cert:
        raise ConfigError(f"{service}: tls_client_ca needs tls_cert and tls_key")
    if bool(config.peer_cert) != bool(config.peer_key):
        raise ConfigError(f"{service}: peer_cert and peer_key go together")
    if config.peer_cert and not config.peer_ca:
        raise ConfigError(f"{service}: peer_cert needs peer_ca")
    return config


def _from_file(service: str, file: Path | None) -> Iterator[tuple[str, str, object]]:
    if file is None:
        return
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{file}: no such file") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error
    for name in document:
        if name not in SERVICES:
            raise ConfigError(f"{file}: unknown table [{name}]; known are {', '.join(SERVICES)}")
    table = document.get(service, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: {service} must be a table")
    for key, value in table.items():
        yield f"{file}: [{service}] {key}", key, value


def _from_environ(service: str, environ: Mapping[str, str]) -> Iterator[tuple[str, str, object]]:
    prefix = f"{ENV_PREFIX}{service.upper()}_"
    for name, value in sorted(environ.items()):
        if name.startswith(prefix):
            yield name, name.removeprefix(prefix).lower(), value


def _checked(source: str, row: Row, raw: object) -> Value:
    value = _parsed(source, row, raw)
    if row.choices and value not in row.choices:
        raise ConfigError(f"{source}: {shown(value)} is not one of {', '.join(row.choices)}")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise ConfigError(f"{source}: {shown(value)} is not a finite number")
        if (row.low is not None and value < row.low) or (row.high is not None and value > row.high):
            raise ConfigError(f"{source}: {shown(value)} is not in {row.low}..{row.high}")
    return value


def _parsed(source: str, row: Row, raw: object) -> Value:
    """A raw value in the type of its option; environment values are text, TOML values typed."""
    if row.type is str and isinstance(raw, str):
        return raw
    if row.type is bool:
        if isinstance(raw, bool):
            return raw
        if isinstance(raw, str) and raw.lower() in ("true", "1", "false", "0"):
            return raw.lower() in ("true", "1")
    elif isinstance(raw, (int, float, str)) and not isinstance(raw, bool):
        try:
            if row.type is int and not isinstance(raw, float):
                return int(raw)
            if row.type is float:
                return float(raw)
        except ValueError:
            pass
    said = "the given value" if row.secret else shown(raw)
    raise ConfigError(f"{source}: {said} is not a {row.type.__name__}")
