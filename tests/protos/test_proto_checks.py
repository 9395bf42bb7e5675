"""`protos/check.sh` fails when it should: run on copies of the protos in small git repositories."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCORING = "frugalads/scoring/v1/scoring.proto"


def _tools() -> Path:
    """The Python of `make check`'s proto tools; a test without it skips here, and fails in CI."""
    python = Path(os.environ.get("FRUGALADS_PROTO_PYTHON", ROOT / ".venv-protos" / "bin" / "python"))
    if not python.exists():
        if os.environ.get("CI"):
            raise AssertionError(f"no proto tools at {python}")
        pytest.skip(f"no proto tools at {python} (make check installs them, or set FRUGALADS_PROTO_PYTHON)")
    return python


@dataclass(frozen=True)
class Checkout:
    """A git repository that holds the protos in its folder `protos`."""

    root: Path

    @property
    def protos(self) -> Path:
        return self.root / "protos"

    def git(self, *arguments: str) -> None:
        identity = ("-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", self.root, *identity, *arguments], check=True, capture_output=True)

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "step")

    def edit(self, file: str, old: str, new: str) -> None:
        text = (self.protos / file).read_text(encoding="utf-8")
        assert text.count(old) == 1
        (self.protos / file).write_text(text.replace(old, new), encoding="utf-8")

    def generate(self) -> None:
        subprocess.run([self.protos / "generate.sh", _tools()], check=True, capture_output=True)

    def check(self) -> tuple[int, str]:
        """Exit status, and what the check said. It is run as make does, from the root."""
        done = subprocess.run(
            ["protos/check.sh", _tools()],
            cwd=self.root,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=120,
        )
        return done.returncode, done.stdout


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    """The protos as they are now, in a repository of two commits without a tag."""
    _tools()
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    ignored = shutil.ignore_patterns("*.egg-info", "build", "__pycache__")
    shutil.copytree(ROOT / "protos", tmp_path / "repository" / "protos", ignore=ignored)
    made = Checkout(tmp_path / "repository")
    made.git("init", "--quiet", "--initial-branch=main")
    made.commit()
    (made.root / "README.md").write_text("second commit", encoding="utf-8")
    made.commit()
    return made


def _rename_a_field(checkout: Checkout) -> None:
    checkout.edit(SCORING, "string query = 1;", "string search = 1;")


def _renumber_a_field(checkout: Checkout) -> None:
    checkout.edit(SCORING, "int32 slots = 3;", "int32 slots = 4;")


def _retype_a_field(checkout: Checkout) -> None:
    checkout.edit(SCORING, "int32 slots = 3;", "string slots = 3;")


def _drop_a_method(checkout: Checkout) -> None:
    checkout.edit(SCORING, "  rpc RankAds(RankAdsRequest) returns (RankAdsResponse);\n", "")


def _drop_a_file(checkout: Checkout) -> None:
    for file in (checkout.protos / "frugalads" / "eviction" / "v1").glob("eviction*"):
        file.unlink()


Change = Callable[[Checkout], None]
BREAKS = [
    (_rename_a_field, 'from "query" to "search"'),
    (
        _renumber_a_field,
        'Previously present field "3" with name "slots" on message "RankAdsRequest" was deleted',
    ),
    (_retype_a_field, 'changed type from "int32" to "string"'),
    (_drop_a_method, 'RPC "RankAds" on service "ScoringService" was deleted'),
    (_drop_a_file, 'file "frugalads/eviction/v1/eviction.proto" was deleted'),
]


def test_the_protos_as_they_are_pass(checkout: Checkout) -> None:
    status, said = checkout.check()
    assert status == 0, said
    assert "no comparison with the last tag: there is none before this commit" in said


@pytest.mark.parametrize(("change", "complaint"), BREAKS, ids=[change.__name__[1:] for change, _ in BREAKS])
def test_a_breaking_change_fails(checkout: Checkout, change: Change, complaint: str) -> None:
    change(checkout)
    status, said = checkout.check()
    assert status == 1
    assert complaint in said
    assert "breaking changes against the last commit" in said


def test_a_committed_breaking_change_fails(checkout: Checkout) -> None:
    _renumber_a_field(checkout)
    checkout.generate()
    checkout.commit()
    status, said = checkout.check()
    assert status == 1
    assert "breaking changes against the commit before" in said
    assert "stale" not in said


def test_a_breaking_change_since_the_last_tag_fails_however_many_commits_ago(checkout: Checkout) -> None:
    checkout.git("tag", "v0.1.0")
    _renumber_a_field(checkout)
    checkout.generate()
    for step in range(2):
        (checkout.root / "README.md").write_text(f"step {step}", encoding="utf-8")
        checkout.commit()
    status, said = checkout.check()
    assert status == 1
    assert "breaking changes against tag v0.1.0" in said
    assert "the commit before" not in said


def test_a_shallow_clone_is_completed_first(checkout: Checkout, tmp_path: Path) -> None:
    checkout.git("tag", "v0.1.0")
    _renumber_a_field(checkout)
    checkout.generate()
    checkout.commit()
    clone = Checkout(tmp_path / "clone")
    source = checkout.root.as_uri()
    subprocess.run(["git", "clone", "--quiet", "--depth=1", "--no-tags", source, clone.root], check=True)
    status, said = clone.check()
    assert status == 1
    assert "breaking changes against the commit before" in said


def test_a_compatible_addition_passes(checkout: Checkout) -> None:
    checkout.git("tag", "v0.1.0")
    addition = '  int32 slots = 3;\n  // Language of the query, such as "en".\n  string language = 4;\n'
    checkout.edit(SCORING, "  int32 slots = 3;\n", addition)
    checkout.generate()
    checkout.commit()
    status, said = checkout.check()
    assert status == 0, said
    assert "no comparison" not in said


def test_stale_stubs_fail(checkout: Checkout) -> None:
    checkout.edit(SCORING, "  // What the user typed,", "  // What the person typed,")
    status, said = checkout.check()
    assert status == 1
    assert "the stubs are stale: run 'make protos'" in said
    assert "scoring_pb2.pyi differ" in said
    checkout.generate()
    assert checkout.check()[0] == 0


def test_a_stub_without_a_proto_fails(checkout: Checkout) -> None:
    (checkout.protos / "frugalads" / "scoring" / "v1" / "bids_pb2.py").write_text("", encoding="utf-8")
    status, said = checkout.check()
    assert status == 1
    assert "bids_pb2.py" in said


def test_an_uncommented_field_fails(checkout: Checkout) -> None:
    checkout.edit(SCORING, "  int32 slots = 3;\n", "  int32 slots = 3;\n\n  string language = 4;\n")
    checkout.generate()
    status, said = checkout.check()
    assert status == 1
    assert "the protos break the lint rules" in said
    assert 'Field "language" should have a non-empty comment' in said


def test_a_client_that_needs_a_newer_grpc_fails(checkout: Checkout) -> None:
    checkout.edit(
        "frugalads/client/__init__.py",
        "from frugalads.client.options",
        "import grpc.of_tomorrow\nfrom frugalads.client.options",
    )
    status, said = checkout.check()
    assert status == 1
    assert "the client does not work on the oldest supported versions" in said
    assert "No module named 'grpc.of_tomorrow'" in said


def test_a_first_version_has_nothing_to_compare_with(checkout: Checkout) -> None:
    shutil.rmtree(checkout.root / ".git")
    checkout.git("init", "--quiet")
    status, said = checkout.check()
    assert status == 0, said
    assert "no comparison with earlier versions: there are no commits" in said
    (checkout.root / "README.md").write_text("alone", encoding="utf-8")
    checkout.git("add", "README.md")
    checkout.git("commit", "--quiet", "--message", "without protos")
    status, said = checkout.check()
    assert status == 0, said
    assert "no comparison with the last commit: it has no protos" in said
    assert "no comparison with the commit before: this history starts here" in said
