"""Whether a request finds candidates, and how many are scored: the cost indicator of SoCC'17.

A request finds none where its phrase is barren, where the phrase has no ads in this slot of four hours, where
nobody aims at this user (by phrase and context), or for no lasting reason. The first three make empty lists
come in runs: 40 % of the requests have no candidates (figure 5), yet only 11 % of the lists that have any
follow an empty one of the same phrase, and 7 % of the same phrase and user context (section 3.6).

Else the number is log-normal, three quarters of its variance from the phrase, cut where figure 5 ends.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadtest.request_log.generator.batch import Batch
from loadtest.request_log.generator.phrases import COST_PHRASE_SHARE, Traits
from loadtest.request_log.generator.profiles import Profile
from loadtest.request_log.generator.randomness import (
    COST,
    EMPTY_CONTEXT,
    EMPTY_REQUEST,
    EMPTY_SLOT,
    at,
    normal,
    stream,
    uniform,
)
from services.core.compiled import compiled

SLOT_MS = 14_400_000


def costs(profile: Profile, seed: int, batch: Batch, traits: Traits) -> NDArray[np.float32]:
    """Candidates scored for requests, 0 where there is none."""
    chances = np.array([profile.empty_context, profile.empty_request])
    sd = profile.cost_log_sd * np.sqrt(1.0 - COST_PHRASE_SHARE)
    return _costs(
        seed, batch.first, batch.phrase, traits.id[batch.phrase], batch.time_ms, batch.context, traits.barren,
        traits.empty_slot, traits.cost, chances, sd, profile.cost_cut,
    )  # fmt: skip


@compiled
def _costs(
    seed: int, first_request: int, row: NDArray[np.int64], ids: NDArray[np.int64], time_ms: NDArray[np.int64],
    context: NDArray[np.int64], barren: NDArray[np.bool_], empty_slot: NDArray[np.float64],
    log_cost: NDArray[np.float64], chances: NDArray[np.float64], sd: float, cut: float,
) -> NDArray[np.float32]:  # fmt: skip
    out = np.zeros(len(row), np.float32)
    requests = stream(seed, EMPTY_REQUEST, 0)
    noise = stream(seed, COST, 0)
    for i in range(len(row)):
        if (
            barren[row[i]]
            or uniform(seed, EMPTY_SLOT, ids[i], time_ms[i] // SLOT_MS + 1000) < empty_slot[row[i]]
            or uniform(seed, EMPTY_CONTEXT, ids[i], context[i]) < chances[0]
            or at(requests, first_request + i) < chances[1]
        ):
            continue
        cost = np.exp(log_cost[row[i]] + sd * normal(noise, first_request + i))
        out[i] = np.ceil(min(cost, cut))
    return out
