"""UBJSON (draft 12) as XGBoost writes it, read with every size checked against the bytes that remain.

    value    Z | T | F | i U I l L d D and a big-endian number | C byte | S string | [ array | { object
    string   a number without fraction n >= 0, then n bytes of UTF-8
    array    value* ]  |  # n value^n  |  $ type # n, then n raw numbers
    object   (string value)* }

Objects with a count or a type, and numbers of arbitrary length (H), are valid UBJSON that XGBoost does not
write; they are refused. A count is believed only if that many elements of at least one byte each can
follow.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from .limits import MAX_CONTAINERS, MAX_NESTING, ForestError

_NUMBERS = {
    ord(mark): np.dtype(kind)
    for mark, kind in {
        "i": "i1",
        "U": "u1",
        "I": ">i2",
        "l": ">i4",
        "L": ">i8",
        "d": ">f4",
        "D": ">f8",
    }.items()
}
_CONSTANTS = {ord("Z"): None, ord("T"): True, ord("F"): False}


def read_ubjson(data: bytes) -> object:
    """The document in `data`: dicts, lists, strings, numbers, booleans and None.

    Raises:
        ForestError: it is none, it is followed by other bytes, or a limit is exceeded.
    """
    reader = _Reader(data)
    value = reader.value(reader.byte(), 0)
    if reader.at != len(data):
        reader.fail(f"{len(data) - reader.at} bytes follow the document")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.containers = 0

    def fail(self, message: str) -> NoReturn:
        raise ForestError(f"UBJSON, byte {self.at}: {message}")

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            self.fail(f"{size} bytes expected, {len(self.data) - self.at} remain")
        self.at += size
        return self.data[self.at - size : self.at]

    def byte(self) -> int:
        return self.take(1)[0]

    def value(self, mark: int, depth: int) -> object:
        if mark in _NUMBERS:
            return self.numbers(mark, 1)[0]
        if mark in _CONSTANTS:
            return _CONSTANTS[mark]
        if mark == ord("S"):
            return self.string()
        if mark == ord("C"):
            return chr(self.byte())
        if mark not in b"[{":
            self.fail(f"{chr(mark)!r} is not a type")
        self.containers += 1
        if depth >= MAX_NESTING or self.containers > MAX_CONTAINERS:
            self.fail(f"more than {MAX_NESTING} levels or {MAX_CONTAINERS} containers")
        return self.array(depth + 1) if mark == ord("[") else self.object(depth + 1)

    def numbers(self, mark: int, count: int) -> list[int | float]:
        kind = _NUMBERS[mark]
        values: list[int | float] = np.frombuffer(self.take(count * kind.itemsize), kind).tolist()
        return values

    def size(self) -> int:
        mark = self.byte()
        if mark not in b"iUIlL":
            self.fail(f"a size of type {chr(mark)!r}")
        size = int(self.numbers(mark, 1)[0])
        if not 0 <= size <= len(self.data) - self.at:
            self.fail(f"a size of {size}, {len(self.data) - self.at} bytes remain")
        return size

    def string(self) -> str:
        try:
            return self.take(self.size()).decode()
        except UnicodeDecodeError:
            self.fail("a string that is not UTF-8")

    def array(self, depth: int) -> list[object]:
        mark = self.byte()
        if mark == ord("$"):
            kind = self.byte()
            if kind not in _NUMBERS or self.byte() != ord("#"):
                self.fail(f"a typed array of {chr(kind)!r}; only counted arrays of numbers are supported")
            return list(self.numbers(kind, self.size()))
        if mark == ord("#"):
            return [self.value(self.byte(), depth) for _ in range(self.size())]
        values = []
        while mark != ord("]"):
            values.append(self.value(mark, depth))
            mark = self.byte()
        return values

    def object(self, depth: int) -> dict[str, object]:
        values: dict[str, object] = {}
        while (mark := self.byte()) != ord("}"):
            if mark not in b"iUIlL":
                self.fail(f"{chr(mark)!r} where the size of a key is expected")
            self.at -= 1
            key = self.string()
            if key in values:
                self.fail(f"the key {key[:40]!r} repeats")
            values[key] = self.value(self.byte(), depth)
        return values
