"""Ad attributes as dictionary-encoded columns, and the conditions that a filter sets on them.

A string column holds one int32 code per row (-1: the ad has no such attribute) and the vocabulary that the
codes index; a numeric column holds one float64 per row (NaN: none). Evaluating a condition is one gather or
comparison over the column, O(rows). An absent attribute satisfies `none_of` and nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from services.runtime.errors import BundleError

ATTRIBUTES_FILE = "attributes.json"
STRINGS_FILE = "strings.npy"
NUMBERS_FILE = "numbers.npy"
ABSENT = -1

BoolArray = npt.NDArray[np.bool_]
_FIELD_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class Membership:
    """The attribute is one of `values`, or none of them when `negated`."""

    field: str
    values: tuple[str, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Range:
    """The numeric attribute lies in low..high, ends included; an infinite end is open."""

    field: str
    low: float
    high: float


Condition = Membership | Range


@dataclass(frozen=True, slots=True)
class StringColumn:
    """Codes int32 [rows] into a vocabulary of which this column knows the first `known` entries.

    The vocabulary of a delta grows while older snapshots are read; codes from `known` on are not theirs.
    """

    codes: npt.NDArray[np.int32]
    vocabulary: Mapping[str, int]
    known: int


@dataclass(frozen=True, slots=True)
class Columns:
    """All attributes of `rows` ads."""

    rows: int
    strings: Mapping[str, StringColumn]
    numbers: Mapping[str, npt.NDArray[np.float64]]

    def admitted(self, conditions: Sequence[Condition]) -> BoolArray:
        """Which rows meet every condition: bool [rows]. The fields must exist with the right type."""
        mask = np.ones(self.rows, dtype=np.bool_)
        for condition in conditions:
            if isinstance(condition, Membership):
                mask &= _member(self.strings[condition.field], condition)
            else:
                values = self.numbers[condition.field]
                mask &= (values >= condition.low) & (values <= condition.high)
        return mask

    def take(self, order: npt.NDArray[np.int64]) -> Columns:
        """The same attributes with the rows in another order."""
        strings = {
            name: StringColumn(column.codes[order], column.vocabulary, column.known)
            for name, column in self.strings.items()
        }
        return Columns(len(order), strings, {name: values[order] for name, values in self.numbers.items()})


def _member(column: StringColumn, condition: Membership) -> BoolArray:
    # One slot per known code and one more, which the code of an absent attribute (-1) indexes.
    wanted = np.zeros(column.known + 1, dtype=np.bool_)
    for value in condition.values:
        code = column.vocabulary.get(value, ABSENT)
        if 0 <= code < column.known:
            wanted[code] = True
    if condition.negated:
        wanted = ~wanted
    picked: BoolArray = wanted[column.codes]
    return picked


def encode(
    strings: Mapping[str, Sequence[str | None]], numbers: Mapping[str, npt.NDArray[np.float64]], rows: int
) -> Columns:
    """Dictionary-encodes attributes given as one value per row; None and NaN mean "no such attribute".

    Raises ValueError for a field name that is not lower_snake_case or used twice, a wrong length or an
    infinity.
    """
    for name in (*strings, *numbers):
        if not _FIELD_NAME.fullmatch(name):
            raise ValueError(f"attribute {name!r}: not a lower_snake_case name of 1..64 characters")
    if twice := set(strings) & set(numbers):
        raise ValueError(f"attribute {min(twice)!r}: given both as strings and as numbers")
    encoded = {}
    for name, values in strings.items():
        if len(values) != rows:
            raise ValueError(f"attribute {name!r}: {len(values)} values for {rows} ads")
        vocabulary: dict[str, int] = {}
        codes = np.fromiter(
            (ABSENT if v is None else vocabulary.setdefault(v, len(vocabulary)) for v in values),
            dtype=np.int32,
            count=rows,
        )
        encoded[name] = StringColumn(codes, vocabulary, len(vocabulary))
    columns = {}
    for name, column in numbers.items():
        array = np.asarray(column, dtype=np.float64)
        if array.shape != (rows,):
            raise ValueError(f"attribute {name!r}: shape {array.shape} for {rows} ads")
        if np.isinf(array).any():
            raise ValueError(f"attribute {name!r}: an infinite value at row {int(np.isinf(array).argmax())}")
        columns[name] = array
    return Columns(rows, encoded, columns)


def save(columns: Columns, folder: Path) -> None:
    """Writes the columns as a vocabulary file (JSON) and two arrays (.npy, no pickle)."""
    vocabularies = {name: list(column.vocabulary) for name, column in columns.strings.items()}
    document = {"strings": vocabularies, "numbers": list(columns.numbers)}
    (folder / ATTRIBUTES_FILE).write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    codes = np.zeros((len(columns.strings), columns.rows), dtype=np.int32)
    for row, column in enumerate(columns.strings.values()):
        codes[row] = column.codes
    numbers = np.zeros((len(columns.numbers), columns.rows), dtype=np.float64)
    for row, values in enumerate(columns.numbers.values()):
        numbers[row] = values
    np.save(folder / STRINGS_FILE, codes, allow_pickle=False)
    np.save(folder / NUMBERS_FILE, numbers, allow_pickle=False)


def load(read: Callable[[str], bytes], rows: int) -> Columns:
    """The columns of a bundle whose files `read` returns; BundleError when they do not fit together."""
    document = parse_json(read(ATTRIBUTES_FILE), ATTRIBUTES_FILE)
    strings, numbers = document.get("strings"), document.get("numbers")
    if not isinstance(strings, dict) or not isinstance(numbers, list):
        raise BundleError(f"{ATTRIBUTES_FILE}: needs an object 'strings' and an array 'numbers'")
    names = [*strings, *numbers]
    if not all(isinstance(name, str) and _FIELD_NAME.fullmatch(name) for name in names):
        raise BundleError(f"{ATTRIBUTES_FILE}: a field name is not lower_snake_case")
    if len(set(names)) != len(names):
        raise BundleError(f"{ATTRIBUTES_FILE}: a field stands there twice")
    codes = parse_array(read(STRINGS_FILE), STRINGS_FILE, np.int32, (len(strings), rows))
    values = parse_array(read(NUMBERS_FILE), NUMBERS_FILE, np.float64, (len(numbers), rows))
    if np.isinf(values).any():
        raise BundleError(f"{NUMBERS_FILE}: holds an infinite value")
    columns = {}
    for row, (name, vocabulary) in enumerate(strings.items()):
        if not isinstance(vocabulary, list) or not all(isinstance(value, str) for value in vocabulary):
            raise BundleError(f"{ATTRIBUTES_FILE}: the vocabulary of {name!r} is not an array of strings")
        index = {value: code for code, value in enumerate(vocabulary)}
        if len(index) != len(vocabulary):
            raise BundleError(f"{ATTRIBUTES_FILE}: the vocabulary of {name!r} has a value twice")
        if rows and not (codes[row].min() >= ABSENT and codes[row].max() < len(vocabulary)):
            raise BundleError(f"{STRINGS_FILE}: a code of {name!r} is outside its vocabulary")
        columns[name] = StringColumn(codes[row], index, len(vocabulary))
    return Columns(rows, columns, {name: values[row] for row, name in enumerate(numbers)})


def parse_json(data: bytes, name: str) -> dict[str, Any]:
    """A JSON object out of a bundle file; BundleError when it is none."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{name}: not JSON: {error}") from error
    if not isinstance(document, dict):
        raise BundleError(f"{name}: not a JSON object")
    return document


def parse_array(
    data: bytes, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...] | None = None
) -> npt.NDArray[Any]:
    """An .npy array out of a bundle file; BundleError unless of this dtype and shape (None: any vector)."""
    try:
        array = np.load(BytesIO(data), allow_pickle=False)
    except Exception as error:  # on a hostile header NumPy raises whatever its parser meets, even TokenError
        raise BundleError(f"{name}: not a NumPy array: {error}") from error
    if not isinstance(array, np.ndarray) or array.dtype != np.dtype(dtype):
        raise BundleError(f"{name}: not an array of {np.dtype(dtype)}")
    if array.ndim != 1 if shape is None else array.shape != shape:
        raise BundleError(f"{name}: shape {array.shape}, expected {shape or '(n,)'}")
    return array
