"""The bundle of a learned decision: a boosted-tree model, and what proves that it is read and fed rightly.

A model that gets its features in another order, or one feature fewer, still predicts, and what it predicts
looks like any other number. So the bundle holds, beside the training library's own file, the feature names
in order, and golden rows with the raw score and the prediction of each:

1. `write_forest` evaluates the golden rows with the evaluator that will serve, and compares them with what
   the training library predicted: a model that we read differently is refused where it was trained;
2. `open_forest` compares the features with those the caller computes, and replays the golden rows: a model
   that this machine evaluates differently is refused before it decides anything.

Neither needs the training library. The kind of the bundle names the decision, so that a model of one cannot
be configured for another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from services.core.trees import Forest, ForestError, parse_forest
from services.runtime.bundles import (
    Bundle,
    Meta,
    check_replaceable,
    open_bundle,
    parse_in_child,
    write_bundle,
)
from services.runtime.errors import BundleError, shown

MODEL_FILE = "model"  # as the training library wrote it
GOLDEN_FILE = "golden.f64"  # little-endian doubles: per row its features, its raw score, its prediction
MAX_BYTES = 64 << 20
MAX_FEATURES = 4096
MAX_NAME_CHARS = 100
PROBE = "services.runtime.forests:try_load"
LINK_TOLERANCE = 4 * 2.0**-24  # relative; exp and log differ between C libraries, sums of leaves do not
_PROBE_TIMEOUT_S = 60.0  # the first process after an install compiles the kernels, too

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LoadedForest:
    """A verified model. `meta` is what the trainer recorded, with `feature_names`."""

    forest: Forest
    fingerprint: str
    meta: Meta


def write_forest(
    folder: Path,
    kind: str,
    model: bytes,
    *,
    feature_names: Sequence[str],
    golden_rows: Floats,
    meta: Meta,
    trainer_predictions: npt.NDArray[np.floating[Any]] | None = None,
) -> None:
    """Writes a bundle that replaces `folder`, after evaluating the model as a server will.

    model: a LightGBM text file, or an XGBoost JSON or UBJ file.
    feature_names: in the order of the columns the model was trained on.
    golden_rows: float64 [n, features], n at least 1; rows that reach many leaves, with the extremes and the
    missing values that occur.
    trainer_predictions: [n], what the training library's own `predict` gives for the golden rows; ours may
    differ from each by the share LINK_TOLERANCE.

    Raises BundleError when the model cannot be read, its features are not these, a golden prediction is not
    finite, or one differs from the trainer's; UserError when `folder` holds something else.
    """
    check_replaceable(folder, kind)
    forest = _parse(folder, model)
    _check_names(folder, feature_names)
    _check_features(folder, forest, feature_names)
    rows = np.ascontiguousarray(golden_rows, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != forest.feature_count or not len(rows):
        raise BundleError(
            f"{folder}: golden rows of shape {rows.shape}, not [1 or more, {forest.feature_count}]"
        )
    scores, predictions = forest.predict_raw(rows), forest.predict(rows)
    if not (np.isfinite(scores).all() and np.isfinite(predictions).all()):
        raise BundleError(f"{folder}: the prediction of a golden row is not finite")
    if trainer_predictions is not None:
        if trainer_predictions.shape != predictions.shape:
            raise BundleError(
                f"{folder}: trainer predictions of shape {trainer_predictions.shape}, not {predictions.shape}"
            )
        _compare(
            folder, "prediction", predictions, trainer_predictions, "the training library", LINK_TOLERANCE
        )
    golden = np.column_stack((rows, scores, predictions)).astype("<f8")
    with write_bundle(folder, kind, {**meta, "feature_names": list(feature_names)}) as staging:
        (staging / MODEL_FILE).write_bytes(model)
        (staging / GOLDEN_FILE).write_bytes(golden.tobytes())


def open_forest(folder: Path, kind: str, *, feature_names: Sequence[str]) -> LoadedForest:
    """Verifies and loads a bundle of `kind` for a caller that computes `feature_names`, in this order.

    Blocks for a second or more, as the model is first parsed in a throw-away process: call it in a thread.
    Raises BundleError naming the file and what is wrong; for features, the first that differs and its place.
    """
    bundle = open_bundle(folder, kind, max_bytes=MAX_BYTES)
    _compare_names(folder, _names_of(bundle), feature_names)
    parse_in_child(PROBE, folder, _PROBE_TIMEOUT_S)
    forest = _load(folder, bundle.read(MODEL_FILE), bundle.read(GOLDEN_FILE))
    _check_features(folder, forest, feature_names)
    return LoadedForest(forest, bundle.fingerprint, bundle.meta)


def try_load(folder: Path) -> None:
    """Parses the model and replays its golden rows: what the throw-away process runs first."""
    _load(folder, (folder / MODEL_FILE).read_bytes(), (folder / GOLDEN_FILE).read_bytes())


def _load(folder: Path, model: bytes, golden: bytes) -> Forest:
    forest = _parse(folder, model)
    width = forest.feature_count + 2
    if not golden or len(golden) % (8 * width):
        raise BundleError(
            f"{folder / GOLDEN_FILE}: {len(golden)} bytes are no rows of {forest.feature_count} features"
        )
    table = np.frombuffer(golden, dtype="<f8").astype(np.float64).reshape(-1, width)
    rows = np.ascontiguousarray(table[:, :-2])
    predictions = forest.predict(rows)
    alone = np.array([forest.predict_one(row) for row in rows])
    there = "the machine that wrote it"
    _compare(folder, "raw score", forest.predict_raw(rows), table[:, -2], there, 0.0)
    _compare(folder, "prediction", predictions, table[:, -1], there, LINK_TOLERANCE)
    _compare(folder, "prediction alone", alone, predictions, "the batch", 0.0)
    return forest


def _compare(
    folder: Path, what: str, found: Floats, expected: npt.NDArray[Any], where: str, tolerance: float
) -> None:
    with np.errstate(invalid="ignore"):  # infinities, which no sound bundle holds
        wrong = np.flatnonzero(~(np.abs(found - expected) <= tolerance * np.abs(expected)))
    if wrong.size:
        row = wrong[0]
        raise BundleError(
            f"{folder}: the {what} of golden row {row} is {found[row]}, but {expected[row]} by {where}"
        )


def _parse(folder: Path, model: bytes) -> Forest:
    try:
        return parse_forest(model)
    except ForestError as error:
        raise BundleError(f"{folder / MODEL_FILE}: {error}") from error


def _names_of(bundle: Bundle) -> list[str]:
    names = bundle.meta.get("feature_names")
    if not isinstance(names, list):
        raise BundleError(f"{bundle.folder}: meta.feature_names must be a list")
    _check_names(bundle.folder, names)
    return names


def _check_names(folder: Path, names: Sequence[object]) -> None:
    if not 1 <= len(names) <= MAX_FEATURES:
        raise BundleError(f"{folder}: {len(names)} feature names, must be 1..{MAX_FEATURES}")
    seen: set[str] = set()
    for place, name in enumerate(names):
        if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_CHARS:
            raise BundleError(
                f"{folder}: feature {place} is called {shown(name)}, "
                f"must be a text of 1..{MAX_NAME_CHARS} characters"
            )
        if name in seen:
            raise BundleError(f"{folder}: feature {place} is called {shown(name)} like one before it")
        seen.add(name)


def _check_features(folder: Path, forest: Forest, names: Sequence[str]) -> None:
    if forest.feature_count != len(names):
        raise BundleError(f"{folder}: the model has {forest.feature_count} features, {len(names)} are named")
    # What LightGBM and XGBoost call the columns of an array.
    if forest.feature_names not in (
        tuple(f"{prefix}{place}" for place in range(len(names))) for prefix in ("Column_", "f")
    ):
        _compare_names(folder, forest.feature_names, names)


def _compare_names(folder: Path, model: Sequence[str], computed: Sequence[str]) -> None:
    """Raises BundleError at the first place where the model's features are not those computed."""
    for place, (trained, given) in enumerate(zip(model, computed, strict=False)):
        if trained != given:
            raise BundleError(
                f"{folder}: feature {place} of the model is {shown(trained)}, but {shown(given)} is computed"
            )
    if len(model) != len(computed):
        place = min(len(model), len(computed))
        longer, whose = (model, "the model") if len(model) > place else (computed, "what is computed")
        raise BundleError(
            f"{folder}: the model has {len(model)} features, {len(computed)} are computed; "
            f"feature {place} is {shown(longer[place])} and only in {whose}"
        )
