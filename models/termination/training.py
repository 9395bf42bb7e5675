"""From an index and queries to a bundle: record, train, calibrate, test, write.

Queries are split at random into three: to train the gain model, to calibrate thresholds, and to test what
they reach. The bundle is bound to the index by its fingerprint, for a threshold means nothing on another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from models.termination.calibration import Family, Outcome, Target, marginal_family, points
from models.termination.gain import GainModel, train
from models.termination.labels import nearest_distances
from services.core.ivf.memory import Lists
from services.core.ivf.search import record
from services.core.stopping.marginal import FEATURES
from services.core.stopping.replay import Trace
from services.core.stopping.rules import DENSITY, NO_FOREST
from services.core.stopping.table import Point, Table
from services.runtime.errors import UserError
from services.runtime.forests import write_forest

KIND = "termination"
MIN_QUERIES = 300
SHARES = (0.4, 0.3, 0.3)
"""Of the queries: to train, to calibrate, to test."""
_DRAWS = 400

Floats = npt.NDArray[np.float32]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Achieved:
    """A calibrated point on the test split: mean recall, its 95 % interval, the share of queries that reach
    the recall of the target, and mean vectors compared, beside those of the fixed budget."""

    point: Point
    recall: float
    low: float
    high: float
    coverage: float
    codes: float
    fixed_codes: float


@dataclass(frozen=True)
class Trained:
    """A model with its calibrated policies and what they reached."""

    model: GainModel
    table: Table
    achieved: list[Achieved]


def split(count: int, seed: int) -> tuple[npt.NDArray[np.int64], ...]:
    """Row numbers of the three parts."""
    order = np.random.default_rng(seed).permutation(count)
    first = int(SHARES[0] * count)
    return (
        order[:first],
        order[first : first + int(SHARES[1] * count)],
        order[first + int(SHARES[1] * count) :],
    )


def train_termination(
    lists: Lists,
    vectors: Floats,
    queries: Floats,
    ks: Sequence[int],
    targets: Sequence[Target],
    seed: int,
    progress: Progress,
    *,
    depth: int = 0,
    width: int | None = None,
) -> Trained:
    """Trains and calibrates the policies of an index.

    vectors: float32 [n, d], what the index holds, in any order; queries: float32 [q, d], before any rotation.
    width: lists that searches are recorded over, by default half of them: no policy visits more. depth:
    candidates re-ranked by a quantized index. Raises UserError for fewer than 300 queries.
    """
    if len(queries) < MIN_QUERIES:
        raise UserError(f"queries: {len(queries)}; training a stop model needs at least {MIN_QUERIES}")
    width = max(1, len(lists.sizes) // 2) if width is None else width
    progress("label", 0, len(queries))
    near = nearest_distances(queries, vectors, ks, lambda done, total: progress("label", done, total))
    learn, tune, test = split(len(queries), seed)

    def traced(part: npt.NDArray[np.int64], row: int) -> Trace:
        return record(lists, np.ascontiguousarray(queries[part]), ks[row], depth, near[row, part], width)

    progress("record", 0, len(ks))
    model = train({k: traced(learn, row) for row, k in enumerate(ks)}, seed)
    chosen: list[Point] = []
    achieved: list[Achieved] = []
    for row, k in enumerate(ks):
        found = points(traced(tune, row), k, targets, model)
        chosen += found
        trace = traced(test, row)
        achieved += [achieve(trace, point, model, seed) for point in found]
        progress("calibrate", row + 1, len(ks))
    return Trained(model, Table(tuple(chosen), model.starts, model.band, depth), achieved)


def achieve(trace: Trace, point: Point, model: GainModel, seed: int) -> Achieved:
    """What a point reaches on the searches of a test split."""
    everyone = np.full(len(trace.seen), point.lists, dtype=np.int64)
    fixed = Outcome.at(trace, point.k, everyone, np.zeros_like(everyone))
    outcome = outcome_of(trace, point, model) if point.rule != "fixed" else fixed
    draws = np.random.default_rng(seed).integers(0, len(everyone), (_DRAWS, len(everyone)))
    low, high = np.percentile(outcome.recalls[draws].mean(axis=1), (2.5, 97.5))
    coverage = (outcome.recalls >= point.recall - 1e-9).mean()
    return Achieved(
        point, float(outcome.recalls.mean()), float(low), float(high), float(coverage),
        float(outcome.codes.mean()), float(fixed.codes.mean()),
    )  # fmt: skip


def outcome_of(trace: Trace, point: Point, model: GainModel) -> Outcome:
    """What an adaptive point does on recorded searches."""
    if point.rule == "marginal":
        family = marginal_family(model, point.k)
    else:
        parameters = np.array([point.log_threshold, point.exponent, point.mix])
        family = Family("density", DENSITY, lambda _knob: parameters, 0.0, 0.0, NO_FOREST)
    return family.outcome(trace, point.k, -point.log_threshold, point.cap)


def write_termination(
    folder: Path, trained: Trained, index_fingerprint: str, meta: Mapping[str, object]
) -> None:
    """Writes the bundle: LightGBM's model with golden rows, and in its metadata `index` and `table`.

    Raises BundleError when our evaluator reads the model differently from LightGBM, UserError when `folder`
    holds something else.
    """
    write_forest(
        folder,
        KIND,
        trained.model.model,
        feature_names=FEATURES,
        golden_rows=trained.model.golden_rows,
        trainer_predictions=trained.model.golden,
        meta={**meta, "index": index_fingerprint, "table": trained.table.to_json()},
    )
