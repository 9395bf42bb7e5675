"""Readers of users' log files: JSONL, CSV and Parquet become chunks of columns, in bounded memory.

Cells keep the types that the file gave them. Row numbers start at 1 and count data rows; of JSONL they are
line numbers.
"""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from services.catalogue.faults import Fault
from services.catalogue.sources import Lines, checked_name, distinct_columns, open_source
from services.runtime.errors import UserError, shown

CHUNK_ROWS = 8192

Cells = Sequence[Any]
"""A list of what JSON gave, or an Arrow array."""


@dataclass
class Chunk:
    """Some rows: their numbers, their cells by column, and what was wrong with rows that are not among them.

    `ignored` are names of columns that mean nothing to us; `share` is how much of the file is read, 0..1.
    """

    rows: list[int]
    columns: dict[str, Cells]
    unread: list[Fault]
    ignored: list[str]
    share: float = 1.0


@dataclass(frozen=True)
class Names:
    """The columns that a file may have, and those it must have."""

    known: tuple[str, ...]
    required: tuple[str, ...]


def chunks(path: Path, names: Names) -> Iterator[Chunk]:
    """The chunks of a file; raises UserError where it cannot be read or lacks a required column."""
    name = checked_name(path)
    if name.endswith(".parquet"):
        return _parquet(path, names)
    return _csv(path, names) if ".csv" in name[-7:] else _jsonl(path, names)


def _jsonl(path: Path, names: Names) -> Iterator[Chunk]:
    source = open_source(path)
    try:
        chunk = Chunk([], {name: [] for name in names.known}, [], [])
        for number, row in source.rows():
            if isinstance(row, str):
                chunk.unread.append(Fault(number, "", row))
                continue
            chunk.rows.append(number)
            for name in names.known:
                cast(list[object], chunk.columns[name]).append(row.get(name))
            chunk.ignored += [name for name in row if name not in chunk.columns and name not in chunk.ignored]
            if len(chunk.rows) == CHUNK_ROWS:
                done, total = source.progress()
                chunk.share = done / total
                yield chunk
                chunk = Chunk([], {name: [] for name in names.known}, [], [])
        yield chunk
    finally:
        source.close()


def _csv(path: Path, names: Names) -> Iterator[Chunk]:
    number = 0
    with contextlib.closing(Lines(path)) as text:
        try:
            reader = csv.reader(text.decoded(), strict=True)
            header = [name.strip() for name in next(reader, [])]
            known, ignored = _sorted_out(path, header, names)
            lines: list[list[str]] = []
            rows: list[int] = []
            unread: list[Fault] = []
            for line in reader:
                if not line:
                    continue
                number += 1
                if len(line) == len(header):
                    lines.append(line)
                    rows.append(number)
                else:
                    problem = f"{len(line)} cells where the header has {len(header)}"
                    unread.append(Fault(number, "", problem))
                if len(rows) == CHUNK_ROWS:
                    columns = _columns(header, lines, known)
                    done, total = text.progress()
                    yield Chunk(rows, columns, unread, ignored, done / total)
                    lines, rows, unread = [], [], []
            yield Chunk(rows, _columns(header, lines, known), unread, ignored)
        except csv.Error as error:
            raise UserError(f"{path}: not CSV after row {number}: {error}") from error


def _columns(header: list[str], lines: list[list[str]], known: list[str]) -> dict[str, Cells]:
    return {name: pa.array([line[header.index(name)] for line in lines], pa.string()) for name in known}


def _parquet(path: Path, names: Names) -> Iterator[Chunk]:
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            known, ignored = _sorted_out(path, file.schema_arrow.names, names)
            total = file.metadata.num_rows
            for batch in file.iter_batches(batch_size=CHUNK_ROWS, columns=known):
                rows = list(range(number + 1, number + 1 + batch.num_rows))
                number += batch.num_rows
                columns: dict[str, Cells] = dict(zip(batch.schema.names, batch.columns, strict=True))
                yield Chunk(rows, columns, [], ignored, number / total)
    except (pa.ArrowException, OSError) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path}: unreadable as Parquet after row {number}: {first_line}") from error


def _sorted_out(path: Path, header: list[str], names: Names) -> tuple[list[str], list[str]]:
    """The known and the other columns of a header; raises UserError where it lacks one or has one twice."""
    seen = distinct_columns(path, header)
    missing = [name for name in names.required if name not in seen]
    if missing:
        raise UserError(f"{path}: no column {', '.join(missing)}; the file has {shown(header)}")
    return [name for name in header if name in names.known], [
        name for name in header if name not in names.known
    ]
