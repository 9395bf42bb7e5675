"""The sentence encoder: a BERT-family transformer with INT8 weights and activations on CTranslate2.

vector(text) = L2-normalised mean of the last hidden states over the text's tokens (the attention mask), as
sentence-transformers defines all-MiniLM-L6-v2. Runs without torch.

Batch invariance. A text has the same vector, to the bit, alone and in any batch. The integer products are
exact and each row has its own activation scale, but softmax and the attention products are floats whose
summation order depends on the padded length; a difference in the last bit can flip an INT8 rounding, and
the flips add up (measured with mixed padding: up to 0.012 in a component, 0.0014 in the cosine). So a
text is always padded to the next multiple of `width_step` of its own length, and rows of unequal width
never share a run. That costs padding inside a step and saves the padding up to the longest text of a
batch: on product titles 8 is the fastest step, faster than exact lengths.

Across CPUs vectors agree to a cosine of about 0.995: kernels without VNNI saturate INT8 sums that VNNI keeps.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import ctranslate2
import numpy as np
import tokenizers
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
Progress = Callable[[int, int], None]

ENGINE_FILES = ("model.bin", "config.json", "vocabulary.json")
TOKENIZER_FILE = "tokenizer.json"

_WINDOW_TEXTS = 4096


class EncoderError(Exception):
    """The engine failed, or gave something that is no vector."""


@dataclass(frozen=True)
class Recipe:
    """What, beside weights and tokenizer, decides a vector.

    Longer texts are cut to `max_tokens`, markers included; widths are multiples of `width_step`, which
    divides it.
    """

    max_tokens: int = 128
    width_step: int = 8
    pooling: str = "mean"
    normalization: str = "l2"

    def __post_init__(self) -> None:
        if not 2 < self.max_tokens <= 4096 or self.width_step < 1 or self.max_tokens % self.width_step:
            raise ValueError(f"max_tokens {self.max_tokens} with width_step {self.width_step}")
        if (self.pooling, self.normalization) != ("mean", "l2"):
            raise ValueError(f"pooling {self.pooling!r} with normalization {self.normalization!r} is unknown")

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


def serving_threads() -> int:
    """Threads for serving where none are configured: half of the cores this process may use, at least 1.

    More threads shorten long batches but, sharing cores with other services, lengthen a single query: on
    2 busy cores a query takes four times as long with 2 threads as with 1.
    """
    return max(1, len(os.sched_getaffinity(0)) // 2)


class Encoder:
    """Texts to unit vectors. Safe to use from several threads; the engine runs without the GIL.

    files: the content of ENGINE_FILES and TOKENIZER_FILE. threads: per run. compute: "int8", or "float32"
    for reference vectors of the same weights. Raises EncoderError when the engine or the tokenizer
    refuses the files.
    """

    engine = "ctranslate2-int8"

    def __init__(
        self, files: Mapping[str, bytes], recipe: Recipe, threads: int, compute: str = "int8"
    ) -> None:
        self.recipe = recipe
        try:
            self._tokenizer = tokenizers.Tokenizer.from_buffer(files[TOKENIZER_FILE])
            self._tokenizer.no_padding()
            self._tokenizer.enable_truncation(recipe.max_tokens)
            engine_files = {name: files[name] for name in ENGINE_FILES}
            self._engine = ctranslate2.Encoder(
                "encoder", device="cpu", compute_type=compute, intra_threads=threads, files=engine_files
            )
        except Exception as error:  # tokenizers raises bare Exception
            raise EncoderError(f"the encoder cannot be loaded: {error}") from error
        self.dimension = int(self.forward([self.tokenize("")]).shape[1])

    def tokenize(self, text: str) -> list[int]:
        """Token ids with markers, at most max_tokens.

        Any string will do: control characters, NUL among them, are dropped by BERT's normaliser, a lone
        surrogate counts as U+FFFD. A text without a token left still has its two markers, and so a
        vector.
        """
        try:
            ids: list[int] = self._tokenizer.encode(text).ids
        except TypeError:  # not encodable as UTF-8
            repaired = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            ids = self._tokenizer.encode(repaired).ids
        return ids

    def width(self, tokens: int) -> int:
        """The padded length of a text of so many tokens."""
        step = self.recipe.width_step
        return -(-tokens // step) * step

    def forward(self, ids: Sequence[Sequence[int]]) -> Vectors:
        """Unit vectors, float32 [n, dimension], of n >= 1 texts of equal width, in one run.

        Raises ValueError when the widths differ, EncoderError when the engine fails or a vector is not
        finite.
        """
        lengths = np.array([len(row) for row in ids], np.int32)
        width = self.width(int(lengths.max()))
        if self.width(int(lengths.min())) != width:
            raise ValueError("rows of unequal width in one run")
        padded = np.zeros((len(ids), width), np.int32)
        for row, target in zip(ids, padded, strict=True):
            target[: len(row)] = row
        try:
            output = self._engine.forward_batch(
                ctranslate2.StorageView.from_array(padded), ctranslate2.StorageView.from_array(lengths)
            )
            hidden = np.asarray(output.last_hidden_state)
        except (RuntimeError, ValueError) as error:
            raise EncoderError(f"the engine failed on {len(ids)} texts of width {width}: {error}") from error
        return _pooled(hidden, lengths)

    def encode(self, texts: Sequence[str], batch_rows: int = 64, progress: Progress | None = None) -> Vectors:
        """Unit vectors, float32 [n, dimension], of any number of texts; `progress` is called with (done, n).

        Sorts by width within windows, so memory beside the result is bounded.
        """
        vectors = np.empty((len(texts), self.dimension), np.float32)
        done = 0
        for start in range(0, len(texts), _WINDOW_TEXTS):
            for places, rows in self._runs(texts[start : start + _WINDOW_TEXTS], batch_rows):
                vectors[[start + place for place in places]] = self.forward(rows)
                done += len(rows)
                if progress is not None:
                    progress(done, len(texts))
        return vectors

    def _runs(self, texts: Sequence[str], batch_rows: int) -> Iterator[tuple[list[int], list[list[int]]]]:
        tokenized = [self.tokenize(text) for text in texts]

        def width_of(place: int) -> int:
            return self.width(len(tokenized[place]))

        for _, group in groupby(sorted(range(len(texts)), key=width_of), key=width_of):
            lane = list(group)
            for start in range(0, len(lane), batch_rows):
                places = lane[start : start + batch_rows]
                yield places, [tokenized[place] for place in places]


def _pooled(hidden: Vectors, lengths: NDArray[np.int32]) -> Vectors:
    """Mean over each row's own tokens, normalised, by elementwise sums: the same in any batch."""
    mask = np.arange(hidden.shape[1]) < lengths[:, None]
    means = np.add.reduce(hidden * mask[:, :, None], axis=1, dtype=np.float32) / lengths[:, None].astype(
        np.float32
    )
    norms = np.sqrt(np.add.reduce(means * means, axis=1, keepdims=True))
    if not np.isfinite(norms).all() or (norms == 0).any():
        raise EncoderError("the engine gave a vector that is zero or not finite")
    vectors: Vectors = (means / norms).astype(np.float32)
    return vectors
