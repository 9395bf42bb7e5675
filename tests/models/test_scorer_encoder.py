"""The converted INT8 encoder against a float32 forward pass in numpy, and its batch invariance."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from models.scorer.bundle import Scorer
from models.scorer.convert import Weights
from models.scorer.encoder import Encoder, EncoderError, Recipe

TEXTS = [
    "laser printer toner",
    "shoes",
    "running shoes for women with wide feet",
    "cheap flights to rome in may",
    "HP LaserJet Pro M404dn, A4, 38 ppm, duplex, ethernet, USB 2.0, 256 MB",
    'Notebook 39.6 cm (15.6") Full HD Intel Core i5 8 GB 256 GB SSD Wi-Fi 6 Windows 11 Home',
    "how do i fix a leaking tap",
    "car insurance quotes online comparison",
    "Crème brûlée torch, ø 20 mm",
    "手机壳 透明",
    "детская коляска 3 в 1",
    "C++ programming book 3rd edition (hardcover)",
    "!!! SALE !!! 50% off *today only*",
    "a",
    "lawyer near me",
    "used ford focus 2014 diesel estate under 5000",
    "hotel with pool & spa, family room, breakfast included, near beach, pets allowed",
    "mattress 160x200 memory foam",
    "0123456789 9876543210",
    "wireless noise cancelling headphones over ear bluetooth 5.3 40h battery foldable with microphone",
]

Array = NDArray[np.float32]
_erf = np.vectorize(math.erf, otypes=[np.float32])


class BertOracle:
    """BERT's forward pass in numpy, written from the equations (Devlin et al. 2019, Vaswani et al. 2017).

    Independent of the code under test: one text at a time, float32, no padding, no mask, no quantization.
    """

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.weights: dict[str, Array] = load_file(folder / "model.safetensors")

    def sentence_vector(self, ids: list[int]) -> Array:
        """Unit vector, float32 [hidden]: mean of the last hidden states of all tokens."""
        mean: Array = self.hidden(ids).mean(axis=0)
        unit: Array = mean / np.linalg.norm(mean)
        return unit

    def hidden(self, ids: list[int]) -> Array:
        words = self.weights["embeddings.word_embeddings.weight"][ids]
        positions = self.weights["embeddings.position_embeddings.weight"][: len(ids)]
        segment = self.weights["embeddings.token_type_embeddings.weight"][0]
        x = self._norm(words + positions + segment, "embeddings.LayerNorm")
        for number in range(self.config["num_hidden_layers"]):
            x = self._layer(x, f"encoder.layer.{number}")
        return x

    def _layer(self, x: Array, name: str) -> Array:
        heads = self.config["num_attention_heads"]
        size = x.shape[1] // heads
        q, k, v = (
            self._linear(x, f"{name}.attention.self.{part}").reshape(len(x), heads, size).transpose(1, 0, 2)
            for part in ("query", "key", "value")
        )
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(size)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        mixed = (shares @ v).transpose(1, 0, 2).reshape(x.shape)
        x = self._norm(
            x + self._linear(mixed, f"{name}.attention.output.dense"), f"{name}.attention.output.LayerNorm"
        )
        inner = self._linear(x, f"{name}.intermediate.dense")
        inner = inner * 0.5 * (1.0 + _erf(inner / math.sqrt(2.0)))
        return self._norm(x + self._linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def _linear(self, x: Array, name: str) -> Array:
        result: Array = x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]
        return result

    def _norm(self, x: Array, name: str) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self.config["layer_norm_eps"])
        result: Array = centred / scale * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return result


def test_each_vector_is_that_of_the_float_forward_pass(scorer: Scorer, weights: Weights) -> None:
    oracle = BertOracle(weights.folder)
    vectors = scorer.encoder.encode(TEXTS)
    expected = np.stack([oracle.sentence_vector(scorer.encoder.tokenize(text)) for text in TEXTS])
    cosines = (vectors * expected).sum(axis=1)
    print(f"cosine INT8 to float32: min {cosines.min():.4f}, mean {cosines.mean():.4f}")
    assert cosines.min() >= 0.99
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)


def test_the_converted_weights_alone_lose_almost_nothing(bundle_folder: Path, weights: Weights) -> None:
    """Float arithmetic on the INT8 weights: what is left of the error is the rounding of the weights."""
    names = ("model.bin", "config.json", "vocabulary.json", "tokenizer.json")
    files = {name: (bundle_folder / name).read_bytes() for name in names}
    encoder = Encoder(files, Recipe(), threads=1, compute="float32")
    oracle = BertOracle(weights.folder)
    expected = np.stack([oracle.sentence_vector(encoder.tokenize(text)) for text in TEXTS[:6]])
    assert (encoder.encode(TEXTS[:6]) * expected).sum(axis=1).min() >= 0.998


def test_a_text_has_the_same_vector_alone_and_in_any_batch(scorer: Scorer) -> None:
    """OS-Atlas#17, transformers#34824: batched results that differ from single ones."""
    encoder = scorer.encoder
    words = " ".join(TEXTS).split()
    shuffle = random.Random(1)
    texts = [" ".join(shuffle.choices(words, k=shuffle.randint(1, 120))) for _ in range(60)] + TEXTS
    alone = np.concatenate([encoder.encode([text]) for text in texts])
    for batch_rows in (2, 7, 64):
        shuffle.shuffle(order := list(range(len(texts))))
        together = encoder.encode([texts[place] for place in order], batch_rows=batch_rows)
        difference = np.abs(together - alone[order]).max()
        assert difference == 0.0, f"batches of {batch_rows}: {difference}"


def test_order_is_kept_and_duplicates_are_equal(scorer: Scorer) -> None:
    vectors = scorer.encoder.encode(["b", "a much longer text than the other two", "b"])
    assert np.array_equal(vectors[0], vectors[2])
    assert not np.allclose(vectors[0], vectors[1])


def test_unequal_widths_in_one_run_are_refused(scorer: Scorer) -> None:
    with pytest.raises(ValueError, match="unequal width"):
        scorer.encoder.forward([[101, 102], [101] + [2003] * 20 + [102]])


def test_long_texts_are_cut_at_max_tokens(scorer: Scorer) -> None:
    encoder = scorer.encoder
    assert len(encoder.tokenize("word " * 1000)) == encoder.recipe.max_tokens
    assert np.array_equal(encoder.encode(["word " * 1000]), encoder.encode(["word " * 2000]))


@pytest.mark.parametrize(
    ("odd", "like"),
    [
        ("las\0er prin\0ter", "laser printer"),
        ("laser\ud800 printer", "laser printer"),
        ("\ud83d\ude00", "😀"),
        ("\0", ""),
    ],
)
def test_control_characters_and_surrogates_do_no_harm(scorer: Scorer, odd: str, like: str) -> None:
    assert np.array_equal(scorer.encoder.encode([odd]), scorer.encoder.encode([like]))


def test_nothing_to_encode_is_an_empty_matrix(scorer: Scorer) -> None:
    assert scorer.encoder.encode([]).shape == (0, 384)


def test_progress_is_told_to_the_last_text(scorer: Scorer) -> None:
    seen: list[tuple[int, int]] = []
    scorer.encoder.encode(
        ["a b c", "d", "e " * 40], batch_rows=1, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_files_that_are_no_model_are_refused(bundle_folder: Path) -> None:
    names = ("config.json", "vocabulary.json", "tokenizer.json")
    files = {name: (bundle_folder / name).read_bytes() for name in names} | {"model.bin": b"no model"}
    with pytest.raises(EncoderError, match="cannot be loaded"):
        Encoder(files, Recipe(), threads=1)


@pytest.mark.parametrize(
    "change", [{"max_tokens": 2}, {"max_tokens": 100}, {"width_step": 0}, {"pooling": "cls"}]
)
def test_unknown_recipes_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"max_tokens|pooling"):
        Recipe(**change)  # type: ignore[arg-type]
