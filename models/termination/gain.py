"""The gain model of the marginal rule, fitted to recorded searches (`services.core.stopping.marginal`).

Both parts maximise the Poisson likelihood of the number of true neighbours in the lists up to the next rung.
The log-linear start is fitted by Newton's method (iteratively reweighted least squares: P. McCullagh, J.
Nelder, "Generalized Linear Models", 1989, section 2.5) with a little ridge, one for each k; then LightGBM
boosts small trees on all k together, with the start as its initial score.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import lightgbm
import numpy as np
import numpy.typing as npt

from services.core.compiled import compiled
from services.core.stopping.marginal import FEATURES, STARTING, features
from services.core.stopping.replay import Trace
from services.core.stopping.state import AHEAD, CODES, LAST, SLOTS, next_rung
from services.core.trees import Forest, parse_lightgbm

TREES = 16
LEAVES = 8
GOLDEN_ROWS = 64
_RIDGE = 1e-6  # per row
_STEPS = 40
_BAND_QUANTILE = 0.98  # of what the forest adds, beyond which it is not asked

Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class GainModel:
    """starts: the terms for each k. band: how far from the threshold the forest is asked. model: LightGBM's
    text.

    golden_rows: rows of features; golden: LightGBM's own raw scores of them, what the forest must give.
    """

    starts: Mapping[int, tuple[float, ...]]
    band: float
    model: bytes
    forest: Forest
    golden_rows: Doubles
    golden: Doubles


def rungs_of(width: int) -> Ints:
    """The rungs (lists visited) below `width`, at which a search of at most so many lists asks its rule."""
    rungs = [1]
    while next_rung(rungs[-1]) < width:
        rungs.append(next_rung(rungs[-1]))
    return np.array(rungs, dtype=np.int64)


@compiled
def feature_rows(trace: Trace, k: float, rungs: Ints, rows: Doubles) -> None:
    """The features of each query at each rung into rows, float64 [q, rungs, features]."""
    seen = np.empty(SLOTS)
    for q in range(rows.shape[0]):
        for r in range(rungs.size):
            lists = rungs[r]
            for slot in range(SLOTS):
                seen[slot] = trace.seen[q, lists - 1, slot]
            following = min(next_rung(lists), trace.seen.shape[1])
            seen[AHEAD] = trace.seen[q, following - 1, CODES] - seen[CODES]
            features(seen, trace.coarse[q], k, rows[q, r])


def examples(trace: Trace, k: int) -> tuple[Doubles, Doubles]:
    """Features [n, 9] and gains [n] of every state at a rung with as many found as are watched."""
    width = trace.seen.shape[1]
    rungs = rungs_of(width)
    rows = np.empty((len(trace.seen), rungs.size, len(FEATURES)))
    feature_rows(trace, float(k), rungs, rows)
    following = np.array([min(next_rung(int(lists)), width) for lists in rungs])
    # Quantized candidates can push a true neighbour out: what such a stretch gains is nothing.
    gains = np.maximum(trace.found[:, following - 1] - trace.found[:, rungs - 1], 0.0)
    full = np.isfinite(trace.seen[:, rungs - 1, LAST])
    return rows[full], gains[full].astype(np.float64)


def design(rows: Doubles) -> Doubles:
    """Constant, features and their products i <= j, in the order of `marginal.start`: [n, TERMS]."""
    first = rows[:, :STARTING]
    products = [first[:, i : i + 1] * first[:, i:] for i in range(STARTING)]
    return np.hstack([np.ones((len(rows), 1)), first, *products])


def fit_start(rows: Doubles, gains: Doubles) -> Doubles:
    """Terms [TERMS] of the log-linear Poisson regression."""
    columns = design(rows)
    mean, scale = columns.mean(axis=0), columns.std(axis=0)
    mean[0], scale[scale < 1e-9] = 0.0, 1.0
    columns -= mean
    columns /= scale
    terms = np.zeros(columns.shape[1])
    terms[0] = np.log(max(gains.mean(), 1e-9))
    ridge = _RIDGE * len(rows) * np.eye(terms.size)
    for _ in range(_STEPS):
        rates = np.exp(np.clip(columns @ terms, -30.0, 8.0))
        gradient = columns.T @ (gains - rates) - ridge @ terms
        step = np.linalg.solve((columns * rates[:, None]).T @ columns + ridge, gradient)
        step *= min(1.0, 3.0 / np.abs(step).max())
        terms += step
        if np.abs(step).max() < 1e-5:
            break
    terms /= scale
    terms[0] -= mean[1:] @ terms[1:]
    return terms


def train(traces: Mapping[int, Trace], seed: int) -> GainModel:
    """The model for the k of `traces`, each recorded with the same training queries."""
    starts, all_rows, all_gains, all_scores = {}, [], [], []
    for k, trace in traces.items():
        rows, gains = examples(trace, k)
        terms = fit_start(rows, gains)
        starts[k] = tuple(terms.tolist())
        all_rows.append(rows)
        all_gains.append(gains)
        all_scores.append(np.clip(design(rows) @ terms, -30.0, 8.0))
    return boost(starts, np.vstack(all_rows), np.concatenate(all_gains), np.concatenate(all_scores), seed)


def boost(
    starts: Mapping[int, tuple[float, ...]], rows: Doubles, gains: Doubles, scores: Doubles, seed: int
) -> GainModel:
    """Boosts trees on examples whose start gives `scores` (log of the expected gain)."""
    parameters: dict[str, Any] = {
        "objective": "poisson",
        "num_leaves": LEAVES,
        "learning_rate": 0.2,
        "min_data_in_leaf": min(50, max(1, len(rows) // 20)),
        "max_bin": 127,
        "boost_from_average": False,
        "num_threads": 1,
        "seed": seed,
        "deterministic": True,
        "force_col_wise": True,
        "verbose": -1,
    }
    data = lightgbm.Dataset(rows, gains, init_score=scores, feature_name=list(FEATURES))
    booster = lightgbm.train(parameters, data, TREES)
    model = booster.model_to_string().encode()
    forest = parse_lightgbm(model)
    golden_rows = rows[np.linspace(0, len(rows) - 1, min(GOLDEN_ROWS, len(rows))).astype(int)]
    golden = np.asarray(booster.predict(golden_rows), dtype=np.float64)
    added = np.abs(forest.predict_raw(np.ascontiguousarray(rows[:: max(1, len(rows) // 20_000)])))
    return GainModel(starts, float(np.quantile(added, _BAND_QUANTILE)), model, forest, golden_rows, golden)
