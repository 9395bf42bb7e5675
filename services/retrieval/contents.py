"""What an index bundle holds, read and checked file by file, without searching anything.

Files: the inverted lists as FAISS writes them (`vectors`), the ad ids by row, the attribute columns, the
calibration; for quantized lists besides the rotation before them and the vectors themselves.

The seal. Calibration promises recalls, and a promise holds for the very files it was measured on: the
calibration document therefore names the SHA-256 of every other file, and is itself only read in the exact
form in which it was written, which ends with its own digest. So a file that was altered, or that comes from
another build, is refused even where the manifest of the bundle was made to fit. Cheap, so it comes before
anything is parsed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from services.retrieval import attributes
from services.retrieval.calibration import CALIBRATION_FILE, Calibration
from services.retrieval.kernels import limit_loading, list_sizes, use_one_thread
from services.retrieval.vectors import (
    IVF_FLAT,
    IVF_PQ,
    ROTATION_FILE,
    STORED_FILE,
    VECTORS_FILE,
    check_rotation,
    check_stored,
    read_flat,
    read_quantized,
    take_vectors,
)
from services.runtime.bundles import MANIFEST, Bundle, open_bundle
from services.runtime.errors import BundleError

KIND = "index"
IDS_FILE = "ad_ids.npy"

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Contents:
    """The parts of a sound bundle.

    ivf: FAISS' index, whose lists are empty where they held the vectors themselves. vectors: float32 [n, d],
    of unit length, in the order of rows. rows: 0..n-1. sizes: of the lists. rotation: [d, d], of queries of
    quantized lists; None for flat ones.
    """

    ivf: Any
    vectors: Floats
    rows: Ints
    sizes: Ints
    rotation: Floats | None
    ad_ids: Ints
    columns: attributes.Columns
    calibration: Calibration
    fingerprint: str
    encoder: str

    @property
    def kind(self) -> str:
        """Kind of index: ivf_flat or ivf_pq."""
        return IVF_FLAT if self.rotation is None else IVF_PQ


def seal(document: Mapping[str, Any], hashes: Mapping[str, str]) -> bytes:
    """The calibration document as it is written, bound to the files with these SHA-256."""
    bound = {**document, "measured_on": dict(hashes)}
    return _canonical({**bound, "digest": hashlib.sha256(_canonical(bound)).hexdigest()})


def check_seal(bundle: Bundle) -> dict[str, Any]:
    """The calibration document of a bundle; BundleError unless it was measured on these very files."""
    data = bundle.read(CALIBRATION_FILE)
    document = attributes.parse_json(data, CALIBRATION_FILE)
    measured_on = document.pop("measured_on", None)
    document.pop("digest", None)
    if not isinstance(measured_on, dict):
        raise BundleError(f"{CALIBRATION_FILE}: names no files; build the index again")
    if seal(document, measured_on) != data:
        raise BundleError(f"{CALIBRATION_FILE}: altered since it was measured")
    for name, found in hashes_of(bundle.folder).items():
        if measured_on.get(name) != found:
            raise BundleError(f"{name}: not the file that {CALIBRATION_FILE} was measured on")
    return document


def hashes_of(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a bundle but its manifest and the calibration."""
    hashes = {}
    for path in sorted(folder.iterdir()):
        if path.name not in (MANIFEST, CALIBRATION_FILE):
            with path.open("rb") as stream:
                hashes[path.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return hashes


def read_contents(bundle: Bundle, document: dict[str, Any]) -> Contents:
    """Parses a verified bundle and checks that its parts fit; raises BundleError naming file and fault.

    `document` is what `check_seal` returned for it.
    """
    ad_ids = attributes.parse_array(bundle.read(IDS_FILE), IDS_FILE, np.int64)
    if not ad_ids.size or ad_ids.min() < 1 or np.unique(ad_ids).size != ad_ids.size:
        raise BundleError(f"{IDS_FILE}: ids must be positive and distinct, and there must be some")
    kind, n = bundle.meta.get("index_kind"), ad_ids.size
    rotation: Floats | None = None
    if kind == IVF_FLAT:
        ivf = read_flat(bundle.read(VECTORS_FILE), n)
        sizes = list_sizes(ivf)
        vectors = take_vectors(ivf)
    elif kind == IVF_PQ:
        ivf = read_quantized(bundle.read(VECTORS_FILE), n)
        sizes = list_sizes(ivf)
        shape = (ivf.d, ivf.d)
        rotation = attributes.parse_array(bundle.read(ROTATION_FILE), ROTATION_FILE, np.float32, shape)
        vectors = attributes.parse_array(bundle.read(STORED_FILE), STORED_FILE, np.float32, (n, ivf.d))
        check_rotation(rotation)
        check_stored(vectors)
    else:
        raise BundleError(f"manifest: an index of kind {kind!r}, not {IVF_FLAT} or {IVF_PQ}")
    columns = attributes.load(bundle.read, n)
    calibration = Calibration.from_json(document, ivf.nlist, exhaustive=rotation is None)
    encoder = bundle.meta.get("encoder")
    if not isinstance(encoder, str) or not encoder:
        raise BundleError("manifest: meta has no encoder fingerprint")
    rows = np.arange(n, dtype=np.int64)
    return Contents(
        ivf, vectors, rows, sizes, rotation, ad_ids, columns, calibration, bundle.fingerprint, encoder
    )


def try_load(folder: Path) -> Contents:
    """Parses the bundle in `folder`; what the throw-away process runs before the server does.

    As large as it is: the server has verified the size against its own limit, whoever built it needs none.
    """
    use_one_thread()
    max_bytes = sum(path.stat().st_size for path in folder.iterdir())
    limit_loading(max_bytes)
    bundle = open_bundle(folder, KIND, max_bytes=max_bytes)
    return read_contents(bundle, check_seal(bundle))


def _canonical(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
