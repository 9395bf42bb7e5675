"""When requests arrive: open-loop Poisson schedules.

Open loop: a request is due at its time whatever became of earlier ones, as with real users. A closed loop
would send less exactly while the server is slow, and so hide its slowness (coordinated omission).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from services.runtime.errors import UserError

MAX_REQUESTS = 1_000_000
MAX_RATE_PER_S = 100_000.0
MAX_SPAN_S = 24 * 3600.0


def poisson_schedule(rate_per_s: float, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Arrival times of a Poisson process, seconds from the start: float64 (count,), rising.

    Gaps are independent and exponential with mean 1 / `rate_per_s`. Raises UserError when the rate is not in
    0 < rate <= 100,000, the count not in 1..1,000,000, or the schedule would last over a day.
    """
    if not 0 < rate_per_s <= MAX_RATE_PER_S:
        raise UserError(f"--rate: {rate_per_s:g} is not in 0 < rate <= {MAX_RATE_PER_S:g} requests a second")
    if not 1 <= count <= MAX_REQUESTS:
        raise UserError(f"--requests: {count} is not in 1..{MAX_REQUESTS}")
    if count / rate_per_s > MAX_SPAN_S:
        raise UserError(
            f"{count} requests at {rate_per_s:g} a second last {count / rate_per_s:.0f} s, "
            f"over {MAX_SPAN_S:.0f} s"
        )
    return np.cumsum(rng.exponential(1.0 / rate_per_s, count))
