"""The annotated reference of every option, as a TOML file: meaning, type, bounds, default, environment name.

Each option stands commented out at its default, so the file as it is changes nothing, and removing one `#`
sets that option. Secrets stand without their default.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping

from services.runtime.config import ENV_PREFIX, Row, ServerConfig, Value, rows

_WIDTH = 100
_TYPES = {bool: "true or false", int: "integer", float: "number", str: "text"}
_HEAD = """\
# Every option of every service at its default. Written by `frugalads config`; edit a copy.
#
# A server reads it by `python -m services.<service> --config FILE`. To set an option, remove the `#` before
# its name. The environment variable beside an option comes before this file. A key that is not listed here,
# or a value out of bounds, stops the server at start with a message that names it.
"""


def render(tables: Mapping[str, type[ServerConfig]]) -> str:
    """The reference of the given services' tables; in each, its own options before those that all have."""
    common = {row.key for row in rows(ServerConfig)}
    parts = [_HEAD]
    for service, table in tables.items():
        options = list(rows(table))
        parts.append(f"\n[{service}]\n")
        parts += [_entry(service, row) for row in options if row.key not in common]
        parts.append(f"\n# -- {service}: options that every service has\n")
        parts += [_entry(service, row) for row in options if row.key in common]
    return "".join(parts)


def toml_value(value: Value) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _entry(service: str, row: Row) -> str:
    meaning = textwrap.fill(row.meaning, _WIDTH, initial_indent="# ", subsequent_indent="# ")
    variable = f"{ENV_PREFIX}{service}_{row.key}".upper()
    facts = "; ".join([*_facts(row), variable])
    shown = '""' if row.secret else toml_value(row.default)
    return f"\n{meaning}\n# {facts}\n#{row.key} = {shown}\n"


def _facts(row: Row) -> Iterator[str]:
    kind = _TYPES[row.type]
    if row.low is not None and row.high is not None:
        kind += f", {_number(row, row.low)} to {_number(row, row.high)}"
    yield kind
    if row.choices:
        yield f"one of {', '.join(row.choices)}"
    yield "secret: its default is not shown" if row.secret else f"default {toml_value(row.default)}"


def _number(row: Row, bound: float) -> str:
    return f"{bound:,.0f}" if row.type is int else f"{bound:g}"
