"""The scorer on disk and in memory: a bundle of kind "scorer" with encoder, tokenizer and calibrator.

Two fingerprints, because two things depend on them. `encoder` covers weights, tokenizer and recipe: an
index is bound to it, and vectors of unequal encoders must not be compared. `scorer` covers the
calibrator: a new fit changes click probabilities but leaves every index valid.

A successful load proves nothing, so the bundle carries golden vectors: fixed texts with the vectors that
the same weights gave in float arithmetic where the bundle was built. An encoder that strays from them
does not serve: its kernels are wrong on this machine, or its files are mixed up.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models.scorer.calibration import Calibration
from models.scorer.encoder import ENGINE_FILES, TOKENIZER_FILE, Encoder, EncoderError, Recipe, Vectors
from services.runtime.bundles import Bundle, Meta, open_bundle, write_bundle
from services.runtime.errors import BundleError

KIND = "scorer"
ENCODER_FILES = (*ENGINE_FILES, TOKENIZER_FILE)
CALIBRATOR_FILE = "calibrator.json"
GOLDEN_FILE = "golden.json"
GOLDEN_TEXTS = (
    "laser printer toner",
    "running shoes for women",
    "cheap flights to rome in may",
    'Notebook 39.6 cm (15.6") 8 GB RAM, 256 GB SSD, Windows',
)
MAX_BYTES = 2 << 30

# INT8 against float of the same weights: 0.997 with VNNI, 0.995 on kernels that saturate. Wrong weights:
# below 0.5.
_MIN_GOLDEN_COSINE = 0.99


@dataclass(frozen=True)
class Scorer:
    """A loaded bundle, ready to serve."""

    encoder: Encoder
    calibration: Calibration
    encoder_fingerprint: str
    scorer_fingerprint: str


def load_scorer(folder: Path, threads: int) -> Scorer:
    """Verifies the bundle at `folder`, loads it, runs every width once and checks the golden vectors.

    threads: of the encoder, 1 or more. Raises BundleError. Files that may be hostile are to be loaded in
    a child first: `parse_in_child(PROBE, folder, ...)`.
    """
    bundle = open_bundle(folder, KIND, max_bytes=MAX_BYTES)
    recipe = _recipe(bundle)
    calibrator = bundle.read(CALIBRATOR_FILE)
    try:
        calibration = Calibration.from_json(calibrator)
    except ValueError as error:
        raise BundleError(f"{folder / CALIBRATOR_FILE}: {error}") from error
    files = {name: bundle.read(name) for name in ENCODER_FILES}
    try:
        encoder = Encoder(files, recipe, threads)
        _warm(encoder)
        check_golden(encoder, bundle.read(GOLDEN_FILE), bundle.path(GOLDEN_FILE))
    except EncoderError as error:
        raise BundleError(f"{folder}: {error}") from error
    if bundle.meta.get("dimension") != encoder.dimension:
        said = bundle.meta.get("dimension")
        raise BundleError(f"{folder}: vectors have {encoder.dimension} numbers, the manifest says {said!r}")
    return Scorer(encoder, calibration, encoder_fingerprint(files, recipe), scorer_fingerprint(calibrator))


PROBE = "models.scorer.bundle:probe"


def probe(folder: Path) -> None:
    """The target of `parse_in_child`: loads once and lets go."""
    load_scorer(folder, threads=1)


def encoder_fingerprint(files: Mapping[str, bytes], recipe: Recipe) -> str:
    """Fingerprint of weights, tokenizer and recipe, 32 hexadecimal digits."""
    hashes = {name: hashlib.sha256(files[name]).hexdigest() for name in ENCODER_FILES}
    canonical = json.dumps([hashes, recipe.to_json()], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


def scorer_fingerprint(calibrator: bytes) -> str:
    """Fingerprint of the calibrator file, 32 hexadecimal digits."""
    return hashlib.sha256(calibrator).hexdigest()[:32]


def golden_document(reference: Encoder) -> bytes:
    """The content of golden.json: GOLDEN_TEXTS and their vectors by a float32 encoder."""
    vectors = reference.encode(GOLDEN_TEXTS)
    rows = [[round(float(value), 6) for value in vector] for vector in vectors]
    return json.dumps({"texts": GOLDEN_TEXTS, "vectors": rows}).encode()


def scorer_meta(encoder: Encoder, files: Mapping[str, bytes], source: str) -> Meta:
    """The metadata of a scorer bundle; `source` says where the weights came from."""
    return {
        "dimension": encoder.dimension,
        "encoder": encoder_fingerprint(files, encoder.recipe),
        "recipe": encoder.recipe.to_json(),
        "source": source,
    }


def replace_calibrator(folder: Path, calibration: Calibration) -> None:
    """Puts another calibrator into the bundle at `folder`; the encoder stays.

    Raises BundleError, also when the disk refuses; the bundle is then as it was.
    """
    bundle = open_bundle(folder, KIND, max_bytes=MAX_BYTES)
    files = {name: bundle.read(name) for name in (*ENCODER_FILES, GOLDEN_FILE)}
    files[CALIBRATOR_FILE] = calibration.to_json().encode()
    with write_bundle(folder, KIND, dict(bundle.meta)) as staging:
        for name, content in files.items():
            (staging / name).write_bytes(content)


def _recipe(bundle: Bundle) -> Recipe:
    try:
        return Recipe(**bundle.meta["recipe"])
    except (KeyError, TypeError, ValueError) as error:
        raise BundleError(f"{bundle.folder}: its recipe is missing or unknown: {error}") from error


def _warm(encoder: Encoder) -> None:
    """Runs every width, the longest included, so that the first callers do not pay for set-up."""
    step, longest = encoder.recipe.width_step, encoder.recipe.max_tokens
    filler = encoder.tokenize("a")[1:-1]
    for width in range(step, longest + 1, step):
        encoder.forward([filler * width])


def check_golden(encoder: Encoder, document: bytes, source: Path) -> None:
    """Raises BundleError, naming `source`, unless the encoder gives about the golden vectors."""
    try:
        parsed = json.loads(document)
        texts = [str(text) for text in parsed["texts"]]
        golden: Vectors = np.array(parsed["vectors"], np.float32)
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{source}: unreadable: {error}") from error
    if not texts or golden.shape != (len(texts), encoder.dimension):
        raise BundleError(f"{source}: {len(texts)} texts with vectors of shape {golden.shape}")
    cosines = (encoder.encode(texts) * golden).sum(axis=1)
    worst = int(cosines.argmin())
    if not cosines[worst] >= _MIN_GOLDEN_COSINE:
        raise BundleError(
            f"{source}: {texts[worst]!r} has a cosine of {cosines[worst]:.4f} to its golden vector, below "
            f"{_MIN_GOLDEN_COSINE}: the engine errs on this machine, or files are mixed up"
        )
