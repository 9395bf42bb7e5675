"""Options of the scoring service."""

from __future__ import annotations

from dataclasses import dataclass

from services.runtime.config import ServerConfig, option
from services.runtime.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ScoringConfig(ServerConfig):
    """The table `[scoring]`."""

    cache_url: str = option("redis://127.0.0.1:6379/0", "Redis that holds scored lists.")
    state_url: str = option(
        "redis://127.0.0.1:6380/0", "Redis that holds live ads, budgets, clicks and revenue."
    )
    retrieval_target: str = option("127.0.0.1:7101", "Address of the retrieval service.")
    inference_target: str = option("127.0.0.1:7102", "Address of the inference service.")
    eviction_target: str = option("", "Address of the eviction sidecar; empty has none.")
    click_secret: str = option(
        "",
        "Secret that signs click tokens, 16 characters or more, the same in every scoring process.",
        secret=True,
    )
    key_prefix: str = option("frugalads:list:", "Prefix of cache keys; the eviction sidecar manages it.")
    refresh_policy: str = option(
        "fixed",
        "When a cached list is computed anew: never; at every refresh_every-th hit; by whether its query has"
        " earned (two_level, adaptive); by its age (adaptive_ttl, xfetch).",
        choices=("none", "fixed", "two_level", "adaptive", "adaptive_ttl", "xfetch"),
    )
    refresh_every: int = option(
        5, "With policy fixed, a cached list is computed anew at every n-th hit.", low=1, high=1_000_000
    )
    refresh_ttl_ms: int = option(
        600_000,
        "Age at which a list is computed anew with policy xfetch; with adaptive_ttl the least such age.",
        low=1,
        high=86_400_000,
    )
    refresh_model: str = option(
        "",
        "Bundle of the refresh model, which decides instead of refresh_policy; its folder is watched, and a"
        " model that is refused leaves the decisions to refresh_policy. Empty has none.",
    )
    refresh_cost_ratio: float = option(
        0.2,
        "What computing every list anew would cost, as a share of the revenue: it makes the price that the"
        " refresh model's predicted losses are compared with.",
        low=0.001,
        high=10.0,
    )
    outdated_refreshes_per_s: int = option(
        10,
        "Most lists a second that are computed anew only because a newer model or index serves; 0 leaves them"
        " to the policy.",
        low=0,
        high=10_000,
    )
    control_log: str = option(
        "",
        "File of JSON lines for the requests of the control group, whose lists are never reused: what"
        " frugalads log import reads and frugalads train refresh learns from. Empty has no group.",
    )
    control_share: float = option(0.01, "Share of queries in the control group.", low=0.0, high=1.0)
    control_per_s: int = option(
        20, "Most hits a second that are computed anew for the control group.", low=1, high=100_000
    )
    control_log_bytes: int = option(
        1 << 28, "Size of the control log, and of the older one beside it.", low=1 << 16, high=1 << 40
    )
    cache_key: str = option(
        "phrase",
        "What a list is cached by: the query; the query and the user's location, gender and age where it has"
        " earned (selective), or always (all). Only for scorers that look at the user.",
        choices=("phrase", "selective", "all"),
    )
    candidates: int = option(48, "Ads asked from retrieval for a list.", low=1, high=1000)
    list_capacity: int = option(
        64, "Ads that a cached list holds after merging; candidates or more.", low=1, high=4096
    )
    recall_target: float = option(0.95, "Mean recall asked from retrieval.", low=0.01, high=1.0)
    min_similarity: float = option(
        0.40, "Candidates less similar to the query are dropped as unrelated.", low=-1.0, high=1.0
    )
    reserve_usd: float = option(
        0.05, "Least bid that takes part, and least price of a click.", low=0.000001, high=1000
    )
    cache_timeout_ms: int = option(15, "Longest wait for the cache.", low=1, high=10_000)
    state_timeout_ms: int = option(1_000, "Longest wait for the state Redis.", low=1, high=60_000)
    compute_timeout_ms: int = option(2_000, "Longest computation of a list.", low=10, high=60_000)
    max_query_chars: int = option(256, "Most characters of a query.", low=1, high=4096)
    max_slots: int = option(16, "Most ad positions of an answer.", low=1, high=64)
    max_clicks: int = option(100, "Most clicks of a RecordClicks.", low=1, high=1000)
    max_updates: int = option(1000, "Most changes of an UpdateAds.", low=1, high=10_000)
    max_concurrent_computations: int = option(
        64,
        "Lists computed at once; beyond it misses are refused with RESOURCE_EXHAUSTED.",
        low=1,
        high=10_000,
    )


MIN_SECRET_CHARS = 16


def check(config: ScoringConfig) -> None:
    """Checks what one bound cannot say. Raises ConfigError."""
    if len(config.click_secret) < MIN_SECRET_CHARS:
        raise ConfigError(f"scoring: click_secret must have {MIN_SECRET_CHARS} characters or more")
    if config.candidates > config.list_capacity:
        raise ConfigError(
            f"scoring: candidates {config.candidates} is more than list_capacity {config.list_capacity}"
        )
    if not config.key_prefix:
        raise ConfigError("scoring: key_prefix must not be empty")
