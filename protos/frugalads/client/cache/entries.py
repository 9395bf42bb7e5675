"""What lies in Redis under a cached key: the value behind 40 bytes that say what it is and what it cost.

Layout, little endian:

    offset  0  4s   magic "FAC1"
            4  u32  CRC-32 of every byte from 8 on
            8  8s   BLAKE2b-64 of the Redis key
           16  i64  written_at_ms, Unix milliseconds
           24  i64  cost_us, what the eviction order counts
           32  i64  compute_us, the time that computing took
           40       the value

A store may answer with anything: a cut value, one of another program, or the reply that belonged to another
key (redis-py#2624). What does not prove to be the value of the key that was asked for counts as absent.

How long a value is fresh is decided where it is read; its expiry in Redis is its eviction priority.
"""

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from typing import NamedTuple

MAX_COST_US = 1 << 40
"""Highest cost that the sidecar takes, about 13 days."""

_MAGIC = b"FAC1"
_HEAD = struct.Struct("<4sI8sqqq")
_COVERED_FROM = 8


class Entry(NamedTuple):
    """A cached value. written_at_ms: Unix milliseconds. cost_us: its weight in the eviction order.

    compute_us: what computing it took; the same as cost_us unless a cost was given.
    """

    value: bytes
    written_at_ms: int
    cost_us: int
    compute_us: int

    def is_fresh(self, ttl_s: float | None, now_s: float) -> bool:
        """Whether the value may be used: None is for ever. A time of writing far in the future is not."""
        return ttl_s is None or -ttl_s <= now_s - self.written_at_ms / 1000 < ttl_s

    def is_due(self, ttl_s: float | None, now_s: float, uniform: float) -> bool:
        """Whether a fresh value should be computed again already. uniform: a draw from 0..1.

        XFetch with beta 1 (Vattani, Chierichetti, Lowenstein, "Optimal probabilistic cache stampede
        prevention", VLDB 2015): the dearer the computation and the nearer the end, the likelier; of all the
        processes that read a key one is likely to refresh it in time, and few do together.
        """
        if ttl_s is None:
            return False
        age_s = now_s - self.written_at_ms / 1000
        return age_s - self.compute_us / 1e6 * math.log(max(uniform, 1e-300)) >= ttl_s


def encode(entry: Entry, key: bytes) -> bytes:
    """The bytes to store under a Redis key."""
    fields = (_fingerprint(key), entry.written_at_ms, entry.cost_us, entry.compute_us)
    head = _HEAD.pack(_MAGIC, 0, *fields)
    crc = zlib.crc32(entry.value, zlib.crc32(head[_COVERED_FROM:]))
    return _HEAD.pack(_MAGIC, crc, *fields) + entry.value


def decode(data: bytes | None, key: bytes) -> Entry | None:
    """The entry in what Redis holds under a key; None when there is none, or something else."""
    if data is None or len(data) < _HEAD.size:
        return None
    magic, crc, owner, written_at_ms, cost_us, compute_us = _HEAD.unpack_from(data)
    if magic != _MAGIC or owner != _fingerprint(key) or crc != zlib.crc32(memoryview(data)[_COVERED_FROM:]):
        return None
    return Entry(data[_HEAD.size :], written_at_ms, cost_us, compute_us)


def _fingerprint(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=8).digest()
