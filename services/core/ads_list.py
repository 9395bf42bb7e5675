"""The cached value: a scored list of ads before the auction, its codec, and the move-to-front merge.

Problem. A cached list is read by other processes, after other releases, from a store that may answer with
anything: a truncated value, a foreign one, or (redis-py#2624) the reply that belonged to another key. A wrong
list costs money and a crash costs all of it, so a value proves what it is before it is used: magic and
format, exact length, CRC-32 of every byte, and the fingerprint of the key under which it was asked for.

Layout, little endian, one contiguous buffer:

    offset  0  4s   magic "FADL"
            4  u8   format, 1
            5  u8   flags, bit 0: retrieval answered below its target
            6  u16  bytes of the versions block
            8  16s  fingerprint of the key text
           24  i64  written_at_ms, Unix milliseconds     (`put_newer.lua` reads this field)
           32  i64  cost_us, what computing the list took
           40  u32  number of ads n
           44  u32  CRC-32 of bytes 0..43 and 48..end
           48  ...  versions block: index NUL encoder NUL scorer, UTF-8
                    n x i64 ad ids
                    n x f32 click probabilities at the top position

Merge: `merging.py`. Probabilities of two scorers are not comparable, so lists of unequal scorer or encoder
are not merged: the fresh one replaces the other.

Invariants: ids are distinct; probabilities are finite and in 0..1; decode(encode(x)) == x up to float32;
decode of any other bytes raises CorruptEntry. Complexity: linear in the list, some 5 us for 48 ads.
"""

import functools
import struct
import zlib
from dataclasses import dataclass

import numpy as np

from services.core.merging import move_to_front
from services.core.query import FINGERPRINT_BYTES

FORMAT = 1
MAX_ADS = 4096
MAX_VERSION_BYTES = 255

_MAGIC = b"FADL"
_HEADER = struct.Struct("<4sBBH16sqqII")
_CRC_AT = _HEADER.size - 4
_RETRIEVAL_DEGRADED = 1


class CorruptEntry(Exception):
    """A cached value is not the list of its key; `reason` is one short word for a metric label."""

    def __init__(self, reason: str, message: str):
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Versions:
    """Fingerprints of what made a list; at most 255 bytes of UTF-8 each, without NUL."""

    index: str = ""
    encoder: str = ""
    scorer: str = ""


@dataclass(frozen=True, slots=True)
class AdsList:
    """Ads with their click probabilities at the top position, most similar first.

    ad_ids: distinct int64. click_probabilities: float32 values 0..1, same length. written_at_ms: Unix
    milliseconds. cost_us: microseconds that computing took. retrieval_degraded: retrieval answered below its
    target.
    """

    ad_ids: tuple[int, ...]
    click_probabilities: tuple[float, ...]
    written_at_ms: int
    cost_us: int
    versions: Versions
    retrieval_degraded: bool = False


@functools.lru_cache(maxsize=64)
def _columns(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}q{count}f")


@functools.lru_cache(maxsize=64)
def _parse_versions(block: bytes) -> Versions:
    try:
        index, encoder, scorer = block.decode().split("\0")
    except ValueError as error:
        raise CorruptEntry("versions", "the versions block is not three strings") from error
    return Versions(index, encoder, scorer)


@functools.lru_cache(maxsize=64)
def _pack_versions(versions: Versions) -> bytes:
    parts = [part.encode() for part in (versions.index, versions.encoder, versions.scorer)]
    if any(len(part) > MAX_VERSION_BYTES or b"\0" in part for part in parts):
        raise ValueError(f"a version is longer than {MAX_VERSION_BYTES} bytes or contains NUL: {versions}")
    return b"\0".join(parts)


def encode(entry: AdsList, fingerprint: bytes) -> bytes:
    """Bytes of a list under a key's 16-byte fingerprint.

    Raises ValueError when an invariant does not hold.
    """
    count = len(entry.ad_ids)
    if len(fingerprint) != FINGERPRINT_BYTES:
        raise ValueError(f"fingerprint: {len(fingerprint)} bytes instead of {FINGERPRINT_BYTES}")
    if count != len(entry.click_probabilities) or count > MAX_ADS or len(set(entry.ad_ids)) != count:
        raise ValueError(f"ad_ids: {count} ids must be distinct, at most {MAX_ADS}, one probability each")
    if not all(0.0 <= p <= 1.0 for p in entry.click_probabilities):
        raise ValueError("click_probabilities: a value is outside 0..1")
    versions = _pack_versions(entry.versions)
    body = versions + _columns(count).pack(*entry.ad_ids, *entry.click_probabilities)
    flags = _RETRIEVAL_DEGRADED if entry.retrieval_degraded else 0
    fields = (_MAGIC, FORMAT, flags, len(versions), fingerprint, entry.written_at_ms, entry.cost_us, count)
    head = _HEADER.pack(*fields, 0)[:_CRC_AT]
    return head + zlib.crc32(body, zlib.crc32(head)).to_bytes(4, "little") + body


def decode(data: bytes, fingerprint: bytes) -> AdsList:
    """The list in `data`, proven to be whole and to belong to `fingerprint`.

    Raises CorruptEntry otherwise.
    """
    if len(data) < _HEADER.size:
        raise CorruptEntry("length", f"{len(data)} bytes are less than a header")
    magic, version, flags, versions_bytes, owner, written_at_ms, cost_us, count, crc = _HEADER.unpack_from(
        data
    )
    if magic != _MAGIC or version != FORMAT:
        raise CorruptEntry("format", f"magic {magic!r} format {version}, expected {_MAGIC!r} format {FORMAT}")
    columns_at = _HEADER.size + versions_bytes
    if count > MAX_ADS or len(data) != columns_at + 12 * count:
        raise CorruptEntry("length", f"{len(data)} bytes do not fit {count} ads")
    if zlib.crc32(data[_HEADER.size :], zlib.crc32(data[:_CRC_AT])) != crc:
        raise CorruptEntry("crc", "the checksum differs")
    if owner != fingerprint:
        raise CorruptEntry("fingerprint", "the value belongs to another key")
    values = _columns(count).unpack_from(data, columns_at)
    versions = _parse_versions(data[_HEADER.size : columns_at])
    degraded = bool(flags & _RETRIEVAL_DEGRADED)
    return AdsList(values[:count], values[count:], written_at_ms, cost_us, versions, degraded)


def merge(cached: AdsList | None, fresh: AdsList, capacity: int) -> AdsList:
    """The fresh list at the head, then what the cached one adds, cut at `capacity` (SoCC'17 section 4.3)."""
    ids, probabilities = np.zeros(capacity, np.int64), np.zeros(capacity, np.float64)
    held = 0
    if cached is not None and _comparable(cached.versions, fresh.versions):
        held = min(len(cached.ad_ids), capacity)
        ids[:held], probabilities[:held] = cached.ad_ids[:held], cached.click_probabilities[:held]
    held = move_to_front(
        ids,
        probabilities,
        held,
        np.array(fresh.ad_ids, np.int64),
        np.array(fresh.click_probabilities, np.float64),
        capacity,
    )
    return AdsList(
        tuple(ids[:held].tolist()),
        tuple(probabilities[:held].tolist()),
        fresh.written_at_ms,
        fresh.cost_us,
        fresh.versions,
        fresh.retrieval_degraded,
    )


def _comparable(one: Versions, other: Versions) -> bool:
    return one.scorer == other.scorer and one.encoder == other.encoder
