from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from services.runtime.config import ServerConfig, load, option, rows
from services.runtime.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Table(ServerConfig):
    width: int = option(4, "How wide.", low=1, high=10)
    share: float = option(0.5, "A share.", low=0, high=1)
    mode: str = option("a", "Which.", choices=("a", "b"))
    secret: str = option("", "Hidden.", secret=True)
    level: int = option(0, "A secret number.", secret=True)


def loaded(environ: dict[str, str], file: Path | None = None) -> Table:
    return load(Table, "scoring", environ, file)


def test_defaults_then_file_then_environment(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text('[scoring]\nwidth = 7\nmode = "b"\nshare = 1\n[retrieval]\nanything = 1\n')
    config = loaded({"FRUGALADS_SCORING_WIDTH": "9", "FRUGALADS_RETRIEVAL_X": "1"}, file)
    assert (config.width, config.mode, config.share, config.port) == (9, "b", 1.0, 0)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"FRUGALADS_SCORING_WIDHT": "3"}, "FRUGALADS_SCORING_WIDHT: unknown key"),
        ({"FRUGALADS_SCORING_WIDTH": "11"}, "'11'|11 is not in 1..10"),
        ({"FRUGALADS_SCORING_WIDTH": "0"}, "0 is not in 1..10"),
        ({"FRUGALADS_SCORING_WIDTH": "4.5"}, "'4.5' is not a int"),
        ({"FRUGALADS_SCORING_SHARE": "nan"}, "nan is not a finite number"),
        ({"FRUGALADS_SCORING_MODE": "c"}, "'c' is not one of a, b"),
        ({"FRUGALADS_SCORING_REFLECTION": "yes"}, "'yes' is not a bool"),
        ({"FRUGALADS_SCORING_TLS_CERT": "x.pem"}, "tls_cert and tls_key go together"),
        ({"FRUGALADS_SCORING_PEER_CERT": "x", "FRUGALADS_SCORING_PEER_KEY": "y"}, "peer_cert needs peer_ca"),
    ],
)
def test_a_bad_value_is_named_with_its_limit(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loaded(environ)


def test_a_secret_is_never_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        loaded({"FRUGALADS_SCORING_LEVEL": "hunter2"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[scoring]\nwidht = 3\n", r"\[scoring\] widht: unknown key"),
        ("[scorign]\nwidth = 3\n", r"unknown table \[scorign\]"),
        ("scoring = 3\n", "scoring must be a table"),
        ("[scoring]\nwidth = true\n", "True is not a int"),
        ('[scoring]\nmode = ["a"]\n', "is not a str"),
        ("[scoring\n", "f.toml"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "f.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        loaded({}, file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        loaded({}, tmp_path / "none.toml")


def test_every_row_has_a_meaning() -> None:
    assert all(row.meaning.endswith(".") for row in rows(Table))
    assert {row.key for row in rows(Table)} >= {"host", "port", "width"}
