"""Rules that a reader can rely on in every file of the repository; each is also shown to catch a breach."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.runtime.config import SERVICES, ServerConfig, rows

ROOT = Path(__file__).parents[1]
MAX_LINES = 700
GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")
BINARY = {".gz", ".png", ".ico", ".parquet", ".npz", ".npy"}

# Written so that this file does not match itself.
MACHINE_PATH = re.compile(r"(?<![\w.)\]}>*-])/(?:[w]ork|[r]oot|[h]ome)\b(?![-.])")
REGISTRY = re.compile(
    r"\b(?:pypi\.[o]rg|python[h]osted\.org|npmjs\.[o]rg|crates\.[i]o|proxy\.golang\.[o]rg)|--(?:extra-)?[i]ndex-url"
)
UNFINISHED = re.compile(r"\b(?:TO[D]O|FIX[M]E)\b")
CODE_FORMATS = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


def _files() -> list[Path]:
    """Every file that is tracked or about to be, without generated stubs."""
    command = [
        "git",
        "-c",
        "safe.directory=*",
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "-z",
    ]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        if os.environ.get("CI"):
            raise AssertionError(f"git ls-files: {listed.stderr}")
        pytest.skip("not a git checkout")
    paths = sorted({ROOT / name for name in listed.stdout.split("\0") if name})
    return [path for path in paths if path.is_file() and not GENERATED.search(path.name)]


def _faults(rule: Callable[[Path, str], Iterator[str]], suffixes: tuple[str, ...] = ()) -> list[str]:
    """What a rule finds in the files of the repository."""
    files = [
        path for path in _files() if path.suffix not in BINARY and (not suffixes or path.suffix in suffixes)
    ]
    assert files
    return [
        f"{path.relative_to(ROOT)}: {fault}"
        for path in files
        for fault in rule(path, path.read_text(encoding="utf-8"))
    ]


def too_long(path: Path, text: str) -> Iterator[str]:
    """A source file that no one reads in one sitting."""
    lines = text.count("\n")
    if lines >= MAX_LINES:
        yield f"{lines} lines"


def code_formats(path: Path, text: str) -> Iterator[str]:
    """An import of a format that runs code when it is read."""
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in names:
            if name.partition(".")[0] in CODE_FORMATS:
                yield f"imports {name}"


def strays(path: Path, text: str) -> Iterator[str]:
    """A path of one machine, a host of one registry, or a note that work is left."""
    for number, line in enumerate(text.splitlines(), 1):
        for pattern in (MACHINE_PATH, REGISTRY, UNFINISHED):
            if found := pattern.search(line):
                yield f"line {number}: {found.group()}"


def sleeps(path: Path, text: str) -> Iterator[str]:
    """A test that sleeps. Its helpers may: they poll a condition within bounds, or play a slow server."""
    if not path.name.startswith("test_"):
        return
    waiting: list[tuple[ast.AST, bool]] = [(ast.parse(text), True)]
    while waiting:
        node, in_test = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            in_test = node.name.startswith("test_")
        if in_test and isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "sleep"):
            yield f"line {node.lineno}: sleeps"
        waiting.extend((child, in_test) for child in ast.iter_child_nodes(node))


def test_no_source_file_is_too_long() -> None:
    assert not _faults(too_long, (".py",))


def test_nothing_reads_a_format_that_runs_code() -> None:
    assert not _faults(code_formats, (".py",))


def test_nothing_names_a_machine_or_a_registry_or_is_left_unfinished() -> None:
    assert not _faults(strays)


def test_no_test_sleeps() -> None:
    assert not [fault for fault in _faults(sleeps, (".py",)) if fault.startswith("tests/")]


SLEEP = "time." + "sleep(1)"

BREACHES: list[tuple[Callable[[Path, str], Iterator[str]], str, str]] = [
    (too_long, "long.py", "\n" * MAX_LINES),
    (code_formats, "a.py", "import os, pickle as p"),
    (code_formats, "a.py", "def late():\n    from joblib.memory import Memory"),
    (strays, "README.md", "see /" + "work/data"),
    (strays, "run.sh", "cd /" + "home/someone"),
    (strays, "a.toml", "url = 'https://pypi." + "org/simple'"),
    (strays, "Makefile", "pip install --" + "index-url x"),
    (strays, "a.py", "# TO" + "DO later"),
    (sleeps, "test_a.py", f"import time\n{SLEEP}"),
    (sleeps, "test_a.py", f"async def test_it():\n    for _ in range(9):\n        {SLEEP}"),
    (sleeps, "test_a.py", "def test_it():\n    sleep(1)"),
]


@pytest.mark.parametrize(
    ("rule", "name", "text"), BREACHES, ids=[f"{b[0].__name__}-{b[1]}" for b in BREACHES]
)
def test_each_rule_catches_its_breach(
    rule: Callable[[Path, str], Iterator[str]], name: str, text: str
) -> None:
    assert len(list(rule(Path(name), text))) == 1


def test_the_rules_leave_the_innocent_alone() -> None:
    assert not list(strays(Path("a.py"), "https://example.org/home/page ../work x/root {folder}/work"))
    assert not list(sleeps(Path("polling.py"), SLEEP))
    assert not list(sleeps(Path("test_a.py"), f"def test_it():\n    def slow():\n        {SLEEP}"))
    assert not list(code_formats(Path("a.py"), "from .pickle import jar"))


def test_test_files_have_unique_names_and_no_packages() -> None:
    tests = [path for path in _files() if path.is_relative_to(ROOT / "tests") and path.suffix == ".py"]
    names = Counter(path.name for path in tests if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []
    assert "__init__.py" not in names


def test_the_licence_is_in_the_box() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text


@pytest.mark.parametrize("service", SERVICES)
def test_every_option_of_a_service_says_what_it_means(service: str) -> None:
    module = importlib.import_module(f"services.{service}.config")
    tables = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, ServerConfig) and value is not ServerConfig
    ]
    assert len(tables) == 1
    own = [row for row in rows(tables[0]) if row.key not in {base.key for base in rows(ServerConfig)}]
    assert own
    for row in rows(tables[0]):
        assert len(row.meaning.split()) >= 2, f"{row.key} has no meaning"
        assert row.meaning.endswith("."), f"the meaning of {row.key} is not a sentence"
