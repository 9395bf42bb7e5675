"""The learned stop model: policies calibrated for one index, out of a bundle that is bound to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.core.stopping.marginal import FEATURES
from services.core.stopping.policy import Policy
from services.core.stopping.state import WATCHED
from services.core.stopping.table import MEAN, Point, Table
from services.core.trees.evaluator import ForestArrays
from services.runtime.errors import BundleError
from services.runtime.forests import open_forest

KIND = "termination"


@dataclass(frozen=True, slots=True)
class Chosen:
    """A calibrated point and the policy that reaches it."""

    point: Point
    policy: Policy


class StopModel:
    """The policies of one index, each made once. Immutable."""

    def __init__(self, table: Table, forest: ForestArrays, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self._table = table
        self._policies = {point: table.policy(point, forest) for point in table.points}

    def choose(self, k: int, recall: float, share: float = MEAN) -> Chosen | None:
        """The policy that promises this for the k nearest; None: the model has none.

        Between two calibrated k the dearer point counts, for the one nearest is often harder to find than
        most of ten. That needs rules that watch the same neighbours, as those for k up to 10 do.
        """
        points = [self._table.point(k, recall, share)]
        if k <= WATCHED:
            below = max((point.k for point in self._table.points if point.k < k), default=None)
            if below is not None:
                points.append(self._table.point(below, recall, share))
        if None in points:
            return None
        point = max((point for point in points if point is not None), key=lambda point: point.codes)
        return Chosen(point, self._policies[point])


def load_stop_model(folder: Path, index: str, lists: int, depth: int) -> StopModel:
    """The model in `folder` for the index with this fingerprint, number of lists and re-ranking depth.

    Blocks for a second or more (see `open_forest`). Raises BundleError when the bundle is not sound, or was
    trained for another index.
    """
    loaded = open_forest(folder, KIND, feature_names=FEATURES)
    try:
        table = Table.of_bundle(loaded.meta, index, lists)
    except ValueError as error:
        raise BundleError(f"{folder}: {error}") from error
    if table.depth != depth:
        raise BundleError(f"{folder}: calibrated with {table.depth} candidates, the index re-ranks {depth}")
    return StopModel(table, loaded.forest.arrays, loaded.fingerprint)
