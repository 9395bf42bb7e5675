"""The graph under test: FAISS builds it, and both FAISS and our walk search the same links."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import faiss as _faiss
import numpy as np
import numpy.typing as npt

from models.termination import walks
from models.termination.calibration import Family, ratio_families
from services.core.hnsw.graph import Graph
from services.core.hnsw.replay import Trace
from services.core.hnsw.search import record, search
from services.core.ivf.search import Found
from services.core.stopping.policy import Policy
from services.core.stopping.rules import PATIENCE

faiss: Any = _faiss

HNSW = "hnsw"
LINKS = 32
"""Links of a node on the upper levels, twice as many on level 0. With 16 a beam compares as many vectors for
a recall of .90, but a third more for .99 (glove50), and the nearest of 5 queries in 1,000 is never found."""
BUILD_BEAM = 200
_ROOM = 1.9  # nodes that walks are recorded over, over the beam of the highest target
_SAMPLE = 500

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Built:
    """A graph as our walk sees it, and stock FAISS over the same graph.

    stock(queries, k, ef, depth): the rows [q, k] that FAISS finds; a depth means nothing here.
    """

    graph: Graph
    stock: Callable[[Floats, int, int, int], npt.NDArray[np.int64]]

    def search(self, queries: Floats, k: int, policy: Policy) -> Found:
        """Our walk."""
        return search(self.graph, queries, k, policy)


def build(vectors: Floats) -> Built:
    """Builds the graph over float32 [n, d] by squared distance, with one thread: minutes for 400,000."""
    faiss.omp_set_num_threads(1)
    index = faiss.IndexHNSWFlat(vectors.shape[1], LINKS)
    index.hnsw.efConstruction = BUILD_BEAM
    index.add(vectors)
    return over(index)


def over(index: Any) -> Built:
    """FAISS' index as it is measured."""

    def stock(queries: Floats, k: int, ef: int, _depth: int) -> npt.NDArray[np.int64]:
        rows: npt.NDArray[np.int64] = index.search(
            queries, k, params=faiss.SearchParametersHNSW(efSearch=ef)
        )[1]
        return rows

    return Built(Graph(index, faiss.downcast_index(index.storage)), stock)


def width(built: Built, queries: Floats, near: Floats, k: int, target: float) -> int:
    """Nodes to record over: a beam that reaches the highest target on some queries, and room for caps."""
    some, ef = slice(0, _SAMPLE), 16
    while ef < built.graph.size:
        rows = built.stock(queries[some], k, ef, 0)
        difference = built.graph.arrays.vectors[rows] - queries[some, None, :]
        distances = np.einsum("qkd,qkd->qk", difference, difference)
        if (distances <= near[some, None]).sum(axis=1).clip(max=k).mean() >= target * k:
            break
        ef = int(1.2 * ef)
    return min(built.graph.size, int(_ROOM * ef) + 1)


def traced(built: Built, queries: Floats, k: int, near: Floats, nodes: int) -> Trace:
    """Walks over so many nodes."""
    return record(built.graph, queries, k, near, nodes)


def families(trace: Trace, k: int, seed: int) -> dict[str, list[Family]]:
    """The rules that a walk knows beside a fixed beam, trained on the walks of the training split."""

    def patience(knob: float) -> npt.NDArray[np.float64]:
        return np.array([max(1.0, np.round(np.exp(knob))), 1.0 if k == 1 else 0.0])

    return {
        "ratio": ratio_families(k),
        "marginal": walks.marginal_families(walks.train(trace, k, seed), k),
        "patience": [Family("patience", PATIENCE, patience, 0.0, float(np.log(trace.width)))],
    }
