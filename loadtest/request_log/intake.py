"""From cells of a user's file to requests: what a column must hold, and what stands in for optional ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from loadtest.request_log.cells import UserColumn, coded, other_lengths, typed
from loadtest.request_log.schema import (
    DAY_MS,
    LISTED_COLUMNS,
    MAX_LOCATION,
    REQUEST_COLUMNS,
    Requests,
    faults,
)
from loadtest.request_log.sources import Chunk, Names
from services.catalogue.faults import Fault, shown_json
from services.catalogue.schema import AGE_BANDS, DEVICES, GENDERS, MAX_AD_ID
from services.core.query import normalise
from services.runtime.errors import UserError

SHOWN_FAULTS = 20
MAX_QUERY_CHARS = 500
_NUMBERS = pa.list_(pa.float64())

COLUMNS = (
    UserColumn("time_ms", pa.int64(), "a whole number of milliseconds", required=True),
    UserColumn("query", pa.string(), "text", required=True),
    UserColumn("location", pa.string(), "text"),
    UserColumn("gender", pa.string(), "text"),
    UserColumn("age", pa.string(), "text"),
    UserColumn("device", pa.string(), "text"),
    UserColumn("cost", pa.float64(), "a number"),
    UserColumn("throttle_level", pa.float64(), "a number"),
    UserColumn("ads", pa.list_(pa.int64()), "a list of whole numbers", required=True),
    UserColumn("click_probability", _NUMBERS, "a list of numbers", required=True),
    UserColumn("bid_usd", _NUMBERS, "a list of numbers", required=True),
    UserColumn("charge_usd", _NUMBERS, "a list of numbers", required=True),
    UserColumn("clicked", pa.list_(pa.int8()), "a list of 0 and 1", required=True),
    UserColumn("shown_probability", _NUMBERS, "a list of numbers"),
)
NAMES = Names(
    known=tuple(column.name for column in COLUMNS),
    required=tuple(column.name for column in COLUMNS if column.required),
)
_CHOICES = {"gender": GENDERS, "age": AGE_BANDS, "device": DEVICES}


class Intake:
    """Checks chunks of a file, numbers their phrases, ads and locations, and counts.

    A fault spoils the import; from then on rows are checked only.
    """

    def __init__(self, path: Path) -> None:
        self.ad_ids: list[int] = []
        self.days = 0
        self.phrases: list[str] = []
        self._path = path
        self._ads: dict[int, int] = {}
        self._phrases: dict[str, int] = {}
        self._locations: dict[str, int] = {"": 0}
        self._bad_rows = 0
        self._shown: list[Fault] = []
        self._start_ms: int | None = None  # of day 0
        self._last_ms = 0
        self.ignored: dict[str, None] = {}
        self.counts: Counter[str] = Counter()

    def take(self, chunk: Chunk) -> Requests | None:
        """The requests of a chunk, or None where it holds none or the import is spoilt."""
        self.ignored.update(dict.fromkeys(chunk.ignored))
        found = list(chunk.unread)
        part, rows = self._part(chunk, found)
        if len(rows):
            if self._start_ms is None:
                self._start_ms = int(part.time_ms[0]) // DAY_MS * DAY_MS
                self._last_ms = int(part.time_ms[0])
            found += faults(part, rows, self.ad_ids, len(self.phrases), self._last_ms)
            self._last_ms = int(part.time_ms[-1])
            self.days = (self._last_ms - self._start_ms) // DAY_MS + 1
        found.sort(key=lambda fault: fault.row)
        self._bad_rows += len({fault.row for fault in found})
        self._shown += found[: SHOWN_FAULTS - len(self._shown)]
        if self._bad_rows or not len(rows):
            return None
        self.counts.update(
            requests=len(rows), listed=len(part.ads), clicks=int(np.count_nonzero(part.clicked))
        )
        types = {column.name: column.dtype for column in (*REQUEST_COLUMNS, *LISTED_COLUMNS)}
        arrays = {name: getattr(part, name).astype(dtype) for name, dtype in types.items()}
        arrays["time_ms"] -= self._start_ms
        return Requests(**arrays, offsets=part.offsets)

    def _part(self, chunk: Chunk, found: list[Fault]) -> tuple[Requests, NDArray[np.int64]]:
        """The requests of a chunk as far as they can be read, times as given, and their row numbers."""
        rows, bad = np.array(chunk.rows, np.int64), np.zeros(len(chunk.rows), np.bool_)

        def amiss(name: str, problems: Iterable[tuple[int, str]]) -> None:
            for at, problem in problems:
                bad[at] = True
                found.append(Fault(int(rows[at]), name, problem))

        cells: dict[str, pa.Array] = {}
        for column in COLUMNS:
            given = chunk.columns.get(column.name, [None] * len(rows))
            cells[column.name], problems = typed(given, column)
            amiss(column.name, problems)
        codes: dict[str, NDArray[Any]] = {}
        coders = {"query": self._phrase, "location": self._location}
        coders |= {name: partial(_choice, choices) for name, choices in _CHOICES.items()}
        for name, code_of in coders.items():
            codes[name], problems = coded(cells[name], code_of)
            amiss(name, problems)
        amiss("ads", _ids_out_of_bounds(cells["ads"]))
        lengths = pc.list_value_length(cells["ads"]).fill_null(0).to_numpy()
        for name in (column.name for column in COLUMNS if column.is_list):
            amiss(name, other_lengths(cells[name], lengths))
        good = pa.array(~bad)
        cells = {name: array.filter(good) for name, array in cells.items()}
        codes = {name: values[~bad] for name, values in codes.items()}
        return self._requests(cells, codes, lengths[~bad]), rows[~bad]

    def _requests(
        self, cells: dict[str, pa.Array], codes: dict[str, NDArray[Any]], lengths: NDArray[Any]
    ) -> Requests:
        """The requests of cells without faults, with the defaults of optional ones."""

        def listed(name: str) -> NDArray[Any]:
            return np.asarray(cells[name].flatten().to_numpy(zero_copy_only=False))

        costs, throttle = cells["cost"], cells["throttle_level"]
        click_probability, charge_usd = listed("click_probability"), listed("charge_usd")
        shown = np.where(charge_usd > 0, np.clip(click_probability, 0, 1), 0.0)
        is_known = np.repeat(cells["shown_probability"].is_valid().to_numpy(zero_copy_only=False), lengths)
        shown[is_known] = listed("shown_probability")
        self.counts.update(
            modelled_costs=costs.null_count,
            unknown_throttle_levels=throttle.null_count,
            modelled_shown_probabilities=cells["shown_probability"].null_count,
        )
        return Requests(
            time_ms=cells["time_ms"].to_numpy(),
            phrase=codes["query"],
            location=codes["location"],
            gender=codes["gender"],
            age=codes["age"],
            device=codes["device"],
            cost=pc.if_else(costs.is_null(), pa.array(lengths, pa.float64()), costs).to_numpy(),
            throttle_level=throttle.fill_null(np.nan).to_numpy(),
            offsets=np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))),
            ads=self._ad_rows(listed("ads")),
            click_probability=click_probability,
            bid_usd=listed("bid_usd"),
            charge_usd=charge_usd,
            shown_probability=shown,
            clicked=listed("clicked"),
        )

    def _ad_rows(self, ids: NDArray[np.int64]) -> NDArray[np.int32]:
        distinct, places = np.unique(ids, return_inverse=True)
        for ad_id in distinct.tolist():
            if ad_id not in self._ads:
                self._ads[ad_id] = len(self.ad_ids)
                self.ad_ids.append(ad_id)
        return np.array([self._ads[ad_id] for ad_id in distinct.tolist()], np.int32)[places]

    def _phrase(self, query: str) -> int | str:
        text = normalise(query)
        if not text or len(query) > MAX_QUERY_CHARS:
            return f"{shown_json(query)} has not 1..{MAX_QUERY_CHARS} visible characters"
        if text not in self._phrases:
            self._phrases[text] = len(self.phrases)
            self.phrases.append(text)
        return self._phrases[text]

    def _location(self, location: str) -> int | str:
        code = self._locations.setdefault(location.strip().upper(), len(self._locations))
        return (
            code if code <= MAX_LOCATION else f"{shown_json(location)} is one too many, {MAX_LOCATION} may be"
        )

    def check(self) -> None:
        """Raises UserError where rows had faults or there are none."""
        if self._bad_rows:
            lines = "\n".join(f"  {fault}" for fault in self._shown)
            which = "faults" if len(self._shown) < SHOWN_FAULTS else f"the first {SHOWN_FAULTS} faults"
            rows = "1 bad row" if self._bad_rows == 1 else f"{self._bad_rows} bad rows"
            raise UserError(f"{self._path}: nothing imported, {rows}; {which}:\n{lines}")
        if not self.counts["requests"]:
            raise UserError(f"{self._path}: the file holds no requests")


def _choice(choices: tuple[str, ...], text: str) -> int | str:
    """0 for an empty text, else 1 + its place among the choices, or what is wrong with it."""
    if not text.strip():
        return 0
    try:
        return 1 + choices.index(text.strip())
    except ValueError:
        return f"{shown_json(text)} is none of {', '.join(choices)}"


def _ids_out_of_bounds(lists: pa.Array) -> Iterator[tuple[int, str]]:
    ids = lists.flatten().fill_null(1).to_numpy()
    for place in np.flatnonzero(ids < 1).tolist():
        row = pc.list_parent_indices(lists)[place].as_py()
        yield row, f"{ids[place]} is outside 1..{MAX_AD_ID}"
