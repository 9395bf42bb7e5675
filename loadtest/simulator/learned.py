"""Learned policies in the simulator: the state that a replay hands to the kernels of `services/core/refresh`.

The kernels are those of the live service (`predicted.judge` and `predicted.learn`); a row of `KEY` stands for
a phrase, so learned designs use phrase keys.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadtest.request_log.schema import RequestLog
from loadtest.simulator.traffic import traffic
from services.core.compiled import compiled
from services.core.refresh import features, predicted
from services.core.refresh.features import KEY, LEDGER, OURS, WWW18, Computed, Floats, Keys
from services.core.refresh.predicted import Rule
from services.core.refresh.replay import Traffic, request_of
from services.core.stopping.rules import NO_FOREST
from services.core.trees.evaluator import ForestArrays

INFERENCE_SHARE = 0.01
"""Of the cost saved, what asking the model is taken to cost (WWW'18, section 5)."""


class Learned(NamedTuple):
    """A trained model, and the rule that goes by what it predicts."""

    forest: ForestArrays
    rule: Rule


class State(NamedTuple):
    """What a learned policy knows while a log is replayed."""

    traffic: Traffic
    keys: Keys
    ledger: Keys
    forest: ForestArrays
    rule: Rule
    scratch: Floats


class Shown(NamedTuple):
    """What a request's current list is worth by estimates, and what of it the cached list lacks."""

    value_usd: float
    offer_usd: float
    loss_usd: float


def state(log: RequestLog, learned: Learned | None) -> State:
    """The state before the first request of a log; without a model, one that is only a type."""
    scratch = np.zeros(max(len(OURS), len(WWW18)))
    if learned is None:
        return State(_NO_TRAFFIC, np.zeros(0, KEY), np.zeros(1, LEDGER), NO_FOREST, _NO_RULE, scratch)
    keys = np.zeros(len(log.phrases), KEY)
    return State(traffic(log), keys, np.zeros(1, LEDGER), learned.forest, learned.rule, scratch)


_NO_RULE = Rule(0.0, 0.0, 0.0, 0.0)
_I8, _F4 = np.zeros(0, np.int8), np.zeros(0, np.float32)
_I32, _I64 = np.zeros(0, np.int32), np.zeros(0, np.int64)
_NO_TRAFFIC = Traffic(
    time_ms=_I64,
    phrase=_I32,
    location=_I8,
    gender=_I8,
    age=_I8,
    device=_I8,
    cost=_F4,
    throttle_level=_F4,
    offsets=_I64,
    ads=_I32,
    value_usd=_F4,
    offer_usd=_F4,
    click_usd=_F4,
    prior_clicks=_I64,
    prior_revenue_usd=np.zeros(0),
)


@compiled
def shown(known: State, ads: NDArray[np.void], i: int) -> Shown:
    """Of request i; the engine has marked the ads of its cached list as `served`."""
    value_usd, offer_usd, loss_usd = 0.0, 0.0, 0.0
    for j in range(known.traffic.offsets[i], known.traffic.offsets[i + 1]):
        value_usd += known.traffic.value_usd[j]
        offer_usd += known.traffic.offer_usd[j]
        if ads[known.traffic.ads[j]]["served"] != i:
            loss_usd += known.traffic.value_usd[j]
    return Shown(value_usd, offer_usd, loss_usd)


@compiled
def judge(known: State, i: int, uniform: float) -> tuple[int, float]:
    """The decision on the hit of request i, of `predicted`, and the loss that the model predicts."""
    phrase = known.traffic.phrase[i]
    decision, loss_usd, _ = predicted.judge(
        known.keys,
        phrase,
        request_of(known.traffic, i),
        known.ledger,
        known.rule,
        known.forest,
        uniform,
        known.scratch,
    )
    return decision, loss_usd


@compiled
def learn(known: State, i: int, kept_ads: int, held: int, common: int, shown: Shown, is_hit: bool) -> None:
    """The list of request i was computed and is cached, with `kept_ads` ads.

    held: ads of the list before, of which the fresh one has `common`.
    """
    fresh = known.traffic.offsets[i + 1] - known.traffic.offsets[i]
    union = held + fresh - common
    computed = Computed(
        kept_ads,
        shown.value_usd,
        shown.offer_usd / max(1, fresh),
        float(known.traffic.cost[i]),
        shown.loss_usd if is_hit else np.nan,
        1.0 - common / max(1, union) if is_hit else np.nan,
    )
    predicted.learn(known.keys, known.traffic.phrase[i], request_of(known.traffic, i), computed, known.ledger)


@compiled
def learn_clicks(known: State, i: int) -> None:
    """After request i: the log's clicks on its list."""
    for j in range(known.traffic.offsets[i], known.traffic.offsets[i + 1]):
        if known.traffic.click_usd[j] > 0:
            features.on_clicks(known.keys, known.traffic.phrase[i], 1, float(known.traffic.click_usd[j]))
