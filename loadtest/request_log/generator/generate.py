"""Generates a request log: Bing-calibrated and semi-real, not a production log.

Real where real data exist, published distributions where not, and what is modelled is held to published
numbers (tests/loadtest/test_log_acceptance.py). Real: the order and popularity of keys where a trace is
given, the ads where a catalogue is. Published: the laws marked so in `profiles.py`. Modelled: everything
else.

The result tables of SoCC'17 and WWW'18 (hit ratios of policies, cost saving, revenue loss, profit) are out of
sample: no constant was chosen by running a policy, and none may be. The constants were fitted to figures 3-6
of SoCC'17 and 4 of WWW'18, to the shares of phrases and requests that earn, and to the marginals that
`profiles.py` names. One exception is stated where it is made: the share of age (`lists.py`) is argued from
the similarity column of SoCC'17's table, not from its savings or losses.

Days -3..-1 are made like any other day and only counted (`history.py`); then the days of the log are written.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadtest.progress import progress
from loadtest.request_log.generator.changes import RESERVE_USD
from loadtest.request_log.generator.history import History, ThrottleScale
from loadtest.request_log.generator.profiles import PRIOR_DAYS, PROFILES, Profile
from loadtest.request_log.generator.requests import CHUNK, Generator
from loadtest.request_log.generator.sums import by_request
from loadtest.request_log.schema import Requests
from loadtest.request_log.storage import KIND, LogWriter
from services.runtime.bundles import check_replaceable
from services.runtime.errors import UserError, shown

MAX_DAYS = 30


@dataclass(frozen=True)
class LogSummary:
    """What a generated log holds."""

    requests: int
    phrases: int
    listed: int
    clicks: int
    revenue_usd: float


def generate_log(
    out: Path,
    profile: str | Profile,
    *,
    days: int = 1,
    seed: int = 1,
    key_stream: Path | None = None,
    catalogue: Path | None = None,
) -> LogSummary:
    """Writes a log of some days to the bundle `out`, with a progress bar.

    `profile`: a name of PROFILES, or constants of one's own. `key_stream`: .xz trace of 64-bit keys; without
    it, draws from the published popularity curve. `catalogue`: a catalogue bundle whose ads to list; without
    it, the ads of the made-up catalogue of 20,000 ads. The same arguments give the same bytes. Nothing is
    left behind where it fails.

    Raises UserError where an argument is out of its limits, a file is unreadable or damaged, the trace is
    shorter than a day, or `out` cannot be written.
    """
    if not 1 <= days <= MAX_DAYS:
        raise UserError(f"days: {days} is outside 1..{MAX_DAYS}")
    constants = _profile(profile)
    check_replaceable(out, KIND)
    total = (PRIOR_DAYS + days) * constants.requests_per_day
    with progress("requests", total) as show:
        generator = Generator(constants, seed, key_stream=key_stream, catalogue=catalogue)
        history = History(len(generator.keys.expected))
        done = 0
        for day in range(-PRIOR_DAYS, 0):
            phrase = generator.keys.day(day)
            if day == -1:
                scale = ThrottleScale(history.estimate(seed, day * len(phrase), phrase))
            history.start_day()
            for part, expected_usd in generator.chunks(day, phrase):
                _remember(history, part, expected_usd)
                done += len(part.time_ms)
                show(done)
        ids = np.unique(np.concatenate([np.unique(generator.keys.day(day)) for day in range(days)]))
        meta = {
            "made_by": "generator",
            "profile": profile if isinstance(profile, str) else "custom",
            "constants": asdict(constants),
            "seed": seed,
            "days": days,
            "stream": "drawn" if key_stream is None else key_stream.name.split(".")[0],
            "reserve_usd": RESERVE_USD,
        }
        writer = LogWriter(
            out,
            ad_ids=generator.ads.ids,
            phrases=generator.book.write_texts(ids),
            prior_requests=history.requests[ids],
            prior_clicks=history.clicks[ids],
            prior_revenue_usd=history.revenue_usd[ids],
            meta=meta,
        )
        listed = clicks = 0
        revenue_usd = 0.0
        with writer:
            for day in range(days):
                phrase = generator.keys.day(day)
                levels = scale.levels(history.estimate(seed, day * len(phrase), phrase))
                history.start_day()
                for start, (part, expected_usd) in zip(
                    range(0, len(phrase), CHUNK), generator.chunks(day, phrase), strict=True
                ):
                    _remember(history, part, expected_usd)
                    rows = np.searchsorted(ids, part.phrase).astype(np.int32)
                    writer.append(
                        replace(part, phrase=rows, throttle_level=levels[start : start + len(rows)])
                    )
                    listed += len(part.ads)
                    clicks += int(part.clicked.sum())
                    revenue_usd += float(part.charge_usd[part.clicked].sum(dtype=np.float64))
                    done += len(rows)
                    show(done)
    return LogSummary(days * constants.requests_per_day, len(ids), listed, clicks, revenue_usd)


def _profile(profile: str | Profile) -> Profile:
    if isinstance(profile, Profile):
        return profile
    if profile not in PROFILES:
        raise UserError(f"profile: {shown(profile)} is none of {', '.join(PROFILES)}")
    return PROFILES[profile]


def _remember(history: History, part: Requests, expected_usd: NDArray[np.float64]) -> None:
    charges = np.where(part.clicked, part.charge_usd, 0.0).astype(np.float64)
    clicks = by_request(part.clicked.astype(np.float64), part.offsets)
    history.add(
        part.phrase.astype(np.int64), clicks.astype(np.int64), by_request(charges, part.offsets), expected_usd
    )
