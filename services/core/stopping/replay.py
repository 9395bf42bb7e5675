"""What a rule would have done in searches that were recorded, without searching again.

A search visits its lists in an order that no rule changes; a rule only ends it. So the states after every
list, recorded once per query by a search that ends at the cap, give every rule's lists, vectors and model
calls for any parameters, exactly, at the cost of the decisions alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..compiled import compiled
from .rules import decide
from .state import AHEAD, ASKED, CODES, MEMORY, SLOTS, Floats, next_rung

Ints = npt.NDArray[np.int64]


class Trace(NamedTuple):
    """Searches of q queries over at most `width` lists.

    seen: float32 [q, width, SLOTS], the state after each list. coarse, margins: float32 [q, columns], as
    rules get them, columns the lists of the index or twice the width. queries: float32 [q, d]. found: float32
    [q, width], how many of the k true neighbours the search had after each list.
    """

    seen: Floats
    coarse: Floats
    margins: Floats
    queries: Floats
    found: Floats

    @property
    def width(self) -> int:
        """Most lists of a search."""
        return int(self.seen.shape[1])

    def part(self, rows: slice) -> Trace:
        """The searches of some queries."""
        return Trace._make(array[rows] for array in self)

    def compared(self, lists: Ints) -> npt.NDArray[np.float64]:
        """Vectors compared by searches that visited these numbers of lists: [q]."""
        codes: npt.NDArray[np.float64] = self.seen[np.arange(len(lists)), lists - 1, CODES].astype(np.float64)
        return codes

    def replay(
        self, _k: int, rule: int, parameters: npt.NDArray[np.float64], forest: Any, cap: int
    ) -> tuple[Ints, Ints]:
        """Lists that each query visits, and the evaluations of its model: int64 [q] each."""
        asked = np.zeros(len(self.seen), dtype=np.int64)
        return lists_visited(self, rule, parameters, forest, cap, asked), asked

    def least_budget(self, k: int, reached: Callable[[npt.NDArray[np.float64]], bool]) -> int | None:
        """The least fixed number of lists with whose recalls [q] `reached` is content; None: none is."""
        recalls = self.found.astype(np.float64) / k
        return next((lists + 1 for lists in range(self.width) if reached(recalls[:, lists])), None)


@compiled
def lists_visited(
    trace: Trace,
    rule: int,
    parameters: npt.NDArray[np.float64],
    forest: Any,
    cap: int,
    asked: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Lists that each query visits, int64 [q], and the evaluations of its model into `asked` [q].

    `cap` ends every search, at most the width of the trace.
    """
    count = trace.seen.shape[0]
    visited = np.empty(count, dtype=np.int64)
    seen, memory = np.empty(SLOTS), np.empty(MEMORY)
    for q in range(count):
        memory[:] = 0
        lists = 1
        while lists < cap:
            for slot in range(SLOTS):
                seen[slot] = trace.seen[q, lists - 1, slot]
            rung = min(next_rung(lists), cap)
            seen[AHEAD] = trace.seen[q, rung - 1, CODES] - seen[CODES]
            wanted = decide(
                rule,
                seen,
                trace.coarse[q],
                trace.margins[q],
                trace.queries[q],
                memory,
                parameters,
                forest,
            )
            if wanted <= lists:
                break
            lists = min(wanted, cap)
        visited[q] = lists
        asked[q] = int(memory[ASKED])
    return visited
