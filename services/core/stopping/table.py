"""Calibrated policies: which rule, with which parameters, reaches a recall target on one index.

For every calibrated k and target the table holds the fixed budget that reaches it, and, where it was trained,
the threshold of the marginal rule and its cap. It is written beside the model (`to_json`), and read back by
whoever serves; `policy` is all that a search needs from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..trees.evaluator import ForestArrays
from . import marginal
from .policy import Policy, fixed
from .rules import DENSITY, MARGINAL, NO_FOREST

RULES = ("fixed", "density", "marginal")
MEAN = 0.0
"""In place of a share: the target is the mean recall over queries."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Point:
    """One calibrated operating point.

    recall: of the k nearest. share: of the queries that must reach it, or MEAN. lists: the fixed budget; cap:
    most lists of one query; rule: the cheapest of RULES in calibration; log_threshold, exponent, mix: of that
    rule (the last two of `density`). reached: mean recall; codes: mean vectors compared, both in calibration.
    """

    k: int
    recall: float
    share: float
    lists: int
    rule: str
    log_threshold: float
    exponent: float
    mix: float
    cap: int
    reached: float
    codes: float


@dataclass(frozen=True, slots=True)
class Table:
    """Points of one index, and the parts of the marginal rule that they share.

    depth: candidates that a quantized index re-ranks. starts: for each k, the terms of its log-linear start.
    band: distance from the threshold within which the forest is asked.
    """

    points: tuple[Point, ...]
    starts: Mapping[int, tuple[float, ...]]
    band: float
    depth: int

    def point(self, k: int, recall: float, share: float = MEAN) -> Point | None:
        """The cheapest point of the least calibrated k that is not below `k` which promises this; None: there
        is none.

        A point of mean recall does not stand for one of coverage, nor the reverse.
        """
        fit = [
            point
            for point in self.points
            if point.k >= k
            and point.recall >= recall - _ROUNDING
            and (point.share == MEAN if share == MEAN else point.share >= share - _ROUNDING)
        ]
        return min(fit, key=lambda point: (point.k, point.recall, point.share), default=None)

    def policy(self, point: Point, forest: ForestArrays = NO_FOREST) -> Policy:
        """The policy of a point; `forest` is the model's, asked by the marginal rule only."""
        if point.rule == "marginal":
            parameters = marginal.parameters(point.log_threshold, self.band, point.k, self.starts[point.k])
            return Policy(MARGINAL, parameters, point.cap, forest, self.depth)
        if point.rule == "density":
            parameters = np.array([point.log_threshold, point.exponent, point.mix])
            return Policy(DENSITY, parameters, point.cap, depth=self.depth)
        return fixed(point.lists, self.depth)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "points": [asdict(point) for point in self.points],
            "starts": {str(k): list(terms) for k, terms in self.starts.items()},
            "band": self.band,
            "depth": self.depth,
        }

    @classmethod
    def of_bundle(cls, meta: Mapping[str, Any], index: str, lists: int) -> Table:
        """The table in the metadata of a model bundle, for the index with this fingerprint and so many lists.

        Raises ValueError when the model was trained for another index, or the table is not a valid one.
        """
        trained_for = meta.get("index")
        if trained_for != index:
            raise ValueError(f"index: the model was trained for {trained_for!r}, this one is {index!r}")
        return cls.from_json(meta.get("table", {}), lists)

    @classmethod
    def from_json(cls, document: Mapping[str, Any], lists: int) -> Table:
        """The table of an index with so many lists; ValueError unless the document is a valid one."""
        try:
            points = tuple(Point(**point) for point in document["points"])
            starts = {int(k): tuple(map(float, terms)) for k, terms in document["starts"].items()}
            table = cls(points, starts, float(document["band"]), int(document["depth"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"table of stop policies: {error!r}") from error
        for point in points:
            _check(point, starts, lists)
        if not all(len(terms) == marginal.TERMS and np.isfinite(terms).all() for terms in starts.values()):
            raise ValueError(f"starts: not {marginal.TERMS} finite terms each")
        if not table.band >= 0 or not 0 <= table.depth <= MAX_DEPTH:
            raise ValueError(f"band {table.band} or depth {table.depth} out of range")
        return table


MAX_DEPTH = 100_000


def _check(point: Point, starts: Mapping[int, Sequence[float]], lists: int) -> None:
    numbers = (point.log_threshold, point.exponent, point.mix, point.codes)
    if not all(isinstance(value, int) for value in (point.k, point.lists, point.cap)):
        raise ValueError(f"{point}: k, lists and cap are integers")
    if not np.isfinite(numbers).all() or not 0 <= point.reached <= 1:
        raise ValueError(f"{point}: a figure is not finite, or a recall not in 0..1")
    if not (point.k >= 1 and 0 < point.recall <= 1 and 0 <= point.share < 1):
        raise ValueError(f"{point}: k, recall or share out of range")
    if not 1 <= point.lists <= lists or not 1 <= point.cap <= lists:
        raise ValueError(f"{point}: lists and cap must be 1..{lists}")
    if point.rule not in RULES or (point.rule == "marginal" and point.k not in starts):
        raise ValueError(f"{point}: rule must be one of {', '.join(RULES)}, marginal with a start for its k")
