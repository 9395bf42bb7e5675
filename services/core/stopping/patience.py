"""Rule: stop when the result has not changed for a number of lists.

F. Busolin, C. Lucchese, F. M. Nardini, S. Orlando, R. Perego, S. Trani, "Early Exit Strategies for
Approximate k-NN Search in Dense Retrieval" (CIKM 2024, arXiv 2408.04981): stop after Delta consecutive lists
with each of which at least 95 % of the k nearest stayed. The rule asks again exactly when the present calm
would have lasted Delta.
"""

from __future__ import annotations

from typing import Any

from ..compiled import compiled
from .state import BEST_AT, STABLE_AT, Floats, State


@compiled
def decide(
    seen: State, coarse: Floats, margins: Floats, query: Floats, memory: State, parameters: State, forest: Any
) -> int:
    """See `state`. parameters: [Delta, 1 to watch only the best]."""
    changed = seen[BEST_AT] if parameters[1] != 0 else seen[STABLE_AT]
    return int(changed + parameters[0])
