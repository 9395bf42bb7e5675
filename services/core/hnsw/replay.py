"""What a rule would have done in walks that were recorded, without walking again.

A walk expands the same nodes in the same order whatever ends it, so the states after every node, recorded
once per query by a walk that ends at the cap, give every rule's nodes, vectors compared and model calls for
any parameters, exactly, at the cost of the decisions alone. A fixed beam is no exception: it ends where as
many expanded nodes as it is wide are nearer than the next candidate, which the record counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..compiled import compiled
from ..stopping.ratio import reach
from ..stopping.rules import FIXED, MARGINAL, NO_FOREST, PATIENCE
from ..stopping.state import ASKED, MEMORY, SLOTS, State, next_rung
from .asking import ask, tell

_ROOM = 1.1  # width of a trace over that of the widest beam tried on it

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


class Trace(NamedTuple):
    """Walks of q queries over at most `width` nodes; after each node expanded, [q, width]:

    following: float32, distance of the next candidate. best, last: of the nearest and the farthest watched.
    codes: int32, vectors compared. nearer: int32, expanded nodes nearer than the next candidate. entered:
    uint8, vectors that entered the watched set (255 for more). found: int16, of the k true neighbours.

    first: float32 [q], distance of the node where the walk started. steps: int64 [q], nodes that it expanded.
    """

    following: Floats
    best: Floats
    last: Floats
    codes: npt.NDArray[np.int32]
    nearer: npt.NDArray[np.int32]
    entered: npt.NDArray[np.uint8]
    found: npt.NDArray[np.int16]
    first: Floats
    steps: Ints

    @property
    def width(self) -> int:
        """Most nodes of a walk."""
        return int(self.found.shape[1])

    def part(self, rows: slice) -> Trace:
        """The walks of some queries."""
        return Trace._make(array[rows] for array in self)

    def compared(self, nodes: Ints) -> npt.NDArray[np.float64]:
        """Vectors compared by walks that expanded these numbers of nodes: [q]."""
        codes: npt.NDArray[np.float64] = self.codes[np.arange(len(nodes)), nodes - 1].astype(np.float64)
        return codes

    def replay(self, k: int, rule: int, parameters: State, forest: Any, cap: int) -> tuple[Ints, Ints]:
        """Nodes that each query expands, and the evaluations of its model: int64 [q] each."""
        asked = np.zeros(len(self.steps), dtype=np.int64)
        return nodes_expanded(self, k, rule, parameters, forest, cap, asked), asked

    def least_budget(self, k: int, reached: Callable[[npt.NDArray[np.float64]], bool]) -> int | None:
        """The least width of a beam with whose recalls [q] `reached` is content; None: none is.

        Beams are tried up to a little less than the width of the trace, for one expands some nodes more than
        it is wide.
        """
        rows = np.arange(len(self.steps))

        def enough(ef: int) -> bool:
            nodes, _ = self.replay(k, FIXED, np.array([float(ef)]), NO_FOREST, self.width)
            return reached(self.found[rows, nodes - 1] / float(k))

        low, high = 0, max(1, int(self.width / _ROOM))
        if not enough(high):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high


@compiled
def nodes_expanded(
    trace: Trace, k: int, rule: int, parameters: State, forest: Any, cap: int, asked: Ints
) -> Ints:
    """Nodes that each query expands, int64 [q], and the evaluations of its model into `asked` [q].

    `cap` ends every walk, at most the width of the trace.
    """
    count = trace.steps.size
    expanded = np.empty(count, dtype=np.int64)
    seen, memory = np.zeros(SLOTS), np.empty(MEMORY)
    coarse = np.empty(2, dtype=np.float32)
    log_g, mix = parameters[-2] if parameters.size > 1 else 0.0, parameters[-1]
    beam = rule in (FIXED, PATIENCE)
    ef = cap if rule == PATIENCE else max(1, int(parameters[0]))
    asking = rule in (MARGINAL, PATIENCE)
    for q in range(count):
        memory[:] = 0
        coarse[0] = trace.first[q]
        best_at, last_at, stable_at, ask_at, at = 0, 0, 0, 1, 0
        bound = np.float32(np.inf)
        end = min(cap, trace.steps[q])
        while at < end:
            best, last = trace.best[q, at], trace.last[q, at]
            entered = np.int64(trace.entered[q, at])
            if best < (trace.best[q, at - 1] if at else trace.first[q]):
                best_at = at + 1
            if entered:
                last_at = at + 1
                bound = np.float32(reach(best, last, log_g, mix))
            if entered > k // 20:
                stable_at = at + 1
            following = trace.following[q, at]
            at += 1
            if trace.nearer[q, at - 1] >= ef if beam else following > bound:
                break
            if asking and at == ask_at and at < cap:
                compared, rung = trace.codes[q, at - 1], min(next_rung(at), cap)
                tell(seen, coarse, at, compared, best, last, best_at, last_at, stable_at, following, rung)
                ask_at = ask(rule, seen, coarse, memory, parameters, forest)
                if ask_at <= at:
                    break
        expanded[q] = at
        asked[q] = int(memory[ASKED])
    return expanded
