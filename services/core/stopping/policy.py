"""A rule with everything it needs: what a search is given."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..trees.evaluator import ForestArrays
from .rules import FIXED, NO_FOREST
from .state import State


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """A rule of `rules` by number, its parameters (float64, meaning set by the rule) and its model.

    The first parameter of every rule is its knob: the one that decides how much is searched.

    cap: lists that no query exceeds. depth: candidates that a quantized index re-ranks exactly.
    """

    rule: int
    parameters: State
    cap: int
    forest: ForestArrays = NO_FOREST
    depth: int = 0


def fixed(lists: int, depth: int = 0) -> Policy:
    """The same number of lists for every query; with every list of the index, the exact search."""
    return Policy(FIXED, np.array([float(lists)]), lists, depth=depth)
