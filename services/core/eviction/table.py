"""A hash table from byte keys to slots: open addressing, a keyed hash, the keys side by side in an arena.

Problem. A dict of bytes costs some 150 bytes a key and a Python call a look-up. Here a place of the table
takes 4 bytes, and a key little more than its own.

    record  a key as whole words of 8 bytes: its length in two bytes, its bytes, zeros
    places  int32: slot + 1, 0 where free; linear probing from the digest's place; at most LOAD full
    arena   uint64: records one after another

The node of an entry holds its digest, 32 bits, and where its record begins; 16 GiB of records can be
addressed. A look-up compares digests first, then the whole record: a collision costs time, never an answer.
Deletion moves later slots of the run back, so no tombstones pile up. What deleted records leave in the arena
is squeezed out when the arena is full.

The hash is SipHash-1-3 of the record (J.-P. Aumasson and D. Bernstein, "SipHash: a fast short-input PRF",
INDOCRYPT 2012; with the rounds that Python uses for its own tables) under a secret of 128 bits, so keys
cannot be made to collide. O(1) expected; enlarging and squeezing are O(1) amortised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..compiled import compiled
from .state import NONE, State

MAX_KEY_BYTES = 65_535
WORD = 8
LENGTH = 2
"""Bytes of a record that hold the length of its key."""
LOAD = 0.8

USED, GARBAGE = 0, 1


class Table(NamedTuple):
    """places: int32. arena: uint64. secret: uint64[2]. marks: int64[2], words of the arena in use, and those
    of deleted records among them."""

    places: NDArray[np.int32]
    arena: NDArray[np.uint64]
    secret: NDArray[np.uint64]
    marks: NDArray[np.int64]


@compiled
def _rotated(x: np.uint64, bits: int) -> np.uint64:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@compiled
def _round(
    a: np.uint64, b: np.uint64, c: np.uint64, d: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    a = a + b
    c = c + d
    b = _rotated(b, 13) ^ a
    d = _rotated(d, 16) ^ c
    a = _rotated(a, 32) + d
    c = c + b
    b = _rotated(b, 17) ^ c
    d = _rotated(d, 21) ^ a
    return a, b, _rotated(c, 32), d


@compiled
def siphash(secret: NDArray[np.uint64], words: NDArray[np.uint64], start: int, end: int) -> np.uint64:
    """SipHash-1-3 of the whole words from `start` to `end`, little endian."""
    a, b = secret[0] ^ np.uint64(0x736F6D6570736575), secret[1] ^ np.uint64(0x646F72616E646F6D)
    c, d = secret[0] ^ np.uint64(0x6C7967656E657261), secret[1] ^ np.uint64(0x7465646279746573)
    for at in range(start, end):
        d ^= words[at]
        a, b, c, d = _round(a, b, c, d)
        a ^= words[at]
    last = np.uint64((end - start) * WORD & 255) << np.uint64(56)
    d ^= last
    a, b, c, d = _round(a, b, c, d)
    a ^= last
    c ^= np.uint64(0xFF)
    for _ in range(3):
        a, b, c, d = _round(a, b, c, d)
    return a ^ b ^ c ^ d


@compiled
def digest_of(t: Table, words: NDArray[np.uint64], start: int, end: int) -> int:
    """32 bits of a record's hash, as a signed number."""
    return int(np.int32(np.int64(siphash(t.secret, words, start, end) & np.uint64(0xFFFFFFFF))))


@compiled
def _place(t: Table, digest: int) -> int:
    return (digest & 0xFFFFFFFF) * len(t.places) >> 32


@compiled
def guess(t: Table, digest: int) -> int:
    """The slot where a look-up begins, NONE when free."""
    return int(t.places[_place(t, digest)]) - 1


@compiled
def find(t: Table, s: State, words: NDArray[np.uint64], start: int, end: int, digest: int) -> int:
    """The slot of a record, NONE when absent."""
    place = _place(t, digest)
    while t.places[place] != 0:
        slot = t.places[place] - 1
        if s.nodes[slot]["digest"] == digest and _same(t, s.nodes[slot]["key"], words, start, end):
            return int(slot)
        place = place + 1 if place + 1 < len(t.places) else 0
    return NONE


@compiled
def _same(t: Table, key: int, words: NDArray[np.uint64], start: int, end: int) -> bool:
    at = 0  # the first word holds the length, so no record is a prefix of another
    while at < end - start and t.arena[key + at] == words[start + at]:
        at += 1
    return at == end - start


@compiled
def _words(first: np.uint64) -> int:
    """Words of the record that begins with this one."""
    return int((np.int64(first & np.uint64(MAX_KEY_BYTES)) + LENGTH - 1) // WORD + 1)


@compiled
def crowded(t: Table, entries: int, words: int) -> bool:
    """Whether `enlarged` must come before another record of `words` joins `entries`."""
    return bool(entries + 1 > len(t.places) * LOAD or t.marks[USED] + words > len(t.arena))


@compiled
def keep(t: Table, words: NDArray[np.uint64], start: int, end: int) -> int:
    """Copy a record into the arena; where it begins."""
    key = t.marks[USED]
    for at in range(end - start):
        t.arena[key + at] = words[start + at]
    t.marks[USED] += end - start
    return int(key)


@compiled
def insert(t: Table, digest: int, slot: int) -> None:
    """Enter a slot whose key is not in the table."""
    place = _place(t, digest)
    while t.places[place] != 0:
        place = place + 1 if place + 1 < len(t.places) else 0
    t.places[place] = slot + 1


@compiled
def delete(t: Table, s: State, slot: int) -> None:
    """Take a slot out, and move back those behind it that it had pushed on."""
    length = len(t.places)
    hole = _place(t, s.nodes[slot]["digest"])
    while t.places[hole] != slot + 1:
        hole = hole + 1 if hole + 1 < length else 0
    t.marks[GARBAGE] += _words(t.arena[s.nodes[slot]["key"]])
    place = hole
    while True:
        place = place + 1 if place + 1 < length else 0
        if t.places[place] == 0:
            break
        home = _place(t, s.nodes[t.places[place] - 1]["digest"])
        if (place - home) % length >= (place - hole) % length:  # its run began at the hole or before
            t.places[hole] = t.places[place]
            hole = place
    t.places[hole] = 0


@compiled
def _copy(t: Table, s: State, wider: Table) -> None:
    """Enter every record of a table into an empty one."""
    for place in range(len(t.places)):
        slot = t.places[place] - 1
        if slot != NONE:
            key = s.nodes[slot]["key"]
            s.nodes[slot]["key"] = keep(wider, t.arena, key, key + _words(t.arena[key]))
            insert(wider, s.nodes[slot]["digest"], slot)


def empty(entries: int, key_bytes: int, secret: NDArray[np.uint64]) -> Table:
    """A table with room for `entries` keys of `key_bytes` on average."""
    return _sized(entries, entries * ((key_bytes + LENGTH - 1) // WORD + 1), secret)


def enlarged(t: Table, s: State, entries: int, words: int) -> Table:
    """The same table with room for `entries` records, one of `words` among the next; garbage squeezed out."""
    live = int(t.marks[USED] - t.marks[GARBAGE])
    wider = _sized(entries, live + live // 4 + 64 + words, t.secret)
    _copy(t, s, wider)
    return wider


def key_at(t: Table, key: int) -> bytes:
    """The key whose record begins here."""
    length = int(t.arena[key]) & MAX_KEY_BYTES
    words = (length + LENGTH - 1) // WORD + 1
    return t.arena[key : key + words].tobytes()[LENGTH : LENGTH + length]


def packed(keys: Sequence[bytes]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The records of keys one after another, and the word where each ends.

    Raises ValueError where a key is longer than MAX_KEY_BYTES.
    """
    lengths = np.fromiter((len(key) for key in keys), np.int64, len(keys))
    if len(keys) and lengths.max() > MAX_KEY_BYTES:
        raise ValueError(f"key: {lengths.max()} bytes are more than {MAX_KEY_BYTES}")
    words = (lengths + LENGTH - 1) // WORD + 1
    ends = np.cumsum(words)
    records = np.zeros(int(ends[-1]) * WORD if len(keys) else 0, np.uint8)
    starts = (ends - words) * WORD
    records[starts] = lengths & 255
    records[starts + 1] = lengths >> 8
    ahead = np.repeat(starts + LENGTH - (np.cumsum(lengths) - lengths), lengths)
    records[ahead + np.arange(len(ahead))] = np.frombuffer(b"".join(keys), np.uint8)
    return records.view("<u8").astype(np.uint64, copy=False), ends


def _sized(entries: int, words: int, secret: NDArray[np.uint64]) -> Table:
    places = np.zeros(int(entries / LOAD) + 2, np.int32)
    return Table(places, np.zeros(words, np.uint64), secret, np.zeros(2, np.int64))
