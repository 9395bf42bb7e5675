"""The UBJSON reader: what it reads, and sizes that it must not believe."""

from __future__ import annotations

import contextlib
import functools
import json
import struct
import tracemalloc

import numpy as np
import pytest
import xgboost
from hypothesis import given
from hypothesis import strategies as st

from services.core.trees.limits import MAX_NESTING, ForestError
from services.core.trees.ubjson import read_ubjson


def size(n: int) -> bytes:
    return b"L" + struct.pack(">q", n)


def encoded(value: object) -> bytes:
    """As XGBoost writes it."""
    match value:
        case None | True | False:
            return {None: b"Z", True: b"T", False: b"F"}[value]
        case int():
            return b"L" + struct.pack(">q", value)
        case float():
            return b"D" + struct.pack(">d", value)
        case str():
            return b"S" + size(len(value.encode())) + value.encode()
        case list():
            return b"[#" + size(len(value)) + b"".join(map(encoded, value))
        case dict():
            return b"{" + b"".join(encoded(k)[1:] + encoded(v) for k, v in value.items()) + b"}"
    raise TypeError(value)


documents = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(documents)
def test_it_reads_what_was_written(value: object) -> None:
    assert read_ubjson(encoded(value)) == value


@given(documents, st.data())
def test_it_reads_or_refuses_altered_bytes(value: object, data: st.DataObject) -> None:
    altered = bytearray(encoded(value))
    for _ in range(data.draw(st.integers(1, 3))):
        altered[data.draw(st.integers(0, len(altered) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ForestError):
        read_ubjson(bytes(altered))


@given(documents, st.integers(0))
def test_it_refuses_a_part(value: object, cut: int) -> None:
    whole = encoded(value)
    with pytest.raises(ForestError):
        read_ubjson(whole[: cut % len(whole)])


def test_every_type_of_number() -> None:
    data = b"[i\xffU\xffI\xff\xfel\xff\xff\xff\xfdL\xff\xff\xff\xff\xff\xff\xff\xfcd\x3f\x00\x00\x00Ca]"
    assert read_ubjson(data) == [-1, 255, -2, -3, -4, 0.5, "a"]
    assert read_ubjson(b"[$I#i\x02\x00\x01\xff\xff") == [1, -1]


def test_it_agrees_with_the_librarys_json() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 2))
    booster = xgboost.train({"nthread": 1}, xgboost.DMatrix(rows, rows[:, 0], nthread=1), 2)
    text = json.dumps(read_ubjson(bytes(booster.save_raw("ubj"))))
    as_float32 = functools.partial(json.loads, parse_float=lambda digits: float(np.float32(digits)))
    assert as_float32(text) == as_float32(booster.save_raw("json"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "1 bytes expected, 0 remain"),
        (b"ZZ", "1 bytes follow the document"),
        (b"H" + size(1) + b"1", "'H' is not a type"),
        (b"S" + size(2**62), f"a size of {2**62}"),
        (b"S" + size(-1), "a size of -1"),
        (b"Si\x01\xff", "not UTF-8"),
        (b"Sd\x00\x00\x00\x00", "a size of type 'd'"),
        (b"[#" + size(2**40) + b"Z", f"a size of {2**40}"),
        (b"[$L#" + size(9) + bytes(9), "72 bytes expected, 9 remain"),
        (b"[$Z#" + size(2**62), "typed array of 'Z'"),
        (b"[$[#" + size(1), "typed array of '\\['"),
        (b"[$dL", "typed array of 'd'"),
        (b"{#" + size(1), "'#' where the size of a key"),
        (b"{i\x01aZi\x01aZ}", "the key 'a' repeats"),
        (b"[" * (MAX_NESTING + 1), f"more than {MAX_NESTING} levels"),
        (b"[" * 1_000_000, f"more than {MAX_NESTING} levels"),
    ],
)
def test_refused(data: bytes, message: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ForestError, match=message):
            read_ubjson(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
