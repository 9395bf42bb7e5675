"""Options of the inference service."""

from __future__ import annotations

from dataclasses import dataclass

from services.runtime.config import ServerConfig, option
from services.runtime.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class InferenceConfig(ServerConfig):
    """The table `[inference]`."""

    model: str = option(".frugalads/models/scorer", "Folder of the scorer bundle.")
    threads: int = option(
        0, "Threads of one encoder run; 0 takes half of the cores this process may use.", low=0, high=256
    )
    max_texts: int = option(64, "Most texts of an Embed.", low=1, high=1024)
    max_text_chars: int = option(2000, "Most characters of a text.", low=1, high=100_000)
    max_candidates: int = option(1000, "Most candidates of a Score.", low=1, high=100_000)
    max_batch_rows: int = option(64, "Most texts of one encoder run.", low=1, high=1024)
    max_batch_tokens: int = option(
        512,
        "Most padded tokens of one encoder run, about 0.1 ms each. A call waits for the run that it finds.",
        low=16,
        high=1 << 20,
    )
    max_queue_rows: int = option(
        1024,
        "Most texts waiting for a run; beyond it Embed is refused with RESOURCE_EXHAUSTED.",
        low=1,
        high=1 << 20,
    )
    max_queue_tokens: int = option(
        32_768, "Most padded tokens waiting for a run, refused alike.", low=16, high=1 << 26
    )


def check(config: InferenceConfig) -> None:
    """Checks what one bound cannot say. Raises ConfigError."""
    if config.max_queue_rows < config.max_texts:
        raise ConfigError(
            f"inference: max_queue_rows {config.max_queue_rows} is less than max_texts {config.max_texts}: "
            "a full request could never be queued"
        )


def check_tokens(config: InferenceConfig, max_tokens: int) -> None:
    """Checks the bounds that depend on the model: `max_tokens` of a text. Raises ConfigError."""
    needed = config.max_texts * max_tokens
    if config.max_queue_tokens < needed:
        raise ConfigError(
            f"inference: max_queue_tokens {config.max_queue_tokens} is less than max_texts x {max_tokens} "
            f"= {needed}: a full request could never be queued"
        )
