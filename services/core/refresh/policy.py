"""What every refresh policy is: a decision on each hit, from a small row of state an entry.

Problem. A list in the cache goes stale: ads come and go, bids and click probabilities move, and every reuse
may lose the revenue of an ad that the list lacks. A refresh policy looks at each hit and says whether to
recompute, and what it expects to lose by not doing so.

How. The rule of a policy is a few compiled functions over an array of `ENTRY` rows, one row a cached list:
`on_hit` decides, `on_insert` and `on_refresh` take note of a list that was written. The simulator calls them
with a row for every list of its cache. A live service calls the same functions through `TablePolicy`, which
keeps rows for the keys it saw last.

Invariants of `TablePolicy`: a row belongs to one written list (key and written_at_ms); an older list, read by
a caller that a refresh overtook, never triggers a refresh. A refresh that failed leaves the row as it is, so
the next hit asks again. Memory is bounded. What is approximate: a row forgotten because more than `capacity`
keys were seen since starts as if its list were new; each process counts its own hits; a list that another
process refreshed starts its count here, but moves no rate, because only that process could compare.
Complexity: O(1) a hit, one or two microseconds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from services.core.ads_list import AdsList
from services.core.compiled import compiled
from services.core.refresh.places import Places

CAPACITY = 100_000

ENTRY = np.dtype(
    [
        ("ttl_ms", np.int64),  # how long the list may be served, where a policy goes by time
        ("count", np.int32),  # cnt of Algorithm 1: 1 when written, one more each hit that was served
        ("every", np.int32),  # freq of Algorithm 1: the n-th hit after a write refreshes
    ]
)
"""State of one cached list; a policy uses the fields it needs."""

Rows = NDArray[np.void]
Earns = Callable[[bytes], bool]
"""Whether the phrase of a key's fingerprint has ever earned: membership in R of SoCC'17 section 4.2."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to recompute, and the revenue predicted to be lost otherwise (0 where no model decides).

    probed_usd: the loss that the model predicts, uncorrected, where recomputing is only to measure it.
    """

    refresh: bool
    predicted_loss_usd: float = 0.0
    probed_usd: float | None = None


REUSE = Decision(refresh=False)
REFRESH = Decision(refresh=True)


class RefreshPolicy(Protocol):
    """Decides on every hit; implementations must be cheap enough for the path of a hit."""

    @property
    def name(self) -> str:
        """Short name for GetInfo and metrics."""

    def on_hit(self, fingerprint: bytes, cached: AdsList, now_ms: int) -> Decision:
        """Judge one hit on the list of a key; `now_ms` is on the clock of `written_at_ms`."""

    def on_write(self, fingerprint: bytes, written: AdsList, similarity: float | None) -> None:
        """Take note that the list of a key was written.

        similarity: None after a miss; after a refresh `similarity` of the list before and the fresh one.
        """


def similarity(cached: Iterable[int], fresh: Iterable[int]) -> float:
    """The share of a fresh list's ads that the cached list has, 0..1; NaN where either list is empty.

    SoCC'17 section 3.6 leaves it undefined without a current list. Without a cached list there is nothing
    that could have gone stale either: counted as similar, such pairs let n drift upwards on every key that
    sometimes finds no ads.
    """
    held, wanted = set(cached), set(fresh)
    return len(held & wanted) / len(wanted) if held and wanted else math.nan


@compiled
def is_nth_hit(entries: Rows, row: int, every: int) -> bool:
    """SoCC'17 section 4.4: a hit refreshes when cnt mod n = 0, else cnt counts on.

    So exactly the n-th hit after a write refreshes, and with n = 1 every hit does.
    """
    if entries[row]["count"] % every == 0:
        return True
    entries[row]["count"] += 1
    return False


@compiled
def restart(entries: Rows, row: int) -> None:
    """The list of a row was written: cnt is 1."""
    entries[row]["count"] = 1


class TablePolicy(ABC):
    """A policy whose rows are kept for the `capacity` keys seen last; subclasses give the rule."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._places = Places(capacity)
        self._rows: Any = np.zeros(capacity, ENTRY)

    def on_hit(self, fingerprint: bytes, cached: AdsList, now_ms: int) -> Decision:
        """Judge one hit on the list of a key."""
        written_at_ms, row = self._places.find(fingerprint)
        if cached.written_at_ms < written_at_ms:
            return REUSE
        if cached.written_at_ms > written_at_ms:
            self._places.put(fingerprint, cached.written_at_ms)
            if written_at_ms < 0:
                self._inserted(row)
            else:
                self._refreshed(row, fingerprint, math.nan)
        return REFRESH if self._is_due(row, fingerprint, cached, now_ms) else REUSE

    def on_write(self, fingerprint: bytes, written: AdsList, similarity: float | None) -> None:
        """Start the row of the new list."""
        _, row = self._places.find(fingerprint)
        self._places.put(fingerprint, written.written_at_ms)
        if similarity is None:
            self._inserted(row)
        else:
            self._refreshed(row, fingerprint, similarity)

    def __len__(self) -> int:
        return len(self._places)

    @abstractmethod
    def _is_due(self, row: int, fingerprint: bytes, cached: AdsList, now_ms: int) -> bool:
        """Whether a hit on the list of a row refreshes it; counts the hit."""

    @abstractmethod
    def _inserted(self, row: int) -> None:
        """A list was written after a miss."""

    @abstractmethod
    def _refreshed(self, row: int, fingerprint: bytes, similarity: float) -> None:
        """A list took the place of one, `similarity` to it as for `on_write`; NaN where unknown."""
