"""Rule: a number of lists set in advance, the same for every query.

The baseline of all rules and what serves when none can: parameters[0] is the least number of lists that
reached the target in calibration. With every list of the index it is the exact search.
"""

from __future__ import annotations

from typing import Any

from ..compiled import compiled
from .state import Floats, State


@compiled
def decide(
    seen: State, coarse: Floats, margins: Floats, query: Floats, memory: State, parameters: State, forest: Any
) -> int:
    """See `state`. parameters: [lists]."""
    return int(parameters[0])
