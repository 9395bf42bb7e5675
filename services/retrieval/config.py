"""Configuration of the retrieval service."""

from __future__ import annotations

from dataclasses import dataclass

from services.runtime.config import ServerConfig, option


@dataclass(frozen=True, kw_only=True)
class RetrievalConfig(ServerConfig):
    """Options of the retrieval service."""

    index: str = option(".frugalads/index", "Folder of the index bundle to serve.")
    stop_model: str = option(
        "", "Folder of the stop model bundle of the index; empty: recall targets get calibrated budgets."
    )
    delta_dir: str = option(
        ".frugalads/run/delta",
        "Folder of the logs of live changes, one an index; each server needs its own, on a disk that lasts.",
    )
    threads: int = option(0, "Searches run at once; 0 takes the number of cores less one.", low=0, high=1024)
    default_recall: float = option(0.95, "Mean recall of a search that names no target.", low=0.01, high=1.0)
    exact_below: int = option(
        5_000, "A filter that admits fewer ads is answered by comparing all of them.", low=0, high=10_000_000
    )
    max_k: int = option(1_000, "Most ads a search returns.", low=1, high=10_000)
    max_batch: int = option(64, "Most rows of a SearchBatch, and most ads of an Upsert.", low=1, high=1_024)
    max_batch_results: int = option(16_384, "Most rows x k of a SearchBatch.", low=1, high=1_000_000)
    max_filter_conditions: int = option(16, "Most conditions of a filter.", low=1, high=256)
    max_filter_values: int = option(1_000, "Most values of one condition.", low=1, high=100_000)
    max_delete: int = option(1_000, "Most ids of a Delete.", low=1, high=100_000)
    max_delta: int = option(
        10_000,
        "Changes held beside the index before it must be rebuilt; every search scans them.",
        low=1,
        high=1_000_000,
    )
    max_index_bytes: int = option(
        16 << 30, "Largest index bundle that is loaded, bytes.", low=1 << 10, high=1 << 42
    )
    load_timeout_ms: int = option(
        300_000, "Longest trial load of an index before it is refused.", low=1_000, high=3_600_000
    )
