"""A request log on disk: a bundle of kind "request-log" with three Parquet files.

requests.parquet has a row a request, whose listed ads stand in list columns; phrases.parquet and ads.parquet
are the tables that `phrase` and `ads` point into, by row. Requests are written a row group at a time and read
likewise, so that neither side holds more than the arrays themselves and one group.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from loadtest.request_log.schema import (
    DAY_MS,
    LISTED_COLUMNS,
    REQUEST_COLUMNS,
    Ids,
    RequestLog,
    Requests,
    faults,
)
from services.catalogue.faults import Fault
from services.runtime.bundles import Bundle, Meta, check_replaceable, open_bundle, write_bundle
from services.runtime.errors import BundleError, UserError, shown

KIND = "request-log"
MAX_BYTES = 64 << 30
REQUESTS, PHRASES, ADS = "requests.parquet", "phrases.parquet", "ads.parquet"

_REQUESTS_SCHEMA = pa.schema(
    [pa.field(column.name, pa.from_numpy_dtype(column.dtype), nullable=False) for column in REQUEST_COLUMNS]
    + [
        pa.field(
            column.name,
            pa.list_(pa.field("element", pa.from_numpy_dtype(column.dtype), nullable=False)),
            nullable=False,
        )
        for column in LISTED_COLUMNS
    ]
)
_PHRASES_SCHEMA = pa.schema(
    [
        pa.field("phrase", pa.string(), nullable=False),
        pa.field("prior_requests", pa.int32(), nullable=False),
        pa.field("prior_clicks", pa.int32(), nullable=False),
        pa.field("prior_revenue_usd", pa.float64(), nullable=False),
    ]
)
_ADS_SCHEMA = pa.schema([pa.field("ad_id", pa.int64(), nullable=False)])

Numbers = Sequence[int] | Sequence[float] | NDArray[Any]


class LogWriter:
    """Writes a log to `folder`, a row group an append; a context manager.

    The tables and `meta` (JSON values) are written when the block ends: lists given here may grow until then.
    When it ends by an exception nothing of the new log stays, and `folder` is as it was.

    Raises UserError where `folder` holds something else, a value is out of its limits, a row of a table
    comes twice, or the disk is full.
    """

    def __init__(
        self,
        folder: Path,
        *,
        ad_ids: Sequence[int] | Ids,
        phrases: Sequence[str],
        prior_requests: Numbers,
        prior_clicks: Numbers,
        prior_revenue_usd: Numbers,
        meta: Meta,
    ) -> None:
        self._folder = folder
        self._ad_ids, self._phrases = ad_ids, phrases
        self._prior = (prior_requests, prior_clicks, prior_revenue_usd)
        self._meta = meta
        self._requests = self._listed = self._last_ms = 0

    def __enter__(self) -> LogWriter:
        check_replaceable(self._folder, KIND)
        with contextlib.ExitStack() as stack:
            self._staging = stack.enter_context(write_bundle(self._folder, KIND, self._meta))
            self._writer = pq.ParquetWriter(
                self._staging / REQUESTS, _REQUESTS_SCHEMA, compression="zstd", compression_level=1
            )
            stack.push(self._close)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def append(self, part: Requests) -> None:
        """Writes requests that follow those written before; raises UserError at the first value amiss."""
        count = len(part.time_ms)
        if not count:
            return
        rows = np.arange(self._requests + 1, self._requests + 1 + count)
        for fault in faults(part, rows, self._ad_ids, len(self._phrases), self._last_ms):
            raise UserError(f"{self._folder}: {fault}")
        offsets = pa.array(part.offsets, pa.int32())
        arrays = [
            pa.array(getattr(part, column.name), _REQUESTS_SCHEMA.field(column.name).type)
            for column in REQUEST_COLUMNS
        ]
        for column in LISTED_COLUMNS:
            kind = _REQUESTS_SCHEMA.field(column.name).type
            values = pa.array(getattr(part, column.name), kind.value_type)
            arrays.append(pa.ListArray.from_arrays(offsets, values, type=kind))
        table = pa.Table.from_arrays(arrays, schema=_REQUESTS_SCHEMA)
        self._writer.write_table(table, row_group_size=count)
        self._requests += count
        self._listed += int(part.offsets[-1])
        self._last_ms = int(part.time_ms[-1])

    def _close(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            with contextlib.suppress(OSError):  # of a full disk, say; `error` tells what happened first
                self._writer.close()
            return
        self._writer.close()
        if not self._requests:
            raise UserError(f"{self._folder}: the log holds no requests")
        requests, clicks, revenue_usd = self._prior
        tables = (
            (PHRASES, _PHRASES_SCHEMA, (self._phrases, requests, clicks, revenue_usd)),
            (ADS, _ADS_SCHEMA, (self._ad_ids,)),
        )
        for name, schema, columns in tables:
            arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
            table = pa.Table.from_arrays(arrays, schema=schema)
            _check_table(self._folder / name, table)
            pq.write_table(table, self._staging / name, compression="zstd")
        self._meta.update(
            requests=self._requests, listed=self._listed, phrases=len(self._phrases), ads=len(self._ad_ids)
        )


def open_log(folder: Path) -> Bundle:
    """The verified bundle of a log: its meta and fingerprint; raises BundleError."""
    return open_bundle(folder, KIND, max_bytes=MAX_BYTES)


def read_log(folder: Path, *, days: tuple[int, int] | None = None) -> RequestLog:
    """The log of a bundle, or its days `days[0]` up to, but not including, `days[1]`.

    Times stay those since the start of day 0; the tables are those of the whole log. Raises UserError where
    files are missing or altered, columns are missing, a value is out of its limits (with column, row, value
    and limit), times go backwards, or no request is left.
    """
    bundle = open_log(folder)
    phrases = _read_table(bundle, PHRASES, _PHRASES_SCHEMA)
    ads = _read_table(bundle, ADS, _ADS_SCHEMA)
    ad_ids = ads["ad_id"].to_numpy()
    requests = _read_requests(bundle, ad_ids, len(phrases), days)
    return RequestLog(
        **requests,
        ad_ids=ad_ids,
        phrases=phrases["phrase"].to_pylist(),
        prior_requests=phrases["prior_requests"].to_numpy(),
        prior_clicks=phrases["prior_clicks"].to_numpy(),
        prior_revenue_usd=phrases["prior_revenue_usd"].to_numpy(),
    )


def _read_requests(
    bundle: Bundle, ad_ids: Ids, phrases: int, days: tuple[int, int] | None
) -> dict[str, NDArray[Any]]:
    first_ms, end_ms = (day * DAY_MS for day in days) if days else (0, np.iinfo(np.int64).max)
    path = bundle.path(REQUESTS)
    parts: dict[str, list[NDArray[Any]]] = {field.name: [] for field in fields(Requests)}
    last_ms, row, listed = 0, 1, 0
    with _opened(path, _REQUESTS_SCHEMA) as file:
        for group in range(file.num_row_groups):
            if not file.metadata.row_group(group).num_rows:
                continue
            part = _part(file.read_row_group(group))
            rows = np.arange(row, row + len(part.time_ms))
            for fault in faults(part, rows, ad_ids, phrases, last_ms):
                raise UserError(f"{path}: {fault}")
            row += len(rows)
            last_ms = int(part.time_ms[-1])
            start, stop = np.searchsorted(part.time_ms, (first_ms, end_ms)).tolist()
            if start == stop:
                continue
            at = slice(int(part.offsets[start]), int(part.offsets[stop]))
            for column in REQUEST_COLUMNS:
                parts[column.name].append(getattr(part, column.name)[start:stop])
            for column in LISTED_COLUMNS:
                parts[column.name].append(getattr(part, column.name)[at])
            parts["offsets"].append(part.offsets[start:stop] - at.start + listed)
            listed += at.stop - at.start
    if not parts["time_ms"]:
        raise UserError(f"{path}: no requests" + (f" in days {days[0]} up to {days[1]}" if days else ""))
    parts["offsets"].append(np.array([listed], np.int64))
    return {name: np.concatenate(parts.pop(name)) for name in list(parts)}


def _part(table: pa.Table) -> Requests:
    arrays: dict[str, NDArray[Any]] = {}
    for column in REQUEST_COLUMNS:
        arrays[column.name] = table[column.name].to_numpy()
    for column in LISTED_COLUMNS:
        lists = table[column.name].combine_chunks()
        offsets = lists.offsets.to_numpy().astype(np.int64)
        if not np.array_equal(arrays.setdefault("offsets", offsets - offsets[0]), offsets - offsets[0]):
            raise ValueError(f"the lists of {column.name} are not as long as those of ads")
        arrays[column.name] = lists.flatten().to_numpy(zero_copy_only=False)
    return Requests(**arrays)


def _read_table(bundle: Bundle, name: str, schema: pa.Schema) -> pa.Table:
    path = bundle.path(name)
    with _opened(path, schema) as file:
        table = file.read()
    _check_table(path, table)
    return table


@contextlib.contextmanager
def _opened(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(path) as file:
            missing = [name for name in schema.names if name not in file.schema_arrow.names]
            if missing:
                raise BundleError(f"{path}: no column {', '.join(missing)}")
            if file.schema_arrow != schema:
                raise BundleError(f"{path}: its columns are not those of a request log")
            yield file
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BundleError(f"{path}: unreadable: {error}") from error


def _check_table(path: Path, table: pa.Table) -> None:
    """Raises UserError where a key comes twice, or a number is below 0 or not finite."""
    key, *numbers = table.schema.names
    encoded = table[key].combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy()
    if len(encoded.dictionary) != len(table):
        first = np.unique(codes, return_index=True)[1]
        row = int(np.setdiff1d(np.arange(len(codes)), first)[0])
        raise UserError(f"{path}: {Fault(row + 1, key, f'{shown(table[key][row].as_py())} comes twice')}")
    for name in numbers:
        values = table[name].to_numpy()
        for row in np.flatnonzero(~((values >= 0) & (values < np.inf))).tolist():
            problem = f"{values[row]:g} is below 0 or not finite"
            raise UserError(f"{path}: {Fault(row + 1, name, problem)}")
