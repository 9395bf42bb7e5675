"""Key streams: which query comes when, as numbers.

Two sources:

* A real one, the Scarab trace of the Caffeine simulator (https://github.com/ben-manes/caffeine): 1,245,184
  look-ups of 258,368 keys of an e-commerce recommendation service, in their order. Repeats, bursts and churn
  are those of a live service. Format: big-endian 64-bit integers, xz.
* A modelled one: independent draws from the popularity curve of the Bing ads log (Li et al., SoCC 2017,
  figure 3, keys without personalisation). Its head is heavier than Scarab's and it has no bursts.

The curve says which share of the requests the top x percent of the phrases carry. It starts at x = 0.000558,
so it means something only for many keys: over 2,000 keys the first alone would carry half of all requests.
Draws are therefore made over UNIVERSE keys, as many as Scarab has, so that the two streams differ in
popularity and order only; a short stream then meets the head as often as a long one does and a sample of the
tail. Between the digitised points the share is interpolated as a power of x (Zipf within each piece), and
below the first point continued.
"""

from __future__ import annotations

import lzma
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from services.runtime.errors import UserError

CURVE = Path(__file__).parent / "data" / "bing" / "bing2016_fig3_cumreq_by_top_pct_phrases_nopers.csv"
UNIVERSE = 258_368
MAX_REQUESTS = 50_000_000
_CHUNK_BYTES = 1 << 22

Keys = NDArray[np.int64]
Shares = NDArray[np.float64]


def share_of_top(percent: Shares) -> Shares:
    """The share of requests that the top `percent` (0 < percent <= 100) of the phrases carry, 0..1."""
    points = np.loadtxt(CURVE, delimiter=",", skiprows=1)
    points[-1] = (100.0, 1.0)  # the drawn line ends a pixel off its corner
    x, y = np.log(points[:, 0]), np.log(points[:, 1])
    at = np.log(percent)
    slope = (y[1] - y[0]) / (x[1] - x[0])
    return np.asarray(np.exp(np.where(at < x[0], y[0] + slope * (at - x[0]), np.interp(at, x, y))))


@lru_cache(maxsize=4)
def popularity(keys: int) -> Shares:
    """Shares of requests of `keys` keys, most popular first; they sum to 1.

    Sorted: two pieces of the digitised curve meet at a slightly rising slope, which moves no cumulative share
    by more than 0.006.
    """
    shares = np.diff(share_of_top(100.0 * np.arange(1, keys + 1) / keys), prepend=0.0)
    shares = np.sort(shares)[::-1]
    shares /= shares.sum()
    shares.flags.writeable = False
    return shares


def drawn_keys(requests: int, random: np.random.Generator) -> Keys:
    """`requests` independent draws from the curve; key 0 is the most popular one."""
    _check(requests)
    ends = np.cumsum(popularity(UNIVERSE))
    return np.minimum(np.searchsorted(ends, random.random(requests), side="right"), UNIVERSE - 1)


def drawn_until(distinct: int, random: np.random.Generator) -> Keys:
    """Draws from the curve up to the one that brings the `distinct`-th different key."""
    keys = np.empty(0, np.int64)
    while True:
        keys = np.concatenate([keys, drawn_keys(2 * distinct, random)])
        first_seen = np.sort(np.unique(keys, return_index=True)[1])
        if len(first_seen) >= distinct:
            return keys[: first_seen[distinct - 1] + 1]


def trace_keys(path: Path, requests: int | None = None) -> Keys:
    """The first `requests` keys (all, where None) of an .xz trace of big-endian 64-bit integers.

    Raises UserError where the file is absent, damaged, or shorter than asked.
    """
    if requests is not None:
        _check(requests)
    wanted_bytes = 8 * (MAX_REQUESTS + 1 if requests is None else requests)
    chunks: list[bytes] = []
    size_bytes = 0
    try:
        with lzma.open(path) as file:
            while size_bytes < wanted_bytes and (
                chunk := file.read(min(_CHUNK_BYTES, wanted_bytes - size_bytes))
            ):
                chunks.append(chunk)
                size_bytes += len(chunk)
    except (lzma.LZMAError, EOFError) as error:
        raise UserError(f"{path}: not a whole xz file: {error}") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error
    if size_bytes == 0 or size_bytes % 8:
        raise UserError(f"{path}: {size_bytes} bytes are not a number of 64-bit keys")
    if size_bytes // 8 > MAX_REQUESTS:
        raise UserError(f"{path}: more than {MAX_REQUESTS} keys; take the first ones by --requests")
    if requests is not None and size_bytes < wanted_bytes:
        raise UserError(f"{path}: requests: {requests} is more than the {size_bytes // 8} keys of the trace")
    return np.frombuffer(b"".join(chunks), ">i8").astype(np.int64)


def ranks_by_frequency(keys: Keys, random: np.random.Generator) -> tuple[Keys, int]:
    """The stream with every key replaced by its rank, 0 for the most frequent, and the number of keys.

    Equally frequent keys are ranked at random.
    """
    distinct, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    order = np.lexsort((random.random(len(distinct)), -counts))
    ranks = np.empty(len(distinct), np.int64)
    ranks[order] = np.arange(len(distinct))
    return ranks[inverse], len(distinct)


def _check(requests: int) -> None:
    if not 1 <= requests <= MAX_REQUESTS:
        raise UserError(f"requests: {requests} is outside 1..{MAX_REQUESTS}")
