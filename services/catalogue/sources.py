"""Readers of users' files: JSONL, CSV and Parquet become numbered rows, in bounded memory.

Each reader yields (row number, row), or (row number, problem) where a single row is unreadable and the next
ones are not. What spoils the whole file (wrong encoding, a cut archive) raises UserError. Row numbers start
at 1 and count data rows; of JSONL they are line numbers, so that an editor jumps to them.
"""

from __future__ import annotations

import csv
import gzip
import json
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import pyarrow as pa
import pyarrow.parquet as pq

from services.catalogue.columns import ALIASES, KNOWN, REQUIRED, Row
from services.catalogue.faults import shown_json
from services.runtime.errors import UserError, shown

MAX_LINE_BYTES = 1 << 20
BATCH_ROWS = 4096
FORMATS = (".jsonl", ".jsonl.gz", ".csv", ".csv.gz", ".parquet")

NumberedRow = tuple[int, Row | str]


class Source(Protocol):
    """A file being read."""

    def rows(self) -> Iterator[NumberedRow]:
        """The rows in order, once."""

    def progress(self) -> tuple[int, int]:
        """What is done and what there is, in bytes of the file or in rows."""

    def close(self) -> None:
        """Closes the file."""


def checked_name(path: Path) -> str:
    """The name, in lower case, of a file that can be read by its ending, one of FORMATS; raises UserError."""
    name = path.name.lower()
    if not name.endswith(FORMATS):
        raise UserError(f"{path}: the name must end in one of {', '.join(FORMATS)}")
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path}: not a file")
    if status.st_size == 0:
        raise UserError(f"{path}: the file is empty")
    return name


def open_source(path: Path) -> Source:
    """Opens a catalogue file by its ending, one of FORMATS; raises UserError."""
    name = checked_name(path)
    if name.endswith(".parquet"):
        return _Parquet(path)
    return _Csv(path) if ".csv" in name[-7:] else _Jsonl(path)


class Lines:
    """Lines of a text file, gzipped or not, as bytes; each at most 1 MiB long."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size_bytes = path.stat().st_size
        try:
            self._raw = path.open("rb")
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from error
        self._file: BinaryIO = self._raw
        if path.name.lower().endswith(".gz"):
            self._file = cast(BinaryIO, gzip.GzipFile(fileobj=self._raw))

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        number = 0
        while True:
            number += 1
            try:
                line = self._file.readline(MAX_LINE_BYTES + 1)
            except EOFError as error:
                raise UserError(f"{self._path}: cut short, the gzip stream ends in line {number}") from error
            except (OSError, zlib.error) as error:
                raise UserError(f"{self._path}: unreadable at line {number}: {error}") from error
            if not line:
                return
            if len(line) > MAX_LINE_BYTES:
                raise UserError(f"{self._path}: line {number} is longer than {MAX_LINE_BYTES} bytes")
            if number == 1:
                if line.startswith((b"\xff\xfe", b"\xfe\xff")):
                    raise UserError(f"{self._path}: the file is UTF-16; save it as UTF-8")
                if b"\x00" in line:
                    raise UserError(f"{self._path}: NUL bytes in line 1; UTF-16? save it as UTF-8")
                line = line.removeprefix(b"\xef\xbb\xbf")
            yield number, line

    def decoded(self) -> Iterator[str]:
        """The lines as text; raises UserError where one is not UTF-8."""
        for number, line in self:
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise UserError(f"{self._path}: line {number}: {_encoding_problem(error)}") from error

    def progress(self) -> tuple[int, int]:
        """Bytes of the file that are read, and that there are."""
        return self._raw.tell(), self._size_bytes

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
        self._raw.close()


def _encoding_problem(error: UnicodeDecodeError) -> str:
    byte = error.object[error.start]
    return f"byte 0x{byte:02X} at position {error.start + 1} is not UTF-8; save the file as UTF-8"


class _Jsonl:
    """One JSON object a line; blank lines are skipped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = Lines(path)
        self.progress = self._lines.progress
        self.close = self._lines.close

    def rows(self) -> Iterator[NumberedRow]:
        first = True
        for number, line in self._lines:
            if line.isspace():
                continue
            if first and line.lstrip().startswith(b"["):
                raise UserError(f"{self._path}: a JSON array; one object a line is due (jq -c '.[]')")
            first = False
            yield number, self._parse(line)

    @staticmethod
    def _parse(line: bytes) -> Row | str:
        try:
            value = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            return _encoding_problem(error)
        except json.JSONDecodeError as error:
            return f"not JSON: {error.msg} at column {error.colno}"
        except ValueError:  # a number of thousands of digits
            return "not JSON that can be read: a number is too long"
        except RecursionError:
            return "not JSON that can be read: nested too deep"
        return (
            value
            if isinstance(value, dict)
            else f"{shown_json(value)} is not a JSON object, one is due on each line"
        )


class _Csv:
    """Comma-separated values with a header; quoted cells may span lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = Lines(path)
        self.progress = self._lines.progress
        self.close = self._lines.close

    def rows(self) -> Iterator[NumberedRow]:
        reader = csv.reader(self._lines.decoded(), strict=True)
        number = 0
        try:
            header = [name.strip() for name in next(reader, [])]
            _check_columns(self._path, header)
            for cells in reader:
                if not cells:
                    continue
                number += 1
                if len(cells) != len(header):
                    yield number, f"{len(cells)} cells where the header has {len(header)}"
                else:
                    yield number, dict(zip(header, cells, strict=True))
        except csv.Error as error:
            raise UserError(f"{self._path}: not CSV after row {number}: {error}") from error


class _Parquet:
    """A Parquet file, read a batch at a time; only the columns that mean something to us are decoded."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._done = 0
        try:
            self._file = pq.ParquetFile(path)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path}: not a readable Parquet file: {_first_line(error)}") from error
        self._rows: int = self._file.metadata.num_rows
        _check_columns(path, self._file.schema_arrow.names)

    def rows(self) -> Iterator[NumberedRow]:
        names = list(self._file.schema_arrow.names)
        wanted = [name for name in names if name in KNOWN]
        # Unknown columns stay in each row, empty, so that the import can report them.
        unknown = dict.fromkeys(name for name in names if name not in KNOWN)
        batches = self._file.iter_batches(batch_size=BATCH_ROWS, columns=wanted)
        while True:
            try:
                batch = next(batches, None)
                rows = [] if batch is None else batch.to_pylist()
            except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
                where = f"after row {self._done}"
                raise UserError(f"{self._path}: unreadable {where}: {_first_line(error)}") from error
            if not rows:
                return
            for row in rows:
                self._done += 1
                yield self._done, unknown | row

    def progress(self) -> tuple[int, int]:
        return self._done, self._rows

    def close(self) -> None:
        self._file.close()


def _check_columns(path: Path, columns: list[str]) -> None:
    """Raises UserError where required columns are absent or a column comes twice."""
    seen = distinct_columns(path, columns)
    missing = [ALIASES[name] for name in REQUIRED if seen.isdisjoint(ALIASES[name])]
    if missing:
        wanted = ", ".join(f"no column {' or '.join(names)}" for names in missing)
        raise UserError(f"{path}: {wanted}; the file has {shown(columns)}{_hint(missing, columns)}")


def distinct_columns(path: Path, columns: list[str]) -> set[str]:
    """The named columns of a header; raises UserError where one comes twice."""
    seen: set[str] = set()
    for name in filter(None, columns):
        if name in seen:
            raise UserError(f"{path}: column {shown(name)} comes twice in the header")
        seen.add(name)
    return seen


def _hint(missing: list[tuple[str, ...]], columns: list[str]) -> str:
    """What probably became of missing columns: another delimiter, or names in another case."""
    for delimiter, name in ((";", "semicolons"), ("\t", "tabs")):
        if any(delimiter in column for column in columns):
            return f"; the values are separated by {name}, commas are due"
    lowered = {column.lower(): column for column in columns}
    renamed = [f"{shown(lowered[name])} to {name}" for names in missing for name in names if name in lowered]
    return f"; column names are lower-case: rename {', '.join(renamed)}" if renamed else ""


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
