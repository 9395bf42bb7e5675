"""Live changes beside the immutable index: a small flat delta, and snapshots that a search sees whole.

An upserted ad goes into the delta and hides its row of the index; a deleted ad is hidden in both. Searches
scan the delta exactly and merge, so a change is never missed by a budget.

One writer at a time; any number of readers. A reader takes `Delta.snapshot` once: an immutable view that no
later change touches. Rows are only ever appended to the shared buffers, behind the rows that older snapshots
know, so publishing a change copies two masks and no vector: O(ads / 8 + delta rows).

The log (see `journal`) belongs to one index: after a rebuild the delta starts empty, because only the owner
of the catalogue knows which changes the new build already holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from frugalads.retrieval.v1 import retrieval_pb2 as pb
from services.core.ivf.distances import flat_distances
from services.retrieval.attributes import ABSENT, Columns, Condition, StringColumn
from services.retrieval.index import Admitted, LoadedIndex
from services.retrieval.journal import Journal
from services.runtime.errors import ResourceExhausted, UserError

_UPSERT, _DELETE = b"U", b"D"
_RETRY_AFTER_MS = 60_000

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Ad:
    """An ad to add: unit vector float32 [dimension]; attributes it lacks are absent."""

    ad_id: int
    vector: Floats
    strings: Mapping[str, str]
    numbers: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An index with the changes up to `sequence` on top. Immutable."""

    index: LoadedIndex
    sequence: int
    changes: int
    hidden: Mask  # rows of the index that were replaced or deleted
    visible: Admitted  # the other rows
    alive: Mask  # rows of the delta that are neither replaced nor deleted
    columns: Columns
    ad_ids: Ints  # of the rows of the delta, like `vectors`
    vectors: Floats

    @property
    def ads(self) -> int:
        """Number of ads that a search can return."""
        return self.visible.count + int(self.alive.sum())

    def admit(self, conditions: Sequence[Condition]) -> tuple[Admitted, Ints]:
        """What the conditions admit: rows of the index, and row numbers of the delta."""
        if not conditions:
            return self.visible, np.flatnonzero(self.alive)
        rows = self.index.columns.admitted(conditions) & ~self.hidden
        return self.index.admit(rows), np.flatnonzero(self.columns.admitted(conditions) & self.alive)

    def compare(self, query: Floats, rows: Ints) -> Floats:
        """Squared distances of one unit query [dimension] to these rows of the delta, float32.

        By the function that compares vectors of the index: equal vectors have equal distances in both.
        """
        distances = np.empty(len(self.vectors), dtype=np.float32)
        if rows.size:
            flat_distances(query, self.vectors, distances)
        return distances[rows]


class Delta:
    """The writer's side. Calls that write must not overlap; `snapshot` may be read at any time."""

    def __init__(self, index: LoadedIndex, folder: Path, max_changes: int) -> None:
        """Opens the log of `index` in `folder` and replays it; raises UserError when it is damaged."""
        self._index = index
        self._max_changes = max_changes
        self._rows = 0
        self._changes = 0
        self._row_of: dict[int, int] = {}
        self._hidden = np.zeros(index.size, dtype=np.bool_)
        past: list[Sequence[Ad] | Ints] = []
        path = folder / f"{index.fingerprint}.log"
        self._journal = Journal.open(path, index.fingerprint, lambda payload: past.append(_decoded(payload)))
        self.torn_bytes = self._journal.torn_bytes
        # More rows than the limit are in the log when the limit was lowered since; they stay.
        capacity = max(max_changes, sum(len(change) for change in past))
        self._vectors = np.zeros((capacity, index.dimension), dtype=np.float32)
        self._ad_ids = np.zeros(capacity, dtype=np.int64)
        self._alive = np.zeros(capacity, dtype=np.bool_)
        columns = index.columns
        self._vocabularies: dict[str, dict[str, int]] = {name: {} for name in columns.strings}
        self._codes = {name: np.full(capacity, ABSENT, dtype=np.int32) for name in columns.strings}
        self._numbers = {name: np.full(capacity, np.nan) for name in columns.numbers}
        try:
            for change in past:
                if isinstance(change, np.ndarray):
                    self._drop(change.tolist())
                else:
                    self._put(change)
        except (KeyError, ValueError) as error:
            self._journal.close()
            raise UserError(f"{path}: a change does not fit its index: {error}") from error
        self.snapshot = self._published()

    def upsert(self, ads: Sequence[Ad]) -> int:
        """Adds or replaces ads, all or none; returns the sequence of the change once it is on disk.

        Raises ResourceExhausted when the delta is full, Unavailable when the disk refuses.
        """
        self._refuse_overflow(len(ads))
        entries = [
            pb.IndexedAd(ad_id=ad.ad_id, vector=ad.vector, attributes=ad.strings, numbers=ad.numbers)
            for ad in ads
        ]
        self._journal.append(_UPSERT + pb.UpsertRequest(ads=entries).SerializeToString())
        self._put(ads)
        self.snapshot = self._published()
        return self.snapshot.sequence

    def delete(self, ad_ids: Ints) -> tuple[int, int]:
        """Hides ads; returns the sequence and how many of the ids existed. Raises like `upsert`.

        When none existed there is nothing to store and the sequence stays.
        """
        known = [ad_id for ad_id in np.unique(ad_ids).tolist() if self._exists(ad_id)]
        if known:
            self._refuse_overflow(len(known))
            self._journal.append(_DELETE + pb.DeleteRequest(ad_ids=known).SerializeToString())
            self._drop(known)
            self.snapshot = self._published()
        return self.snapshot.sequence, len(known)

    def serve(self, index: LoadedIndex) -> None:
        """Goes on over the same index, loaded with another stop model."""
        self._index = index
        self.snapshot = self._published()

    def close(self) -> None:
        """Closes the log. Snapshots stay usable."""
        self._journal.close()

    def _refuse_overflow(self, more: int) -> None:
        if self._changes + more > self._max_changes:
            raise ResourceExhausted(
                "DELTA_FULL",
                f"the delta holds {self._changes} of {self._max_changes} changes and {more} more do not fit: "
                "rebuild the index and swap it in",
                _RETRY_AFTER_MS,
                changes=self._changes,
                max_delta=self._max_changes,
            )

    def _exists(self, ad_id: int) -> bool:
        if ad_id in self._row_of:
            return True
        rows = self._index.rows_of(np.array([ad_id], dtype=np.int64))
        return bool(rows.size) and not self._hidden[rows[0]]

    def _put(self, ads: Sequence[Ad]) -> None:
        for ad in ads:
            self._hide(ad.ad_id)
            row = self._rows
            self._vectors[row] = ad.vector
            self._ad_ids[row] = ad.ad_id
            for name, value in ad.strings.items():
                vocabulary = self._vocabularies[name]
                self._codes[name][row] = vocabulary.setdefault(value, len(vocabulary))
            for name, number in ad.numbers.items():
                self._numbers[name][row] = number
            self._alive[row] = True
            self._row_of[ad.ad_id] = row
            self._rows += 1
        self._changes += len(ads)

    def _drop(self, ad_ids: Sequence[int]) -> None:
        for ad_id in ad_ids:
            self._hide(ad_id)
        self._changes += len(ad_ids)

    def _hide(self, ad_id: int) -> None:
        row = self._row_of.pop(ad_id, None)
        if row is not None:
            self._alive[row] = False
        self._hidden[self._index.rows_of(np.array([ad_id], dtype=np.int64))] = True

    def _published(self) -> Snapshot:
        rows = self._rows
        columns = Columns(
            rows,
            {
                name: StringColumn(codes[:rows], self._vocabularies[name], len(self._vocabularies[name]))
                for name, codes in self._codes.items()
            },
            {name: values[:rows] for name, values in self._numbers.items()},
        )
        hidden = self._hidden.copy()
        return Snapshot(
            index=self._index,
            sequence=self._journal.last,
            changes=self._changes,
            hidden=hidden,
            visible=self._index.admit(~hidden) if hidden.any() else self._index.everything,
            alive=self._alive[:rows].copy(),
            columns=columns,
            ad_ids=self._ad_ids[:rows],
            vectors=self._vectors[:rows],
        )


def _decoded(payload: bytes) -> Sequence[Ad] | Ints:
    """A record of the log: ads that were upserted, or ids that were deleted."""
    try:
        if payload[:1] == _DELETE:
            return np.array(pb.DeleteRequest.FromString(payload[1:]).ad_ids, dtype=np.int64)
        if payload[:1] == _UPSERT:
            return [
                Ad(
                    entry.ad_id,
                    np.array(entry.vector, dtype=np.float32),
                    dict(entry.attributes),
                    dict(entry.numbers),
                )
                for entry in pb.UpsertRequest.FromString(payload[1:]).ads
            ]
    except DecodeError as error:
        raise UserError(f"delta log: a record cannot be read: {error}") from error
    raise UserError(f"delta log: a record of unknown kind {payload[:1]!r}")
