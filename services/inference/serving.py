"""A model in service: the scorer bundle with the batcher that feeds it, and who is still using it.

LoadModel puts another one in its place while calls are running. Each call keeps the model it began with,
tokens and vectors of one request never come from two models, and the old one is released after its last
call.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

from frugalads.inference.v1 import inference_pb2 as pb
from models.scorer.bundle import PROBE, Scorer, load_scorer
from models.scorer.encoder import serving_threads
from services.inference.batcher import Batcher, Tokens
from services.inference.config import InferenceConfig, check_tokens
from services.runtime.bundles import parse_in_child
from services.runtime.errors import BundleError

_PROBE_TIMEOUT_S = 60.0


class ServedModel:
    """A scorer and its batcher. Event-loop only."""

    def __init__(self, scorer: Scorer, batcher: Batcher) -> None:
        self.scorer = scorer
        self.batcher = batcher
        self.versions = pb.Versions(encoder=scorer.encoder_fingerprint, scorer=scorer.scorer_fingerprint)
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Keeps the model from being released for the time of the block."""
        self._calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def release(self) -> None:
        """Waits for the last call, then ends the worker. No call may begin any more."""
        await self._idle.wait()
        await asyncio.to_thread(self.batcher.close)


def load(folder: Path, config: InferenceConfig) -> Scorer:
    """Verifies the bundle, loads it in a throw-away process, then here. Raises UserError. Blocks."""
    try:
        if not folder.is_dir():
            raise BundleError(f"{folder}: no such model; `frugalads model build` makes one")
        parse_in_child(PROBE, folder, _PROBE_TIMEOUT_S)
        scorer = load_scorer(folder, config.threads or serving_threads())
    except OSError as error:
        raise BundleError(f"{folder}: cannot be read: {error.strerror or error}") from error
    check_tokens(config, scorer.encoder.recipe.max_tokens)
    return scorer


def tokenize(scorer: Scorer, texts: list[str]) -> tuple[list[Tokens], list[int]]:
    """Token ids and padded lengths of texts."""
    tokens: list[Tokens] = [scorer.encoder.tokenize(text) for text in texts]
    return tokens, [scorer.encoder.width(len(row)) for row in tokens]
