"""The immutable index: IVF-Flat by inner product over unit vectors, with ids, attributes and calibration.

Rows are stored in list order: list l holds rows start[l]..start[l+1]-1, in that order, and `ad_ids`, the
attribute columns and filter bitmaps are indexed by row. So a bitmap yields the admitted ads of every list by
one `reduceat`, and the work of a search is known from the lists it visits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from services.retrieval import attributes, kernels
from services.retrieval.calibration import CALIBRATION_FILE, Calibration
from services.retrieval.vectors import UNIT_TOLERANCE, VECTORS_FILE, read_vectors, stored_vectors
from services.runtime.bundles import Bundle, open_bundle
from services.runtime.errors import BundleError

KIND = "index"
INDEX_KIND = "ivf_flat"
IDS_FILE = "ad_ids.npy"

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
        self,
        ivf: Any,
        ad_ids: Ints,
        columns: attributes.Columns,
        calibration: Calibration,
        fingerprint: str,
        encoder: str,
    ) -> None:
        self._ivf = ivf
        self.dimension: int = ivf.d
        self.lists: int = ivf.nlist
        self.size = len(ad_ids)
        self.ad_ids = ad_ids
        self.columns = columns
        self.calibration = calibration
        self.fingerprint = fingerprint
        self.encoder = encoder
        self.list_sizes = kernels.list_sizes(ivf)
        self._starts = np.concatenate(([0], np.cumsum(self.list_sizes)[:-1]))
        self._by_id = np.argsort(ad_ids, kind="stable")
        self._sorted_ids = ad_ids[self._by_id]
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

    def rank(self, queries: Floats, width: int) -> Ints:
        """The `width` nearest lists of each query [rows, dimension], nearest first."""
        return kernels.rank_lists(self._ivf, queries, width)

    def scan(self, queries: Floats, keys: Ints, k: int, admitted: Admitted) -> tuple[Floats, Ints]:
        """Compares each query with the admitted ads of its lists.

        Shapes and results as in `kernels.scan`; rows are rows of this index.
        """
        return kernels.scan(self._ivf, queries, keys, k, admitted.bitmap)

    def warm(self) -> None:
        """Touches every vector and proves that the index answers: the first row must find itself or a copy.

        Raises BundleError when it does not.
        """
        query = next(vectors for vectors in stored_vectors(self._ivf) if len(vectors))[:1].copy()
        keys = np.arange(self.lists, dtype=np.int64)[None, :]
        similarities, found = self.scan(query, keys, 1, self.everything)
        if found[0, 0] < 0 or not similarities[0, 0] >= 1 - UNIT_TOLERANCE:
            raise BundleError(f"{VECTORS_FILE}: a search for its first vector does not find it")


def load_index(bundle: Bundle) -> LoadedIndex:
    """Loads a verified bundle and checks that its parts fit; raises BundleError naming file and fault."""
    ad_ids = attributes.parse_array(bundle.read(IDS_FILE), IDS_FILE, np.int64)
    if not ad_ids.size or ad_ids.min() < 1 or np.unique(ad_ids).size != ad_ids.size:
        raise BundleError(f"{IDS_FILE}: ids must be positive and distinct, and there must be some")
    ivf = read_vectors(bundle.read(VECTORS_FILE), ad_ids.size)
    columns = attributes.load(bundle.read, ad_ids.size)
    document = attributes.parse_json(bundle.read(CALIBRATION_FILE), CALIBRATION_FILE)
    calibration = Calibration.from_json(document, ivf.nlist)
    encoder = bundle.meta.get("encoder")
    if not isinstance(encoder, str) or not encoder:
        raise BundleError("manifest: meta has no encoder fingerprint")
    return LoadedIndex(ivf, ad_ids, columns, calibration, bundle.fingerprint, encoder)


def try_load(folder: Path) -> None:
    """Loads and warms the bundle in `folder`; what the throw-away process runs before the server does."""
    kernels.use_one_thread()
    # The parent has verified the size against its own limit; the files cannot grow without a new hash.
    max_bytes = sum(path.stat().st_size for path in folder.iterdir())
    kernels.limit_loading(max_bytes)
    load_index(open_bundle(folder, KIND, max_bytes=max_bytes)).warm()
