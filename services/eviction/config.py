"""Configuration of the eviction sidecar."""

from __future__ import annotations

from dataclasses import dataclass

from services.core.eviction.priority import LIVE
from services.runtime.config import ServerConfig, option
from services.runtime.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class EvictionConfig(ServerConfig):
    """Options of the eviction sidecar."""

    redis_url: str = option(
        "redis://127.0.0.1:6379/0",
        "The cache to manage: Redis 7.0 or newer, or Valkey, with maxmemory set.",
        secret=True,
    )
    key_prefix: str = option(
        "frugalads:list:", "Keys under this prefix are managed; no other key is touched."
    )
    order: str = option(
        "ours",
        "Order of eviction: ours weighs cost, size and remembered visits; gdsf cost, size and uses;"
        " greedydual and gdwheel (the same in constant time) the cost only.",
        choices=LIVE,
    )
    key_classes: str = option(
        "",
        "Classes of keys by what follows the prefix, such as `vip:=pin, map:=50000`: never evicted, or worth"
        " at least so many microseconds.",
    )
    cost_field: str = option(
        "", "Field of entries that are hashes which holds their cost, microseconds; empty reads none."
    )
    lease_ms: int = option(
        2_000,
        "Time without a sign of life after which another sidecar of the prefix takes over.",
        low=100,
        high=600_000,
    )
    high_watermark: float = option(
        0.90,
        "Share of maxmemory above which the sidecar evicts; Redis itself evicts at 1.",
        low=0.1,
        high=0.99,
    )
    low_watermark: float = option(
        0.85, "Share of maxmemory down to which it evicts; below high_watermark.", low=0.05, high=0.98
    )
    tick_ms: int = option(
        250,
        "Time between looks at the memory; a burst of writes brings the next one forward.",
        low=5,
        high=10_000,
    )
    max_keys_per_tick: int = option(4_096, "Most entries evicted in one tick.", low=1, high=1_000_000)
    max_bytes_per_tick: int = option(64 << 20, "Most bytes evicted in one tick.", low=1 << 10, high=1 << 36)
    redis_timeout_ms: int = option(1_000, "Time that Redis has to answer a command.", low=10, high=60_000)
    max_events: int = option(1_000, "Most events in one report.", low=1, high=100_000)
    max_key_bytes: int = option(512, "Longest key that is reported, bytes.", low=1, high=65_535)


def checked(config: EvictionConfig) -> EvictionConfig:
    """The configuration, when its options fit each other; raises ConfigError."""
    if not config.low_watermark < config.high_watermark:
        raise ConfigError(
            f"eviction: low_watermark {config.low_watermark} must be below"
            f" high_watermark {config.high_watermark}"
        )
    if not 1 <= len(config.key_prefix.encode()) < config.max_key_bytes:
        raise ConfigError(
            f"eviction: key_prefix {config.key_prefix!r} must have 1..{config.max_key_bytes - 1} bytes,"
            " shorter than max_key_bytes"
        )
    return config
