"""The rules of other authors, trained on the same searches and tuned on the same split as ours.

Each gives several families (a rule with one knob, `models.termination.calibration`); the one that reaches the
target at the least work in calibration stands for the rule. All knobs are in the form in which steps matter:
a multiplier and a patience in logarithms, a recall r as -log(1 - r).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightgbm
import numpy as np
import numpy.typing as npt

from models.termination.calibration import Family
from services.core.compiled import compiled
from services.core.stopping import aps, darth, laet
from services.core.stopping.replay import Trace
from services.core.stopping.rules import APS, DARTH, LAET, PATIENCE
from services.core.stopping.state import CODES, LAST, SLOTS
from services.core.trees import parse_lightgbm

Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_STAMP_SHARES = (0.5, 0.65, 0.8)  # of training queries that are done at the stamp (SIGMOD'20, 3.3)
_SEVERAL = (0.5, 0.8)
_CANDIDATES = (0.02, 0.15)  # of the lists (the paper: the first)
_DARTH_EVERY = 1.25  # ratio of the lists between two training rows of a query


def families(trace: Trace, k: int, seed: int, lists: int) -> list[Family]:
    """Every rival, trained on the searches of the training split; `lists` of the index."""
    return [
        *_patience(trace, k),
        *_aps(trace, lists),
        *_darth(trace, k, seed),
        *_laet(trace, k, seed),
    ]


def _patience(trace: Trace, k: int) -> list[Family]:
    width = trace.seen.shape[1]

    def parameters(knob: float) -> Doubles:
        return np.array([max(1.0, np.round(np.exp(knob))), 1.0 if k == 1 else 0.0])

    return [Family("patience", PATIENCE, parameters, 0.0, float(np.log(width)))]


def _aps(trace: Trace, lists: int) -> list[Family]:
    dimension = trace.queries.shape[1]

    def family(candidates: int) -> Family:
        def parameters(knob: float) -> Doubles:
            return aps.parameters(float(-np.expm1(-knob)), candidates, dimension)

        return Family("aps", APS, parameters, 0.02, 20.0)

    width = trace.seen.shape[1]
    return [family(count) for count in sorted({min(width, max(8, int(s * lists))) for s in _CANDIDATES})]


def _fit(rows: Doubles, targets: Doubles, seed: int, **changes: Any) -> Any:
    parameters = {
        "objective": "regression",
        "num_leaves": 31,
        "min_data_in_leaf": min(20, max(1, len(rows) // 20)),
        "num_threads": 1,
        "seed": seed,
        "verbose": -1,
        **changes,
    }
    booster = lightgbm.train(parameters, lightgbm.Dataset(rows, targets), 100)
    return parse_lightgbm(booster.model_to_string().encode()).arrays


@compiled
def _laet_rows(trace: Trace, stamp: int, rows: Doubles) -> None:
    seen = np.empty(SLOTS)
    for q in range(rows.shape[0]):
        for slot in range(SLOTS):
            seen[slot] = trace.seen[q, stamp - 1, slot]
        laet.features(seen, trace.coarse[q], trace.queries[q], rows[q])


def _laet(trace: Trace, k: int, seed: int) -> list[Family]:
    """One prediction after each of several stamps, and two predictions; on lists, and on their log2."""
    width = trace.seen.shape[1]
    most = trace.found[:, -1:]
    needed = 1 + (trace.found >= most).argmax(axis=1).astype(np.float64)  # lists that find what can be found
    useful = most[:, 0] == k
    if useful.sum() < 50:
        return []

    def stamp_at(share: float) -> int:
        return int(np.clip(np.quantile(needed[useful], share), 1, width - 1))

    def rows_at(stamp: int) -> Doubles:
        rows = np.empty((len(trace.seen), trace.queries.shape[1] + 14))
        _laet_rows(trace, stamp, rows)
        rows[~np.isfinite(rows)] = 1e30
        kept: Doubles = rows[useful]
        return kept

    def family(name: str, stamps: Sequence[int]) -> Family:
        rows = np.vstack([rows_at(stamp) for stamp in stamps])
        targets = np.log2(np.tile(needed[useful], len(stamps)))
        forest = _fit(rows, targets, seed, learning_rate=0.2, boost_from_average=False)

        def parameters(knob: float) -> Doubles:
            return np.array([np.exp(knob), 1.0, *map(float, stamps)])

        return Family(name, LAET, parameters, -4.0, 8.0, forest)

    single = [family("laet", [stamp]) for stamp in sorted({stamp_at(share) for share in _STAMP_SHARES})]
    several = sorted({stamp_at(share) for share in _SEVERAL})
    return [*single, family("laet-multi", several)] if len(several) > 1 else single


def _darth(trace: Trace, k: int, seed: int) -> list[Family]:
    width = trace.seen.shape[1]
    steps = int(np.log(width) / np.log(_DARTH_EVERY)) + 1
    at = np.unique(np.round(_DARTH_EVERY ** np.arange(steps)).astype(np.int64)) - 1
    rows = _darth_rows(trace, at)
    found = trace.found[:, at] / float(k)
    full = np.isfinite(trace.seen[:, at, LAST])
    forest = _fit(rows[full], found[full].astype(np.float64), seed)
    recalls, codes = trace.found.mean(axis=0) / k, trace.seen[:, :, CODES].mean(axis=0)

    def parameters(knob: float) -> Doubles:
        target = -np.expm1(-knob)
        enough = codes[min(int(np.searchsorted(recalls, target)), width - 1)]
        return np.array([target, enough / 2, enough / 10])

    return [Family("darth", DARTH, parameters, 0.05, 10.0, forest)]


def _darth_rows(trace: Trace, at: Ints) -> Doubles:
    rows = np.empty((len(trace.seen), at.size, darth.FEATURES))
    _fill_darth(trace, at, rows)
    return rows


@compiled
def _fill_darth(trace: Trace, at: Ints, rows: Doubles) -> None:
    seen = np.empty(SLOTS)
    for q in range(rows.shape[0]):
        for i in range(at.size):
            for slot in range(SLOTS):
                seen[slot] = trace.seen[q, at[i], slot]
            darth.features(seen, trace.coarse[q], rows[q, i])
