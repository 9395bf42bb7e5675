"""The live classes of the scoring service decide what the simulator decides, hit by hit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_logs import logs, random_log

from loadtest.request_log.schema import RequestLog
from loadtest.simulator.designs import DESIGNS, Design
from loadtest.simulator.engine import simulate
from loadtest.simulator.keys import cache_keys, earning_before
from loadtest.simulator.outcome import HIT, MISS, REFRESH
from services.core.ads_list import AdsList, Versions, merge
from services.core.refresh.policy import Earns, RefreshPolicy, similarity
from services.core.refresh.xfetch import XFetch
from services.scoring.config import ScoringConfig
from services.scoring.policies import refresh_policy

LIVE = ("none", "fixed", "two_level", "adaptive", "adaptive_ttl")
KEYS = ("phrase", "selective", "all")


def live_policy(design: Design, earns: Earns, uniform: Callable[[], float]) -> RefreshPolicy:
    """The policy as a scoring process makes it; XFetch with the simulator's draws."""
    if design.policy == "xfetch":
        return XFetch(design.ttl_ms, uniform=uniform)
    config = ScoringConfig(
        refresh_policy=design.policy, refresh_every=design.every, refresh_ttl_ms=design.ttl_ms
    )
    return refresh_policy(config, earns)


def live_decisions(log: RequestLog, design: Design, entries: int) -> Iterator[int]:
    """What a live service decides on a log: the ranker's steps around the policy's class."""
    earning = earning_before(log)
    keys, deleted = cache_keys(log, design.key, earning)
    uniform = np.random.default_rng(17).random(len(log.phrase))
    at = 0
    policy = live_policy(design, lambda _: bool(earning[at]), lambda: float(uniform[at]))
    cache: OrderedDict[int, AdsList] = OrderedDict()
    for at in range(len(log.phrase)):
        key, places = int(keys[at]), slice(log.offsets[at], log.offsets[at + 1])
        name, now_ms = key.to_bytes(16, "big"), int(log.time_ms[at])
        cached = cache.get(key)
        if cached is not None:
            cache.move_to_end(key)
            if not policy.on_hit(name, cached, now_ms).refresh:
                yield HIT
                continue
        fresh = AdsList(
            tuple(log.ads[places].tolist()),
            tuple(log.click_probability[places].tolist()),
            now_ms if cached is None else max(now_ms, cached.written_at_ms + 1),
            int(design.ms_per_candidate * log.cost[at] * 1000),
            Versions(),
        )
        likeness = None
        if cached is None:
            if deleted[at] in cache:
                del cache[deleted[at]]
            elif len(cache) == entries:
                cache.popitem(last=False)
        else:
            likeness = similarity(cached.ad_ids, fresh.ad_ids)
        written = merge(cached if design.merge else None, fresh, design.queue_ads if design.merge else 100)
        cache[key] = written
        policy.on_write(name, written, likeness)
        yield MISS if cached is None else REFRESH


def check(log: RequestLog, design: Design, entries: int) -> None:
    found = simulate(log, design, entries, warmup=0).decisions.tolist()
    assert list(live_decisions(log, design, entries)) == found


@settings(max_examples=100)
@given(logs(), st.sampled_from([*LIVE, "xfetch"]), st.sampled_from(KEYS), st.booleans(), st.integers(1, 30))
def test_live_classes_decide_as_the_simulator_does(
    log: RequestLog, policy: str, key: str, merged: bool, entries: int
) -> None:
    check(log, Design("any", policy, merged, key, every=3, ttl_ms=3_600_000), entries)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", DESIGNS)
def test_on_a_longer_log(name: str) -> None:
    log = random_log(11, requests=4000, phrases=50, ads=60)
    decisions = simulate(log, DESIGNS[name], 30, warmup=0).decisions
    assert set(decisions) == ({MISS, HIT} if name == "none" else {MISS, HIT, REFRESH})
    check(log, DESIGNS[name], 30)
