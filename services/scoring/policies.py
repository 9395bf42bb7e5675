"""The refresh policy of a scoring process, as configured."""

from __future__ import annotations

import math

from services.core.ads_list import AdsList, Versions, merge
from services.core.refresh.adaptive import AdaptiveRefresh
from services.core.refresh.adaptive_ttl import AdaptiveTtl
from services.core.refresh.fixed import FixedRefresh
from services.core.refresh.none import NoRefresh
from services.core.refresh.policy import Earns, RefreshPolicy
from services.core.refresh.two_level import TwoLevelRefresh
from services.core.refresh.xfetch import XFetch
from services.scoring.config import ScoringConfig


def refresh_policy(config: ScoringConfig, earns: Earns) -> RefreshPolicy:
    """The policy that `refresh_policy` names; `earns` tells which queries have earned."""
    match config.refresh_policy:
        case "none":
            return NoRefresh()
        case "two_level":
            return TwoLevelRefresh(earns)
        case "adaptive":
            return AdaptiveRefresh(earns)
        case "adaptive_ttl":
            return AdaptiveTtl(config.refresh_ttl_ms)
        case "xfetch":
            return XFetch(config.refresh_ttl_ms)
    return FixedRefresh(config.refresh_every)


def warm_up(policy: RefreshPolicy) -> None:
    """Compile what decisions and merges run, by using a policy once; it is not to be used afterwards."""
    entry = AdsList((1,), (0.5,), 1, 1, Versions())
    key = bytes(16)
    policy.on_write(key, merge(None, entry, 1), None)
    policy.on_hit(key, entry, 2)
    policy.on_write(key, merge(entry, entry, 1), math.nan)
