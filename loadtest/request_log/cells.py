"""Cells of users' files as arrays of one type, and which of them are not of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from loadtest.request_log.sources import Cells
from services.catalogue.faults import shown_json

Problems = list[tuple[int, str]]
"""Places of cells, and what is wrong with each."""

_REFUSED = (pa.ArrowException, TypeError, ValueError, OverflowError)


@dataclass(frozen=True)
class UserColumn:
    """A column of a user's file. `called` says what a cell must be, as an error puts it."""

    name: str
    type: pa.DataType
    called: str
    required: bool = False

    @property
    def is_list(self) -> bool:
        """Whether a cell is a list with one value a listed ad."""
        return bool(pa.types.is_list(self.type))


def typed(cells: Cells, column: UserColumn) -> tuple[pa.Array, Problems]:
    """The cells as an array of the column's type, where it holds something, and (place, problem) of the rest.

    Cells that are amiss are missing in the array. A list given as text has | between its values. An empty
    text is an empty list in a required list column, elsewhere a missing value.
    """
    problems: Problems = []
    array = pa.concat_arrays([pa.nulls(0, column.type), *_parts(cells, column, 0, problems)])
    if column.required:
        refused = {at for at, _ in problems}
        missing = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist()
        problems += [(at, "is missing") for at in missing if at not in refused]
    if column.is_list:
        problems += _holes(array)
    return array, problems


def coded(texts: pa.Array, code_of: Callable[[str], int | str]) -> tuple[NDArray[np.int64], Problems]:
    """What `code_of` makes of each text, a missing one taken as empty: a code, or a problem and code 0."""
    encoded = texts.fill_null("").dictionary_encode()
    codes = [code_of(text) for text in encoded.dictionary.to_pylist()]
    places = encoded.indices.to_numpy()
    wrong = np.array([isinstance(code, str) for code in codes], np.bool_)[places]
    wrong &= texts.is_valid().to_numpy(zero_copy_only=False)
    problems = [(at, str(codes[places[at]])) for at in np.flatnonzero(wrong).tolist()]
    return np.array([code if isinstance(code, int) else 0 for code in codes], np.int64)[places], problems


def other_lengths(lists: pa.Array, lengths: NDArray[np.int64]) -> Problems:
    """Lists that have another length than they should."""
    own = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    return [
        (at, f"{own[at]:.0f} values for {lengths[at]} listed ads")
        for at in np.flatnonzero(lists.is_valid().to_numpy(zero_copy_only=False) & (own != lengths)).tolist()
    ]


def _parts(cells: Cells, column: UserColumn, first: int, problems: Problems) -> Iterator[pa.Array]:
    """The cells in arrays; halves them until each is of the type, or a single cell that is not."""
    try:
        yield _cast(cells, column)
    except _REFUSED:
        half = len(cells) // 2
        if half:
            yield from _parts(cells[:half], column, first, problems)
            yield from _parts(cells[half:], column, first + half, problems)
            return
        value = cells[0].as_py() if isinstance(cells, pa.Array) else cells[0]
        problems.append((first, f"{shown_json(value)} is not {column.called}"))
        yield pa.nulls(1, column.type)


def _holes(lists: pa.Array) -> Iterator[tuple[int, str]]:
    """Lists that hold null."""
    if lists.flatten().null_count == 0:
        return
    parents = pc.list_parent_indices(lists).to_numpy()
    holes = parents[lists.flatten().is_null().to_numpy(zero_copy_only=False)]
    for at in np.unique(holes).tolist():
        yield at, f"{shown_json(lists[at].as_py())} holds null"


def _cast(cells: Cells, column: UserColumn) -> pa.Array:
    """The array; raises one of _REFUSED where a cell is of another type."""
    array = cells if isinstance(cells, pa.Array) else pa.array(cells)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ms", array.type.tz), safe=False)
    is_text = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
    if is_text and column.is_list:
        empty = pa.scalar([] if column.required else None, pa.list_(array.type))
        array = pc.if_else(pc.equal(array, ""), empty, pc.split_pattern(array, "|"))
    elif is_text and column.type != pa.string():
        array = pc.if_else(pc.equal(array, ""), pa.scalar(None, array.type), array)
    elif column.type == pa.string() and not is_text and not pa.types.is_null(array.type):
        raise pa.ArrowInvalid("not text")
    values = array.type.value_type if column.is_list and hasattr(array.type, "value_type") else array.type
    wanted = column.type.value_type if column.is_list else column.type
    if pa.types.is_boolean(values) and wanted != pa.int8():  # of clicks
        raise pa.ArrowInvalid("not a number")
    return array.cast(column.type)
