"""deploy/frugalads.toml: written from the tables, complete, and each line of it can be taken as it stands."""

from __future__ import annotations

import contextlib
import importlib
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from services.cli import main
from services.runtime.config import SERVICES, ServerConfig, load, option, rows
from services.runtime.errors import ConfigError
from services.runtime.reference import render

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "deploy" / "frugalads.toml"


def table(service: str) -> type[ServerConfig]:
    found: type[ServerConfig] = getattr(
        importlib.import_module(f"services.{service}.config"), f"{service.capitalize()}Config"
    )
    return found


def uncommented(text: str) -> str:
    """The file with every option set: only option lines have no blank after the `#`."""
    return re.sub(r"^#(?=\w+ = )", "", text, flags=re.MULTILINE)


def test_the_file_is_what_the_tables_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "made.toml"
    assert main(["config", "--out", str(made)]) == 0
    assert made.read_text(encoding="utf-8") == REFERENCE.read_text(encoding="utf-8"), (
        "write it anew: frugalads config --out deploy/frugalads.toml"
    )
    capsys.readouterr()
    assert main(["config"]) == 0
    assert capsys.readouterr().out == made.read_text(encoding="utf-8")


@pytest.mark.parametrize("service", SERVICES)
def test_as_it_is_it_changes_nothing(service: str) -> None:
    assert load(table(service), service, {}, REFERENCE) == table(service)()


@pytest.mark.parametrize("service", SERVICES)
def test_every_option_can_be_set_as_it_stands(service: str, tmp_path: Path) -> None:
    file = tmp_path / "all.toml"
    file.write_text(uncommented(REFERENCE.read_text(encoding="utf-8")), encoding="utf-8")
    held = tomllib.loads(file.read_text(encoding="utf-8"))[service]
    known = list(rows(table(service)))
    assert set(held) == {row.key for row in known}
    loaded = load(table(service), service, {}, file)
    for row in known:
        assert getattr(loaded, row.key) == ("" if row.secret else row.default), row.key


@pytest.mark.parametrize("service", SERVICES)
def test_the_variable_beside_each_option_is_the_one_that_sets_it(service: str) -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    section = re.split(r"^\[(\w+)\]$", text, flags=re.MULTILINE)
    body = section[section.index(service) + 1]
    for row in rows(table(service)):
        entry = re.search(rf"^# ([^\n]*)\n#{row.key} = ", body, re.MULTILINE)
        assert entry is not None, row.key
        variable = entry[1].rpartition("; ")[2]
        shown = str(row.default).lower() if row.type is bool else str(row.default)
        with contextlib.suppress(ConfigError):  # options that go together complain alone; unknown keys never
            assert getattr(load(table(service), service, {variable: shown}, None), row.key) == row.default


@dataclass(frozen=True, kw_only=True)
class Odd(ServerConfig):
    """A table whose values are hard to write."""

    text: str = option('a "quoted" \\ path, ü\n', "Words that need care. " * 20)
    small: float = option(1e-7, "A small number.", low=0.0, high=1e9)
    mode: str = option("fast", "How.", choices=("fast", "slow"))
    token: str = option("s3cret", "A token.", secret=True)


def test_values_survive_the_writing_and_secrets_do_not_appear(tmp_path: Path) -> None:
    text = render({"scoring": Odd})
    assert "s3cret" not in text
    assert max(map(len, text.splitlines())) <= 110
    assert '# text; one of fast, slow; default "fast"; FRUGALADS_SCORING_MODE' in text
    assert "# number, 0 to 1e+09; default 1e-07; FRUGALADS_SCORING_SMALL" in text
    file = tmp_path / "odd.toml"
    file.write_text(uncommented(text), encoding="utf-8")
    loaded = load(Odd, "scoring", {}, file)
    assert (loaded.text, loaded.small, loaded.mode, loaded.token) == (Odd.text, Odd.small, "fast", "")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--out", str(tmp_path / "absent" / "x.toml")]) == 2
    assert "absent/x.toml: No such file or directory" in capsys.readouterr().err


def test_the_reference_needs_no_library_of_a_service() -> None:
    code = "import sys; from services.commands.config import reference; reference(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    roots = {name.partition(".")[0] for name in done.stdout.split()}
    assert "services" in roots
    assert not roots & {"numpy", "faiss", "redis", "ctranslate2", "tokenizers", "torch", "pyarrow"}
