"""Bundles: folders of model, index or catalogue files that are trusted only after verification.

A bundle is a flat folder with a `manifest.json`: kind, format, metadata, and the size and SHA-256 of every
file. Native loaders crash on altered files (a successful load proves nothing), so the order is fixed:

1. `open_bundle` checks the manifest, the exact set of files, sizes and hashes before anything is parsed;
2. `parse_in_child` loads it in a throw-away process, which may die in our stead;
3. the server loads it.

The fingerprint is the SHA-256 over kind, metadata and file hashes: equal content has an equal fingerprint,
whenever and wherever it was built. The manifest guards against damage and mix-ups, not against an attacker
who can write the folder; the child guards against files that were hostile before they were bundled.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.runtime.errors import BundleError, UserError

MANIFEST = "manifest.json"
FORMAT = 1
_MAX_MANIFEST_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_CHUNK_BYTES = 1 << 20
# Full, too large, or not ours to write: the user's matter, unlike any other OSError inside a write.
_UNWRITABLE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST),
}

Meta = dict[str, Any]


@dataclass(frozen=True)
class Bundle:
    """A verified bundle."""

    folder: Path
    kind: str
    meta: Meta
    fingerprint: str
    _hashes: dict[str, str]

    def path(self, name: str) -> Path:
        """The path of one of its files; raises BundleError when it has no such file."""
        if name not in self._hashes:
            raise BundleError(f"{self.folder}: the {self.kind} bundle lists no file {name}")
        return self.folder / name

    def read(self, name: str) -> bytes:
        """The bytes of one of its files, hashed again as read."""
        data = self.path(name).read_bytes()
        if hashlib.sha256(data).hexdigest() != self._hashes[name]:
            raise BundleError(f"{self.folder / name}: changed since it was verified")
        return data


def check_replaceable(folder: Path, kind: str) -> None:
    """Raises UserError unless `folder` is absent, empty or a bundle of `kind`: writing replaces all of it.

    For the start of a long build, whose user may have named the wrong folder.
    """
    if not folder.exists():
        return
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        replaceable = isinstance(manifest, dict) and manifest.get("kind") == kind
    except (OSError, ValueError):
        replaceable = folder.is_dir() and not any(folder.iterdir())
    if not replaceable:
        raise UserError(f"{folder}: holds something other than a bundle of kind {kind!r} to replace")


@contextlib.contextmanager
def write_bundle(folder: Path, kind: str, meta: Meta) -> Iterator[Path]:
    """Yields a staging folder to write files into; on leaving, the bundle replaces `folder`.

    `meta` (JSON values) may be filled until then. On an exception nothing of the staging folder stays and
    `folder` is as it was. A reader between the two renames may find no folder; it never finds half of one.
    Raises BundleError when the disk is full or does not let it write.
    """
    folder = folder.absolute()
    staging = folder.with_name(f".{folder.name}.staging-{secrets.token_hex(4)}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging.mkdir()
        yield staging
        _write_manifest(staging, kind, meta)
        _replace(staging, folder)
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        raise BundleError(f"{folder}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def open_bundle(folder: Path, kind: str, *, max_bytes: int) -> Bundle:
    """Verifies `folder` and returns its bundle without parsing any payload.

    Raises BundleError naming the file and what is wrong: missing, of another kind or format, a file too
    many or too few, a link, more than `max_bytes` in all, a size or hash that differs, or unreadable.
    """
    try:
        return _verified(folder, kind, max_bytes)
    except OSError as error:
        raise BundleError(f"{error.filename or folder}: cannot be read: {error.strerror or error}") from error


def _verified(folder: Path, kind: str, max_bytes: int) -> Bundle:
    manifest = _read_manifest(folder)
    if manifest.get("format") != FORMAT:
        raise BundleError(f"{folder / MANIFEST}: format {manifest.get('format')!r} is not {FORMAT}")
    if manifest.get("kind") != kind:
        raise BundleError(f"{folder}: a bundle of kind {manifest.get('kind')!r}, not {kind!r}")
    files, meta = manifest.get("files"), manifest.get("meta")
    if not isinstance(files, dict) or not isinstance(meta, dict):
        raise BundleError(f"{folder / MANIFEST}: files and meta must be objects")
    present = {entry.name for entry in os.scandir(folder)} - {MANIFEST}
    for name in sorted(present ^ files.keys()):
        raise BundleError(f"{folder / name}: {'not in the manifest' if name in present else 'missing'}")
    hashes: dict[str, str] = {}
    total = 0
    for name, entry in sorted(files.items()):
        size, digest = _entry(folder / name, name, entry)
        total += size
        if total > max_bytes:
            raise BundleError(f"{folder}: more than {max_bytes} bytes in all")
        if _sha256(folder / name) != digest:
            raise BundleError(f"{folder / name}: its SHA-256 differs from the manifest's")
        hashes[name] = digest
    fingerprint = _fingerprint(kind, meta, hashes)
    if manifest.get("fingerprint") != fingerprint:
        raise BundleError(f"{folder / MANIFEST}: the fingerprint does not match its content")
    return Bundle(folder, kind, meta, fingerprint, hashes)


def parse_in_child(target: str, folder: Path, timeout_s: float) -> None:
    """Runs `target` ("package.module:function", called with `folder`) in a throw-away process.

    Raises BundleError when it raises, dies by a signal or outlives `timeout_s`. Blocks: call it in a thread.
    """
    argv = [sys.executable, "-m", "services.runtime.canary", target, str(folder), str(int(timeout_s) + 1)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise BundleError(f"{folder}: its trial load took more than {timeout_s:g} s") from error
    if done.returncode == 0:
        return
    if done.returncode < 0:
        why = f"was killed by {signal.Signals(-done.returncode).name}"
    else:
        lines = done.stderr.strip().splitlines()
        why = f"failed: {lines[-1][:300]}" if lines else f"failed with exit code {done.returncode}"
    raise BundleError(f"{folder}: its trial load {why}")


def _write_manifest(staging: Path, kind: str, meta: Meta) -> None:
    files: dict[str, dict[str, Any]] = {}
    for path in sorted(staging.iterdir()):
        if not path.is_file() or path.is_symlink() or not _NAME.fullmatch(path.name):
            raise BundleError(f"{path.name}: a bundle holds plain files with plain names only")
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
        files[path.name] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
    hashes = {name: entry["sha256"] for name, entry in files.items()}
    document = {
        "format": FORMAT,
        "kind": kind,
        "fingerprint": _fingerprint(kind, meta, hashes),
        "meta": meta,
        "files": files,
    }
    with (staging / MANIFEST).open("w", encoding="utf-8") as stream:
        json.dump(document, stream, indent=1, sort_keys=True, allow_nan=False)
        stream.flush()
        os.fsync(stream.fileno())


def _replace(staging: Path, folder: Path) -> None:
    old = folder.with_name(f".{folder.name}.old-{secrets.token_hex(4)}")
    if folder.exists():
        folder.rename(old)
    try:
        staging.rename(folder)
    except OSError:
        if old.exists():
            old.rename(folder)
        raise
    parent = os.open(folder.parent, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
    shutil.rmtree(old, ignore_errors=True)


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not folder.is_dir():
        raise BundleError(f"{folder}: no such bundle")
    try:
        if path.is_symlink() or path.stat().st_size > _MAX_MANIFEST_BYTES:
            raise BundleError(f"{path}: a link, or more than {_MAX_MANIFEST_BYTES} bytes")
        document = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise BundleError(f"{path}: missing; {folder} is no bundle") from error
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{path}: unreadable: {error}") from error
    if not isinstance(document, dict):
        raise BundleError(f"{path}: not an object")
    return document


def _entry(path: Path, name: str, entry: object) -> tuple[int, str]:
    if not _NAME.fullmatch(name):
        raise BundleError(f"{path.parent / MANIFEST}: {name[:100]!r} is no plain file name")
    if not isinstance(entry, dict):
        raise BundleError(f"{path.parent / MANIFEST}: the entry of {name} must be an object")
    size, digest = entry.get("bytes"), entry.get("sha256")
    if not isinstance(size, int) or not isinstance(digest, str):
        raise BundleError(f"{path.parent / MANIFEST}: the entry of {name} lacks bytes or sha256")
    if path.is_symlink() or not path.is_file():
        raise BundleError(f"{path}: not a plain file")
    actual = path.stat().st_size
    if actual != size:
        raise BundleError(f"{path}: {actual} bytes, the manifest says {size}")
    return size, digest


def _fingerprint(kind: str, meta: Meta, hashes: dict[str, str]) -> str:
    canonical = json.dumps([FORMAT, kind, meta, hashes], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
