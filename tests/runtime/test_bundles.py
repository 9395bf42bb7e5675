from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.runtime.bundles import (
    MANIFEST,
    Bundle,
    check_replaceable,
    open_bundle,
    parse_in_child,
    write_bundle,
)
from services.runtime.errors import BundleError, UserError

LIMIT = 1 << 20


def make(folder: Path, content: bytes = b"weights", **meta: object) -> Path:
    with write_bundle(folder, "model", {"dimension": 3, **meta}) as staging:
        (staging / "a.bin").write_bytes(content)
        (staging / "b.txt").write_text("words")
    return folder


def opened(folder: Path) -> Bundle:
    return open_bundle(folder, "model", max_bytes=LIMIT)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    bundle = opened(make(tmp_path / "m"))
    assert bundle.meta == {"dimension": 3}
    assert bundle.read("a.bin") == b"weights"
    assert bundle.path("b.txt").read_text() == "words"


def test_equal_content_has_an_equal_fingerprint(tmp_path: Path) -> None:
    first = opened(make(tmp_path / "x"))
    assert first.fingerprint == opened(make(tmp_path / "y")).fingerprint
    assert first.fingerprint != opened(make(tmp_path / "z", b"other")).fingerprint
    assert first.fingerprint != opened(make(tmp_path / "w", extra=1)).fingerprint


def test_a_failed_write_leaves_the_old_bundle_and_nothing_else(tmp_path: Path) -> None:
    folder = make(tmp_path / "m")

    def interrupted() -> None:
        with write_bundle(folder, "model", {}) as staging:
            (staging / "a.bin").write_bytes(b"new")
            raise RuntimeError("disk")

    with pytest.raises(RuntimeError, match="disk"):
        interrupted()
    assert opened(folder).read("a.bin") == b"weights"
    assert os.listdir(tmp_path) == ["m"]


def test_a_disk_that_takes_no_more_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    program = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from services.runtime.bundles import write_bundle\n"
        "from services.runtime.errors import BundleError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    with write_bundle(Path(sys.argv[1]), 'thing', {}) as staging:\n"
        "        (staging / 'data').write_bytes(bytes(2000))\n"
        "except BundleError as error:\n"
        "    sys.exit(str(error))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "b")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.strip() == f"{tmp_path / 'b'}: cannot be written: File too large"
    assert not list(tmp_path.iterdir())


def test_a_folder_inside_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(BundleError, match="b: cannot be written"),
        write_bundle(tmp_path / "file" / "b", "thing", {}),
    ):
        pass


def test_a_new_bundle_replaces_the_old(tmp_path: Path) -> None:
    make(tmp_path / "m")
    make(tmp_path / "m", b"new")
    assert opened(tmp_path / "m").read("a.bin") == b"new"
    assert os.listdir(tmp_path) == ["m"]


def test_only_a_bundle_of_its_kind_or_nothing_is_replaceable(tmp_path: Path) -> None:
    check_replaceable(tmp_path / "absent", "model")
    (tmp_path / "empty").mkdir()
    check_replaceable(tmp_path / "empty", "model")
    check_replaceable(make(tmp_path / "m"), "model")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    for folder, kind in (("mine", "model"), ("m", "index")):
        with pytest.raises(UserError, match="holds something other than a bundle of kind"):
            check_replaceable(tmp_path / folder, kind)


def test_a_link_inside_is_refused(tmp_path: Path) -> None:
    folder = make(tmp_path / "m")
    (folder / "a.bin").rename(tmp_path / "elsewhere")
    (folder / "a.bin").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BundleError, match="not a plain file"):
        opened(folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "a.bin").unlink(), "a.bin: missing"),
        (lambda f: (f / "extra").write_text("x"), "extra: not in the manifest"),
        (lambda f: (f / "a.bin").write_bytes(b"weighty"), "SHA-256"),
        (lambda f: (f / "a.bin").write_bytes(b"short"), "5 bytes, the manifest says 7"),
        (lambda f: (f / MANIFEST).unlink(), "is no bundle"),
        (lambda f: (f / MANIFEST).write_text("{"), "unreadable"),
        (lambda f: (f / MANIFEST).write_text("[]"), "not an object"),
        (lambda f: (f / MANIFEST).write_text("[" * 100_000), "unreadable"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: object, message: str) -> None:
    folder = make(tmp_path / "m")
    damage(folder)  # type: ignore[operator]
    with pytest.raises(BundleError, match=message):
        opened(folder)


def test_other_kinds_formats_and_sizes_are_refused(tmp_path: Path) -> None:
    folder = make(tmp_path / "m")
    with pytest.raises(BundleError, match="kind 'model', not 'index'"):
        open_bundle(folder, "index", max_bytes=LIMIT)
    with pytest.raises(BundleError, match="more than 8 bytes"):
        open_bundle(folder, "model", max_bytes=8)
    with pytest.raises(BundleError, match="no such bundle"):
        opened(tmp_path / "none")


@settings(max_examples=150)
@given(edit=st.data())
def test_an_altered_manifest_is_refused_or_equal(
    edit: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = make(tmp_path_factory.mktemp("bundle") / "m")
    document = json.loads((folder / MANIFEST).read_text())
    junk = st.one_of(st.none(), st.integers(), st.text(max_size=5), st.lists(st.integers(), max_size=2))
    path = edit.draw(st.sampled_from(["format", "kind", "fingerprint", "meta", "files", "a.bin", "sha256"]))
    value = edit.draw(junk)
    if path == "a.bin":
        document["files"]["a.bin"] = value
    elif path == "sha256":
        document["files"]["a.bin"]["sha256"] = value
    else:
        document[path] = value
    (folder / MANIFEST).write_text(json.dumps(document))
    with pytest.raises(BundleError):
        opened(folder)


def test_a_file_changed_after_verification_is_noticed(tmp_path: Path) -> None:
    bundle = opened(make(tmp_path / "m"))
    (tmp_path / "m" / "a.bin").write_bytes(b"changed")
    with pytest.raises(BundleError, match="changed since"):
        bundle.read("a.bin")
    with pytest.raises(BundleError, match="lists no file"):
        bundle.path("../../etc/passwd")


LOADERS = """
import os, signal, time
def fine(folder): assert folder.is_dir()
def wrong(folder): raise ValueError("bad magic")
def dies(folder): os.kill(os.getpid(), signal.SIGSEGV)
def hangs(folder): time.sleep(60)
def greedy(folder): bytearray(200 << 30)
"""


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        ("wrong", "failed: ValueError: bad magic"),
        ("dies", f"killed by {signal.SIGSEGV.name}"),
        ("hangs", "took more than 0.5 s"),
        ("greedy", "MemoryError"),
    ],
)
def test_a_loader_that_fails_or_dies_harms_only_its_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loader: str, message: str
) -> None:
    (tmp_path / "loaders.py").write_text(LOADERS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.getcwd()]))
    parse_in_child("loaders:fine", tmp_path, 20)
    with pytest.raises(BundleError, match=message):
        parse_in_child(f"loaders:{loader}", tmp_path, 0.5 if loader == "hangs" else 20)
