"""The gain model of walks of a graph: the examples, and the rule as a family; the fit is that of `gain`.

What the features of `services.core.stopping.marginal` call centroids is here the start of the walk (the
first) and its next candidate (the next, and the one at twice the lists).
"""

from __future__ import annotations

import numpy as np

from models.termination.calibration import CAP_OF_WALK, Doubles, Family, Ints
from models.termination.gain import GainModel, boost, design, fit_start, rungs_of
from services.core.compiled import compiled
from services.core.hnsw.asking import tell
from services.core.hnsw.replay import Trace
from services.core.stopping import marginal
from services.core.stopping.rules import MARGINAL
from services.core.stopping.state import LAST, SLOTS, WATCHED, next_rung

REACHES = (0.3, 0.5)
"""Logarithms of the ratio beyond which no node is expanded, whatever the model says; each is tried."""
MIX = 0.5  # of that ratio, where fewer are wanted than are watched

_features = marginal.features


@compiled
def _feature_rows(trace: Trace, k: float, rungs: Ints, rows: Doubles) -> None:
    """The features of each walk at each rung into rows, float64 [q, rungs, features]; NaN beyond its end."""
    seen = np.zeros(SLOTS)
    coarse = np.empty(2, dtype=np.float32)
    rows[:] = np.nan
    for q in range(rows.shape[0]):
        coarse[0] = trace.first[q]
        best_at, last_at, r = 0, 0, 0
        for at in range(min(trace.steps[q], rungs[-1])):
            if trace.best[q, at] < (trace.best[q, at - 1] if at else trace.first[q]):
                best_at = at + 1
            if trace.entered[q, at]:
                last_at = at + 1
            nodes = rungs[r]
            if at + 1 < nodes:
                continue
            compared, best, last = trace.codes[q, at], trace.best[q, at], trace.last[q, at]
            following, rung = trace.following[q, at], next_rung(nodes)
            tell(seen, coarse, nodes, compared, best, last, best_at, last_at, 0, following, rung)
            if seen[LAST] < np.inf:
                _features(seen, coarse, k, rows[q, r])
            r += 1


def train(trace: Trace, k: int, seed: int) -> GainModel:
    """The model of one k, from walks recorded with training queries."""
    rungs = rungs_of(trace.width)
    rows = np.empty((len(trace.steps), rungs.size, len(marginal.FEATURES)))
    _feature_rows(trace, float(k), rungs, rows)
    following = np.array([min(next_rung(int(nodes)), trace.width) for nodes in rungs])
    gains = trace.found[:, following - 1].astype(np.float64) - trace.found[:, rungs - 1]
    full = np.isfinite(rows).all(axis=2)
    examples, won = rows[full], gains[full]
    terms = fit_start(examples, won)
    scores = np.clip(design(examples) @ terms, -30.0, 8.0)
    return boost({k: tuple(terms.tolist())}, examples, won, scores, seed)


def marginal_families(model: GainModel, k: int) -> list[Family]:
    """The marginal rule with every reach that is tried; its knob is minus log lambda."""

    def family(log_g: float) -> Family:
        def parameters(knob: float) -> Doubles:
            own = marginal.parameters(-knob, model.band, k, model.starts[k])
            return np.append(own, [log_g, MIX if k < WATCHED else 0.0])

        return Family("marginal", MARGINAL, parameters, -10.0, 40.0, model.forest.arrays, CAP_OF_WALK)

    return [family(log_g) for log_g in REACHES]
