"""What a walk tells its rule after a node: the same in a live walk, in a replay and in training."""

from __future__ import annotations

from typing import Any

from ..compiled import compiled
from ..stopping import marginal, patience
from ..stopping.rules import MARGINAL
from ..stopping.state import AHEAD, BEST, BEST_AT, CODES, LAST, LAST_AT, LISTS, STABLE_AT, Floats, State

_marginal, _patience = marginal.decide, patience.decide


@compiled
def tell(
    seen: State,
    coarse: Floats,
    nodes: int,
    compared: float,
    best: float,
    last: float,
    best_at: int,
    last_at: int,
    stable_at: int,
    following: float,
    rung: int,
) -> None:
    """Writes the state after `nodes` expanded. How many vectors lie ahead, up to `rung` nodes, is not known:
    as many a node as until now. following: distance of the next candidate."""
    seen[LISTS], seen[CODES], seen[BEST], seen[LAST] = nodes, compared, best, last
    seen[BEST_AT], seen[LAST_AT], seen[STABLE_AT] = best_at, last_at, stable_at
    seen[AHEAD] = compared / nodes * (rung - nodes)
    coarse[1] = following


@compiled
def ask(rule: int, seen: State, coarse: Floats, memory: State, parameters: State, forest: Any) -> int:
    """Nodes after which to ask again, of the rules that are asked: MARGINAL and PATIENCE."""
    nothing = coarse[:0]
    if rule == MARGINAL:
        return _marginal(seen, coarse, nothing, nothing, memory, parameters, forest)
    return _patience(seen, coarse, nothing, nothing, memory, parameters, forest)
