"""The cache keys of a log's requests, and which phrases had earned when each request came."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadtest.request_log.schema import RequestLog
from services.core.compiled import compiled
from services.core.personalisation import Scheme, is_personal


class Keys(NamedTuple):
    """One value a request: its key, the key whose list goes when it is inserted (-1 for none)."""

    key: NDArray[np.int32]
    deleted: NDArray[np.int32]


def cache_keys(log: RequestLog, scheme: Scheme, earning: NDArray[np.bool_]) -> Keys:
    """The keys of a log under a scheme (`services.core.personalisation`); phrases keep their numbers."""
    if scheme == "phrase":
        return Keys(log.phrase, np.full(len(log.phrase), -1, np.int32))
    code = log.phrase.astype(np.int64)
    for part in (log.location, log.gender, log.age):
        code = code * 256 + part
    personal = (len(log.phrases) + np.unique(code, return_inverse=True)[1]).astype(np.int32)
    is_ours = is_personal(scheme, earning)
    return Keys(np.where(is_ours, personal, log.phrase), np.where(is_ours, log.phrase, -1).astype(np.int32))


def earning_before(log: RequestLog) -> NDArray[np.bool_]:
    """Whether the phrase of each request had earned before it: in the prior days, or since by a click.

    The log's clicks count, whatever list a policy would have served: so R, like the residency, is the same
    for every policy.
    """
    earns = (log.prior_clicks > 0) | (log.prior_revenue_usd > 0)
    before = np.zeros(len(log.phrase), np.bool_)
    _follow(log.phrase, log.offsets, log.clicked, log.charge_usd, earns, before)
    return before


@compiled
def _follow(
    phrase: NDArray[np.int32],
    offsets: NDArray[np.int64],
    clicked: NDArray[np.bool_],
    charge_usd: NDArray[np.float32],
    earns: NDArray[np.bool_],
    before: NDArray[np.bool_],
) -> None:
    for i in range(len(phrase)):
        before[i] = earns[phrase[i]]
        for j in range(offsets[i], offsets[i + 1]):
            if clicked[j] and charge_usd[j] > 0:
                earns[phrase[i]] = True
