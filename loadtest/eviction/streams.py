"""Request streams for eviction orders: dense keys, and how many requests only warm the caches.

A trace is measured behind its first half, on which the constants of our order were chosen. `zipf` is what
YCSB's core workloads send (Cooper et al., SoCC 2010): a load phase that writes every record once, here in
random order, then reads whose ranks are Zipf with constant .99 over 10^10 items, hashed onto the records. The
hash spreads popular records among the others and evens out the tail: about half of the reads go to it. Ranks
are drawn by the closed form of Gray et al., "Quickly generating billion-record synthetic databases" (SIGMOD
1994). Load phase and the first quarter of the reads warm the caches.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadtest.popularity import trace_keys
from services.runtime.errors import UserError

ZIPF = "zipf"
LEAST_REQUESTS = 100
ZIPF_RECORDS, ZIPF_REQUESTS = 300_000, 5_000_000
ZIPF_CONSTANT, ZIPF_ITEMS, ZIPF_ZETA = (
    0.99,
    10_000_000_000,
    26.46902820178302,
)  # zeta: sum of i^-.99, i <= items
_FNV_START, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


@dataclass(frozen=True)
class Stream:
    """Requests for keys 0..count-1. keys: int32[n]. The first `warm` requests are not measured."""

    keys: NDArray[np.int32]
    count: int
    warm: int


def stream_of(trace: str, seed: int) -> Stream:
    """The stream of a trace file, the same for every seed, or "zipf", drawn from the seed.

    Raises UserError where the file cannot be read or is too short.
    """
    if trace == ZIPF:
        return zipf_stream(np.random.default_rng((seed, 0)))
    keys, number = np.unique(trace_keys(Path(trace)), return_inverse=True)
    if len(number) < LEAST_REQUESTS:
        raise UserError(f"{trace}: {len(number)} requests are fewer than {LEAST_REQUESTS}")
    return Stream(number.astype(np.int32), len(keys), len(number) // 2)


def zipf_stream(random: np.random.Generator) -> Stream:
    """YCSB's load phase and reads."""
    alpha = 1 / (1 - ZIPF_CONSTANT)
    two = 1 + 0.5**ZIPF_CONSTANT
    eta = (1 - (2 / ZIPF_ITEMS) ** (1 - ZIPF_CONSTANT)) / (1 - two / ZIPF_ZETA)
    uniform = random.random(ZIPF_REQUESTS)
    rank = (ZIPF_ITEMS * (eta * uniform - eta + 1) ** alpha).astype(np.uint64)
    rank[uniform * ZIPF_ZETA < two] = 1
    rank[uniform * ZIPF_ZETA < 1] = 0
    reads = (_fnv1a(rank) % np.uint64(ZIPF_RECORDS)).astype(np.int32)
    load = random.permutation(ZIPF_RECORDS).astype(np.int32)
    return Stream(np.concatenate([load, reads]), ZIPF_RECORDS, ZIPF_RECORDS + ZIPF_REQUESTS // 4)


def _fnv1a(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The 64-bit FNV-1a hash of each number's eight bytes, lowest first."""
    digest = np.full(values.shape, _FNV_START)
    for byte in range(8):
        digest = (digest ^ ((values >> np.uint64(8 * byte)) & np.uint64(255))) * _FNV_PRIME
    return digest
