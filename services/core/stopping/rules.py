"""The rules by name, and the one call through which a compiled search asks any of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..compiled import compiled
from ..trees.evaluator import COLUMN, HEAD, NODE, TREE, ForestArrays
from . import aps, darth, density, fixed, laet, marginal, patience
from .state import Floats, State

FIXED, DENSITY, MARGINAL, LAET, DARTH, APS, PATIENCE, RATIO = range(8)


def _nothing(dtype: np.dtype[Any], rows: int) -> npt.NDArray[Any]:
    """Read-only, as the arrays of a parsed forest are: one type, and so one compilation, for both."""
    array = np.zeros(rows, dtype=dtype)
    array.flags.writeable = False
    return array


NO_FOREST: ForestArrays = (_nothing(NODE, 0), _nothing(TREE, 0), _nothing(COLUMN, 0), _nothing(HEAD, 1))
"""For rules without a model: adds nothing."""

_aps, _darth, _density, _fixed = aps.decide, darth.decide, density.decide, fixed.decide
_laet, _marginal, _patience = laet.decide, marginal.decide, patience.decide


@compiled
def decide(
    rule: int,
    seen: State,
    coarse: Floats,
    margins: Floats,
    query: Floats,
    memory: State,
    parameters: State,
    forest: Any,
) -> int:
    """What the rule of that number says; see `state`."""
    if rule == MARGINAL:
        return _marginal(seen, coarse, margins, query, memory, parameters, forest)
    if rule == DENSITY:
        return _density(seen, coarse, margins, query, memory, parameters, forest)
    if rule == LAET:
        return _laet(seen, coarse, margins, query, memory, parameters, forest)
    if rule == DARTH:
        return _darth(seen, coarse, margins, query, memory, parameters, forest)
    if rule == APS:
        return _aps(seen, coarse, margins, query, memory, parameters, forest)
    if rule == PATIENCE:
        return _patience(seen, coarse, margins, query, memory, parameters, forest)
    return _fixed(seen, coarse, margins, query, memory, parameters, forest)
