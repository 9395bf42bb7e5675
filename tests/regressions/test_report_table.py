"""The table of public reports (README.md) names tests that exist, and every test file beside it."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent
TESTS = FOLDER.parent
NAME = re.compile(r"`([\w/]+\.py)?(?:::(test_\w+)(\*?))?`")
FUNCTION = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)


def named(table: str) -> list[tuple[str, str, bool]]:
    """File, test or "", and whether the test is a beginning; `::test` alone is of the file before it."""
    found, file = [], ""
    for line in table.splitlines():
        for path, test, is_prefix in NAME.findall(line):
            file = path or file
            if path or test:
                found.append((file, test, bool(is_prefix)))
    return found


def missing(names: list[tuple[str, str, bool]]) -> list[str]:
    """What is named and does not exist."""
    faults = []
    for file, test, is_prefix in names:
        path = TESTS / file
        functions = FUNCTION.findall(path.read_text(encoding="utf-8")) if path.is_file() else []
        if not functions or (
            test and not any(name.startswith(test) if is_prefix else name == test for name in functions)
        ):
            faults.append(f"{file}::{test}")
    return faults


def test_the_table_names_what_exists() -> None:
    names = named((FOLDER / "README.md").read_text(encoding="utf-8"))
    assert len(names) > 80
    assert missing(names) == []


def test_every_file_here_is_in_the_table() -> None:
    files = {file for file, _, _ in named((FOLDER / "README.md").read_text(encoding="utf-8"))}
    here = {f"regressions/{path.name}" for path in FOLDER.glob("test_*.py")} - {
        "regressions/" + Path(__file__).name
    }
    assert here <= files


def test_a_wrong_name_is_caught() -> None:
    wrong = (
        "| x | y | `regressions/test_report_table.py::test_absent`, `::test_a_wrong_*`, `core/absent.py` |"
    )
    assert missing(named(wrong)) == ["regressions/test_report_table.py::test_absent", "core/absent.py::"]
