"""Makes what the demo runs on, once: model, catalogue, query list, index.

Each step is a `frugalads` command in a process of its own, so that its memory goes back when it ends and an
interrupt ends it at once, even inside a native library. A step is skipped while the key of its inputs, kept
in `demo.json`, is the one it was made from; a changed catalogue file makes everything below it again.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from services.runtime.bundles import MANIFEST
from services.runtime.errors import UserError
from services.stack.supervisor import leashed

RECORD = "demo.json"
SAMPLE_ADS = 6000
DEFAULT_PUBLIC_DATA = "../shared/data"
KEY_STREAM = Path("traces/scarab-recs.trace.xz")
WEB_QUERIES = Path("queries/trec_tb05_stream_50k.txt")
RATINGS = Path("Broad_Query_Set_rated.csv")
SEED = 1
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Prepared:
    """What a demo runs on."""

    data: Path
    queries: Path


def prepare(data: Path, catalogue: Path | None, requests: int, say: Callable[[str], None]) -> Prepared:
    """Makes what is missing below `data` for `catalogue`, or for the sample when it is None.

    Raises UserError when a step fails, or when a catalogue that the demo did not make would be replaced.
    """
    data.mkdir(parents=True, exist_ok=True)
    steps = _Steps(data, say)
    model, bundle, index = data / "models" / "scorer", data / "catalogue", data / "index"
    queries = data / "queries.txt"
    if not (model / MANIFEST).is_file():
        say("building the scorer model")
        _frugalads("model", "build", "--out", model)
    if (bundle / MANIFEST).is_file() and not steps.made("catalogue", bundle):
        raise UserError(
            f"{bundle} is a catalogue of your own; run make demo with DATA=DIR for another work folder"
        )
    source = f"sample of {SAMPLE_ADS}, seed {SEED}" if catalogue is None else _sha256(catalogue)
    if steps.due("catalogue", source, bundle):
        file = catalogue
        if file is None:
            file = data / "sample.jsonl"
            _frugalads("catalogue", "sample", "--ads", SAMPLE_ADS, "--seed", SEED, "--out", file)
        _frugalads("catalogue", "import", file, "--out", bundle)
        steps.done("catalogue", source, bundle)
    content = _fingerprint(bundle)
    arguments = query_arguments(catalogue, requests)
    key = " ".join([content, *map(str, arguments)])
    if steps.due("queries", key, queries):
        _frugalads("log", "queries", "--catalogue", bundle, *arguments, "--out", queries)
        steps.done("queries", key, queries)
    key = f"{content} {_fingerprint(model)} {_fingerprint(queries)}"
    if steps.due("index", key, index):
        inputs = ("--catalogue", bundle, "--model", model, "--queries", queries)
        _frugalads("index", "build", *inputs, "--out", index)
        steps.done("index", key, index)
    return Prepared(data, queries)


class _Steps:
    """The record of what was made from what."""

    def __init__(self, data: Path, say: Callable[[str], None]) -> None:
        self._file = data / RECORD
        self._say = say
        try:
            record = json.loads(self._file.read_bytes())
        except (OSError, ValueError):
            record = {}
        self._record: dict[str, dict[str, str]] = record if isinstance(record, dict) else {}

    def made(self, step: str, output: Path) -> bool:
        """Whether `output` is as this step left it."""
        return bool(self._record.get(step)) and self._record[step].get("output") == _fingerprint(output)

    def due(self, step: str, key: str, output: Path) -> bool:
        """Whether the step has to run; says so when it has."""
        if self.made(step, output) and self._record[step].get("key") == key:
            return False
        self._say(f"making {output}")
        return True

    def done(self, step: str, key: str, output: Path) -> None:
        """Records that `output` was made from inputs with this key."""
        self._record[step] = {"key": key, "output": _fingerprint(output)}
        temporary = self._file.with_suffix(".tmp")
        temporary.write_text(json.dumps(self._record, indent=2) + "\n", encoding="utf-8")
        temporary.replace(self._file)


def query_arguments(catalogue: Path | None, requests: int) -> list[str | int | Path]:
    """How to draw the query stream.

    For the sample until there are 2,000 distinct queries; for a catalogue of one's own over the real keys
    and web queries of the public data where they are, with the rated queries that lie beside the catalogue.
    """
    arguments: list[str | int | Path] = ["--seed", SEED]
    if catalogue is None:
        return arguments
    data = Path(os.environ.get("FRUGALADS_DATA", DEFAULT_PUBLIC_DATA))
    for option, file in (
        ("--key-stream", data / KEY_STREAM),
        ("--web-queries", data / WEB_QUERIES),
        ("--ratings", catalogue.parent / RATINGS),
    ):
        if file.is_file():
            arguments += [option, file]
    return [*arguments, "--requests", requests]


def _frugalads(*arguments: str | int | Path) -> None:
    """Runs a command; it ends with this process, also when this one is killed.

    In a session of its own, so that a Ctrl-C of the terminal reaches only this process, which ends it.
    """
    words = [str(argument) for argument in arguments]
    argv = leashed([sys.executable, "-m", "services.cli", *words])
    held: list[int] = []  # signals that come before `process` is known, which would be left behind
    handlers = {
        signum: signal.signal(signum, lambda signum, _frame: held.append(signum))
        for signum in (signal.SIGINT, signal.SIGTERM)
    }
    process = subprocess.Popen(argv, start_new_session=True)
    try:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
        for caught in held:
            signal.raise_signal(caught)
        status = process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise
    if status != 0:
        raise UserError(f"`frugalads {' '.join(words)}` ended with status {status}")


def _fingerprint(output: Path) -> str:
    """A bundle's fingerprint, a file's hash; empty when it is missing."""
    try:
        if output.is_dir():
            return hashlib.sha256((output / MANIFEST).read_bytes()).hexdigest()
        return _sha256(output) if output.exists() else ""
    except OSError:
        return ""


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    try:
        with file.open("rb") as content:
            while chunk := content.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from error
    return digest.hexdigest()
