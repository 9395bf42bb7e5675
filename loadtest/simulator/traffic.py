"""A request log as refresh models see it: what the scorer's own estimates say that each ad is worth.

A model must not learn from what only the log knows, so values are made of estimates: the scorer's click
probability, brought to the position where the log showed the ad, times the price of a click. The true
probability of a generated log stays with the figures.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadtest.request_log.schema import RequestLog
from loadtest.simulator.auction import market, position_of
from services.core.compiled import compiled
from services.core.refresh.replay import Traffic


def traffic(log: RequestLog) -> Traffic:
    """The arrays of a log; what the schema has is not copied unless it cannot be written."""
    # Arrays that cannot be written, as readers of files give them, are another type to the compiler.
    given = {
        name: np.require(getattr(log, name), requirements=["C", "W"])
        for name in Traffic._fields
        if hasattr(log, name)
    }
    given["prior_clicks"] = log.prior_clicks.astype(np.int64)
    bid_usd, charge_usd = (
        np.require(column, requirements=["C", "W"]) for column in (log.bid_usd, log.charge_usd)
    )
    factors = market(log).factors.astype(np.float32)
    estimate = np.require(log.click_probability, requirements=["C", "W"])
    return Traffic(
        **given,
        value_usd=_values(given["offsets"], estimate, bid_usd, charge_usd, factors),
        offer_usd=bid_usd * estimate,
        click_usd=np.where(log.clicked, charge_usd, np.float32(0.0)),
    )


@compiled
def _values(
    offsets: NDArray[np.int64],
    estimate: NDArray[np.float32],
    bid_usd: NDArray[np.float32],
    charge_usd: NDArray[np.float32],
    factors: NDArray[np.float32],
) -> NDArray[np.float32]:
    out = np.zeros(len(estimate), np.float32)
    for i in range(len(offsets) - 1):
        first, last = offsets[i], offsets[i + 1]
        for j in range(first, last):
            if charge_usd[j] > 0:
                position = position_of(j, first, last, estimate, bid_usd, charge_usd)
                out[j] = estimate[j] * factors[position] * charge_usd[j]
    return out
