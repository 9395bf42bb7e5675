"""The immutable index: inverted lists of unit vectors, with ids, attributes, calibration and a stop model.

Rows are stored in list order: list l holds rows start[l]..start[l+1]-1, in that order, and `ad_ids`, the
attribute columns and filter bitmaps are indexed by row. So a bitmap yields the admitted ads of every list by
one `reduceat`.

Two views of the same lists are searched (`services.core.ivf`): `lists`, flat or quantized as the index is,
and `exact_lists`, whose codes are the vectors themselves: what an exact search compares. Flat lists are both.
A view holds addresses, so whoever holds a view holds the index.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from services.core.ivf.distances import flat_distances
from services.core.ivf.exhaustive import exhaustive
from services.core.ivf.memory import Lists, lists_of, lists_over
from services.core.ivf.search import search
from services.core.stopping.policy import fixed
from services.retrieval.contents import Contents
from services.retrieval.cost import ScanCost
from services.retrieval.stop_model import StopModel
from services.retrieval.vectors import UNIT_TOLERANCE, VECTORS_FILE, centroids, codewords
from services.runtime.errors import BundleError

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Admitted:
    """The rows that a search may return: a bitmap (None: every row), their number per list and in all."""

    bitmap: npt.NDArray[np.uint8] | None
    per_list: Ints
    count: int


class LoadedIndex:
    """A verified index in memory. Every method may run in many threads at once."""

    def __init__(
        self, contents: Contents, stop_model: StopModel | None = None, stop_model_fault: str = ""
    ) -> None:
        """`stop_model_fault` says why the stop model that was asked for does not serve."""
        self.contents = contents
        self.stop_model = stop_model
        self.stop_model_fault = stop_model_fault
        self.model_fingerprint = stop_model.fingerprint if stop_model else ""
        self.kind = contents.kind
        self.dimension: int = contents.ivf.d
        self.lists: int = contents.ivf.nlist
        self.size = len(contents.ad_ids)
        self.ad_ids = contents.ad_ids
        self.columns = contents.columns
        self.calibration = contents.calibration
        self.fingerprint = contents.fingerprint
        self.encoder = contents.encoder
        self.view, self.exact_view = views_of(contents)
        self.list_sizes = self.view.sizes
        self.exhaustive = contents.rotation is None  # a search over every list finds everything
        self.cost = ScanCost(self.list_sizes)
        self.exact_cost = ScanCost(self.list_sizes)
        self._starts = np.concatenate(([0], np.cumsum(self.list_sizes)[:-1]))
        self._by_id = np.argsort(self.ad_ids, kind="stable")
        self._sorted_ids = self.ad_ids[self._by_id]
        self.everything = Admitted(None, self.list_sizes, self.size)

    def rows_of(self, ad_ids: Ints) -> Ints:
        """The rows that hold these ads, leaving out ids that the index does not have."""
        at = np.minimum(np.searchsorted(self._sorted_ids, ad_ids), self.size - 1)
        rows: Ints = self._by_id[at[self._sorted_ids[at] == ad_ids]]
        return rows

    def admit(self, mask: npt.NDArray[np.bool_]) -> Admitted:
        """The rows where `mask` (bool [size]) is true."""
        per_list = np.zeros(self.lists, dtype=np.int64)
        filled = self.list_sizes > 0
        per_list[filled] = np.add.reduceat(mask, self._starts[filled], dtype=np.int64)
        return Admitted(np.packbits(mask, bitorder="little"), per_list, int(per_list.sum()))

    def rank(self, query: Floats) -> Ints:
        """Every list from the nearest to `query` [d] on, as a search visits them: int64 [lists]."""
        view = self.exact_view  # whose centroids are not rotated
        distances = np.empty(self.lists, dtype=np.float32)
        flat_distances(query, view.centroids, distances)
        return np.argsort(distances, kind="stable")

    def warm(self) -> None:
        """Compiles the search, touches every vector and proves that the index answers.

        The first row must find itself or a copy; raises BundleError when it does not.
        """
        query = self.contents.vectors[:1]
        self.rank(query[0])
        policy = fixed(self.lists, self.calibration.depth)
        for measured in (False, True):
            started = time.perf_counter_ns()
            found = search(self.view, query, 1, policy)
            between = time.perf_counter_ns()
            distances, rows, _ = exhaustive(self.exact_view, query, 1)
            if measured:
                self.cost.add(between - started, self.size)
                self.exact_cost.add(time.perf_counter_ns() - between, self.size)
        for nearest, row in ((found.distances, found.rows), (distances, rows)):
            if row[0, 0] < 0 or not 1 - nearest[0, 0] / 2 >= 1 - UNIT_TOLERANCE:
                raise BundleError(f"{VECTORS_FILE}: a search for its first vector does not find it")


def views_of(contents: Contents) -> tuple[Lists, Lists]:
    """The lists as searches compare them, and as exact searches do."""
    found, rotation = centroids(contents.ivf), contents.rotation
    if rotation is None:
        view = lists_over(contents.vectors, contents.rows, contents.sizes, found)
        return view, view
    exact = lists_over(contents.vectors, contents.rows, contents.sizes, found @ rotation)
    return quantized_view(contents.ivf, rotation, contents.vectors), exact


def quantized_view(ivf: Any, rotation: Floats, vectors: Floats) -> Lists:
    """The lists of FAISS' quantized index; rotation and vectors as in `Contents`."""
    return lists_of(ivf.invlists, centroids(ivf), books=codewords(ivf), rotation=rotation, vectors=vectors)
