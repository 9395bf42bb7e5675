"""Small random request logs."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from loadtest.request_log.schema import RequestLog


def random_log(
    seed: int, requests: int = 60, phrases: int = 6, ads: int = 12, longest: int = 5, **changes: Any
) -> RequestLog:
    """A log in which everything that can happen does: empty lists, clicks, phrases that earned before."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, longest + 1, requests) * (rng.random(requests) < 0.8)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    lists = [rng.permutation(ads)[:length] for length in lengths]
    listed = int(offsets[-1])
    charge_usd = rng.uniform(0.05, 2, listed) * (rng.random(listed) < 0.6)
    shown = charge_usd > 0
    columns: dict[str, Any] = {
        "time_ms": np.sort(rng.integers(0, 86_400_000, requests)),
        "phrase": rng.integers(0, phrases, requests).astype(np.int32),
        "location": rng.integers(0, 2, requests).astype(np.int8),
        "gender": rng.integers(0, 2, requests).astype(np.int8),
        "age": rng.integers(0, 2, requests).astype(np.int8),
        "device": np.zeros(requests, np.int8),
        "cost": (rng.integers(0, 4000, requests) * (lengths > 0)).astype(np.float32),
        "throttle_level": np.full(requests, np.nan, np.float32),
        "offsets": offsets,
        "ads": np.concatenate([np.empty(0, int), *lists]).astype(np.int32),
        "click_probability": rng.uniform(0.001, 0.5, listed).astype(np.float32),
        "bid_usd": rng.uniform(0.05, 3, listed).astype(np.float32),
        "charge_usd": charge_usd.astype(np.float32),
        "shown_probability": (rng.uniform(0, 0.3, listed) * shown).astype(np.float32),
        "clicked": rng.random(listed) < 0.1,  # some on ads that were not shown: worth nothing
        "ad_ids": np.arange(1, ads + 1),
        "phrases": [f"phrase {i}" for i in range(phrases)],
        "prior_requests": np.ones(phrases, np.int32),
        "prior_clicks": (rng.random(phrases) < 0.3).astype(np.int32),
        "prior_revenue_usd": np.zeros(phrases),
    }
    return RequestLog(**(columns | changes))


@st.composite
def logs(draw: st.DrawFn) -> RequestLog:
    """Logs of every shape, a single request included."""
    return random_log(
        draw(st.integers(0, 2**32 - 1)),
        requests=draw(st.integers(1, 120)),
        phrases=draw(st.integers(1, 12)),
        ads=draw(st.integers(8, 30)),
        longest=draw(st.integers(0, 8)),
    )
