"""What a request must be, checked before anything is spent on it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from frugalads.inference.v1 import inference_pb2 as pb
from services.inference.config import InferenceConfig
from services.runtime.errors import InvalidArgument

# Inner products of unit vectors in float32 pass 1 by rounding.
MAX_SIMILARITY = 1.0001
MAX_PATH_CHARS = 1_024  # it comes back in the metadata of an error, which gRPC limits to 8 KiB


def parse_embed(request: pb.EmbedRequest, config: InferenceConfig) -> list[str]:
    """The texts to encode. Raises InvalidArgument."""
    texts = list(request.texts)
    if not 1 <= len(texts) <= config.max_texts:
        raise InvalidArgument("texts", len(texts), f"1..{config.max_texts} texts")
    for index, text in enumerate(texts):
        _check_length(f"texts[{index}]", text, 1, config.max_text_chars)
    return texts


def parse_score(request: pb.ScoreRequest, config: InferenceConfig) -> NDArray[np.float32]:
    """The similarities to turn into click probabilities, one a candidate. Raises InvalidArgument."""
    _check_length("query", request.query, 1, config.max_text_chars)
    candidates = len(request.ad_ids)
    if not 1 <= candidates <= config.max_candidates:
        raise InvalidArgument("ad_ids", candidates, f"1..{config.max_candidates} candidates")
    if len(request.similarities) != candidates:
        given = len(request.similarities)
        raise InvalidArgument("similarities", given, f"one value for each of the {candidates} candidates")
    if request.texts and len(request.texts) != candidates:
        raise InvalidArgument(
            "texts", len(request.texts), f"empty, or one for each of the {candidates} candidates"
        )
    for index, text in enumerate(request.texts):
        _check_length(f"texts[{index}]", text, 0, config.max_text_chars)
    similarities = np.array(request.similarities, np.float32)
    outside = ~(np.abs(similarities) <= MAX_SIMILARITY)  # NaN is outside, too
    if outside.any():
        index = int(outside.argmax())
        raise InvalidArgument(f"similarities[{index}]", float(similarities[index]), "in -1..1")
    return similarities


def parse_path(request: pb.LoadModelRequest) -> str:
    """The folder of the model to serve. Raises InvalidArgument."""
    if "\0" in request.path or not 1 <= len(request.path) <= MAX_PATH_CHARS:
        limit = f"the folder of a scorer bundle, at most {MAX_PATH_CHARS} characters"
        raise InvalidArgument("path", request.path, limit)
    return request.path


def _check_length(field: str, text: str, least: int, most: int) -> None:
    if not least <= len(text) <= most:
        raise InvalidArgument(field, f"{len(text)} characters", f"{least}..{most} characters")
