"""The absences of ARCHITECTURE.md: who imports whom, read from the code and seen in fresh interpreters."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("services", "models", "loadtest", "protos/frugalads")
LINT = (
    "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True, no_logo=True))"
)

# One breach of each contract, or two: the file planted, and what it says.
BREACHES = [
    ("layers", "services/scoring/planted.py", "import services.retrieval"),
    ("layers", "services/runtime/planted.py", "import services.catalogue"),
    ("layers", "services/bidding/__init__.py", ""),
    ("core", "services/core/planted.py", "import frugalads"),
    ("core", "services/core/planted.py", "import services.runtime.errors"),
    ("models", "models/scorer/planted.py", "import services.catalogue"),
    ("serving", "services/scoring/planted.py", "import models.scorer"),
    ("loadtest", "services/stack/planted.py", "import loadtest"),
    ("client", "protos/frugalads/client/planted.py", "import numpy"),
    ("cache-side", "services/eviction/planted.py", "def late():\n    import torch"),
    ("cache-side", "services/scoring/planted.py", "import faiss"),
    ("retrieval", "services/retrieval/planted.py", "import torch.nn"),
    ("inference", "services/inference/planted.py", "import services.runtime.redis_client"),
    ("tree-libraries", "services/core/planted.py", "from lightgbm import Booster"),
    ("pickle", "loadtest/planted.py", "import pickle"),
    ("tests", "models/planted.py", "import tests"),
]


def _lint(root: Path) -> tuple[int, str]:
    """Runs the contracts of `root` on the packages of `root`: exit status, and report on one line."""
    path = os.pathsep.join([str(root), str(root / "protos")])
    done = subprocess.run(
        [sys.executable, "-c", LINT],
        cwd=root,
        env=os.environ | {"PYTHONPATH": path, "PYTHONWARNINGS": "", "COLUMNS": "200"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=120,
    )
    return done.returncode, " ".join(done.stdout.split())


def _contracts() -> dict[str, str]:
    """Names of the contracts by identifier."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter", encoding="utf-8")
    prefix = "importlinter:contract:"
    return {name.removeprefix(prefix): parser[name]["name"] for name in parser if name.startswith(prefix)}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages and the contracts, to plant things in."""
    root = tmp_path_factory.mktemp("copy")
    shutil.copy(ROOT / ".importlinter", root)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def test_all_contracts_are_kept() -> None:
    status, report = _lint(ROOT)
    assert status == 0, report
    assert f"Contracts: {len(_contracts())} kept, 0 broken." in report


@pytest.mark.parametrize(("contract", "file", "text"), BREACHES, ids=[f"{b[0]}: {b[1]}" for b in BREACHES])
def test_a_breach_is_caught(copy: Path, contract: str, file: str, text: str) -> None:
    planted = copy / file
    fresh_folder = not planted.parent.exists()
    planted.parent.mkdir(exist_ok=True)
    planted.write_text(text, encoding="utf-8")
    try:
        status, report = _lint(copy)
    finally:
        if fresh_folder:
            shutil.rmtree(planted.parent)
        else:
            planted.unlink()
    assert status == 1, report
    assert f"{_contracts()[contract]} BROKEN" in report


def test_every_contract_has_a_breach_that_it_catches() -> None:
    assert {contract for contract, _, _ in BREACHES} == set(_contracts())


def _loaded_by(statement: str) -> set[str]:
    """Modules that a fresh interpreter holds after `statement` and did not hold before."""
    code = f"import sys\nbefore = set(sys.modules)\n{statement}\nprint(*(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("service", "absent"),
    [
        ("retrieval", {"torch", "redis", "models", "loadtest"}),
        ("scoring", {"torch", "faiss", "ctranslate2", "tokenizers", "models", "loadtest"}),
        ("eviction", {"torch", "faiss", "ctranslate2", "tokenizers", "models", "loadtest"}),
        ("inference", {"torch", "faiss", "redis", "loadtest"}),
    ],
)
def test_a_server_loads_only_what_it_needs(service: str, absent: set[str]) -> None:
    loaded = _loaded_by(f"import services.{service}.server")
    roots = {name.partition(".")[0] for name in loaded}
    assert not roots & (absent | {"lightgbm", "xgboost", "pytest"})
    others = {"retrieval", "scoring", "eviction", "inference"} - {service}
    assert not loaded & {f"services.{other}" for other in others}


def test_the_client_loads_grpc_and_protobuf_only() -> None:
    loaded = _loaded_by("import frugalads.client")
    roots = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    # grpc itself loads its sister packages where they are installed.
    strangers = {name for name in roots if not name.startswith(("grpc", "_cython", "cython_runtime"))}
    assert strangers - {"typing_extensions"} == {"frugalads", "google"}
    assert "google.rpc" not in loaded


def test_the_command_line_answers_help_without_the_heavy_libraries() -> None:
    loaded = _loaded_by("from services import cli\ntry: cli.main(['--help'])\nexcept SystemExit: pass")
    assert "services.commands.up" in loaded
    assert not {name.partition(".")[0] for name in loaded} & {
        "torch",
        "faiss",
        "ctranslate2",
        "pyarrow",
        "numpy",
    }
