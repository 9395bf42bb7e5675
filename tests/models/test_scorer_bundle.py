"""The scorer bundle: what is built, and what is refused."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models.scorer import bundle
from models.scorer.bundle import PROBE, Scorer, load_scorer, replace_calibrator
from models.scorer.calibration import DEFAULT, Calibration
from models.scorer.convert import Weights, build_scorer
from services.runtime.bundles import open_bundle, parse_in_child, write_bundle
from services.runtime.errors import BundleError, UserError


def rewritten(folder: Path, out: Path, change: Callable[[dict[str, bytes], dict[str, Any]], None]) -> Path:
    """A bundle with a valid manifest and changed content, as a faulty builder would write it."""
    found = open_bundle(folder, bundle.KIND, max_bytes=bundle.MAX_BYTES)
    names = (*bundle.ENCODER_FILES, bundle.GOLDEN_FILE, bundle.CALIBRATOR_FILE)
    files, meta = {name: found.read(name) for name in names}, dict(found.meta)
    change(files, meta)
    with write_bundle(out, bundle.KIND, meta) as staging:
        for name, content in files.items():
            (staging / name).write_bytes(content)
    return out


def test_a_built_bundle_says_what_it_is(bundle_folder: Path, scorer: Scorer) -> None:
    meta = open_bundle(bundle_folder, "scorer", max_bytes=1 << 30).meta
    assert meta["encoder"] == scorer.encoder_fingerprint
    assert meta["dimension"] == scorer.encoder.dimension == 384
    assert meta["recipe"] == {"max_tokens": 128, "width_step": 8, "pooling": "mean", "normalization": "l2"}
    assert scorer.calibration == DEFAULT
    assert len(scorer.encoder_fingerprint) == len(scorer.scorer_fingerprint) == 32


def test_building_twice_gives_the_same_encoder(bundle_folder: Path, weights: Weights, tmp_path: Path) -> None:
    again = build_scorer(weights, tmp_path / "again", DEFAULT)
    first = open_bundle(bundle_folder, "scorer", max_bytes=1 << 30)
    assert again["encoder"] == first.meta["encoder"]
    assert (tmp_path / "again" / "model.bin").read_bytes() == first.read("model.bin")


def test_a_new_calibrator_changes_the_scorer_but_not_the_encoder(
    bundle_folder: Path, scorer: Scorer, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(bundle_folder, copy)
    replace_calibrator(copy, Calibration(-4.0, 2.0, "test"))
    changed = load_scorer(copy, threads=1)
    assert changed.encoder_fingerprint == scorer.encoder_fingerprint
    assert changed.scorer_fingerprint != scorer.scorer_fingerprint
    assert changed.calibration == Calibration(-4.0, 2.0, "test")


def test_a_full_disk_leaves_the_calibrator_that_was_there(bundle_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "scorer"
    shutil.copytree(bundle_folder, folder)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, old[1]))
    try:
        with pytest.raises(BundleError, match="cannot be written: File too large"):
            replace_calibrator(folder, Calibration(-4.0, 2.0, "test"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert load_scorer(folder, threads=1).calibration == DEFAULT
    assert [path.name for path in tmp_path.iterdir()] == ["scorer"]


def test_an_altered_file_is_named(bundle_folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(bundle_folder, copy)
    content = bytearray((copy / "model.bin").read_bytes())
    content[1_000_000] ^= 1
    (copy / "model.bin").write_bytes(content)
    with pytest.raises(BundleError, match=r"model\.bin: its SHA-256 differs"):
        load_scorer(copy, threads=1)


def shift_word_vectors(files: dict[str, bytes], meta: dict[str, Any]) -> None:
    """Turns the tokenizer into that of another model: every id off by one."""
    document = json.loads(files["tokenizer.json"])
    vocabulary = document["model"]["vocab"]
    special = {token for token in vocabulary if vocabulary[token] <= 103}
    document["model"]["vocab"] = {
        token: number if token in special else (number if number >= 30_521 else number + 1)
        for token, number in vocabulary.items()
    }
    files["tokenizer.json"] = json.dumps(document).encode()


def wrong_dimension(files: dict[str, bytes], meta: dict[str, Any]) -> None:
    meta["dimension"] = 768


def no_recipe(files: dict[str, bytes], meta: dict[str, Any]) -> None:
    del meta["recipe"]


def other_recipe(files: dict[str, bytes], meta: dict[str, Any]) -> None:
    meta["recipe"] = {"max_tokens": 128, "pooling": "cls"}


def too_many_positions(files: dict[str, bytes], meta: dict[str, Any]) -> None:
    meta["recipe"] = {"max_tokens": 1024, "width_step": 512}


def truncated(files: dict[str, bytes], meta: dict[str, Any]) -> None:
    files["model.bin"] = files["model.bin"][: 1 << 20]


def calibrator_of_another_kind(files: dict[str, bytes], meta: dict[str, Any]) -> None:
    files["calibrator.json"] = b'{"kind": "cross-encoder"}'


def falling_calibrator(files: dict[str, bytes], meta: dict[str, Any]) -> None:
    files["calibrator.json"] = b'{"kind": "similarity-baseline", "intercept": -5.0, "slope": -1.0}'


def golden_of_another_shape(files: dict[str, bytes], meta: dict[str, Any]) -> None:
    files["golden.json"] = b'{"texts": ["a"], "vectors": [[1.0, 0.0]]}'


def no_golden(files: dict[str, bytes], meta: dict[str, Any]) -> None:
    files["golden.json"] = b'{"texts": [], "vectors": []}'


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shift_word_vectors, "cosine of"),
        (wrong_dimension, "vectors have 384 numbers, the manifest says 768"),
        (no_recipe, "recipe is missing or unknown"),
        (other_recipe, "pooling 'cls'"),
        (too_many_positions, "position|length|width|loaded"),
        (truncated, "cannot be loaded"),
        (calibrator_of_another_kind, "not a calibrator of kind similarity-baseline"),
        (falling_calibrator, "slope -1.0 is not a number above 0"),
        (golden_of_another_shape, "1 texts with vectors of shape"),
        (no_golden, "0 texts with vectors of shape"),
    ],
)
def test_a_well_sealed_bundle_of_the_wrong_content_does_not_load(
    bundle_folder: Path,
    tmp_path: Path,
    change: Callable[[dict[str, bytes], dict[str, Any]], None],
    message: str,
) -> None:
    """In a child, as the server does: some of these would take the process along."""
    folder = rewritten(bundle_folder, tmp_path / "changed", change)
    with pytest.raises(BundleError, match=message):
        parse_in_child(PROBE, folder, 60)


def test_a_good_bundle_passes_its_trial_load(bundle_folder: Path) -> None:
    parse_in_child(PROBE, bundle_folder, 60)


def copied_weights(weights: Weights, folder: Path) -> Path:
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copy(weights.folder / name, folder)
    return folder


def test_a_local_folder_builds_too_also_with_prefixed_half_precision_tensors(
    weights: Weights, tmp_path: Path
) -> None:
    folder = copied_weights(weights, tmp_path / "weights")
    tensors = load_file(folder / "model.safetensors")
    half = {
        f"bert.{name}": value.astype(np.float16) if value.dtype == np.float32 else value
        for name, value in tensors.items()
    }
    save_file(half, folder / "model.safetensors")
    build_scorer(Weights.of_folder(folder), tmp_path / "out", DEFAULT)
    encoder = load_scorer(tmp_path / "out", threads=1).encoder
    related, other = (
        encoder.encode(["toner for a laser printer", "garden hose"])
        @ encoder.encode(["printer cartridge"])[0]
    )
    assert related > other + 0.3


@pytest.mark.parametrize(
    ("key", "value"),
    [("model_type", "roberta"), ("hidden_act", "swish"), ("position_embedding_type", "relative_key")],
)
def test_weights_of_another_architecture_are_refused_and_leave_the_old_bundle(
    weights: Weights, bundle_folder: Path, tmp_path: Path, key: str, value: str
) -> None:
    folder = copied_weights(weights, tmp_path / "weights")
    config = json.loads((folder / "config.json").read_text()) | {key: value}
    (folder / "config.json").write_text(json.dumps(config))
    out = tmp_path / "out"
    shutil.copytree(bundle_folder, out)
    with pytest.raises(UserError, match=f"{key} '{value}' is not one of"):
        build_scorer(Weights.of_folder(folder), out, DEFAULT)
    assert load_scorer(out, threads=1)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_missing_tensor_is_named(weights: Weights, tmp_path: Path) -> None:
    folder = copied_weights(weights, tmp_path / "weights")
    tensors = load_file(folder / "model.safetensors")
    del tensors["encoder.layer.3.output.dense.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"encoder\.layer\.3\.output\.dense\.weight"):
        build_scorer(Weights.of_folder(folder), tmp_path / "out", DEFAULT)
    assert not (tmp_path / "out").exists()


def test_a_config_without_positions_is_named(weights: Weights, tmp_path: Path) -> None:
    folder = copied_weights(weights, tmp_path / "weights")
    config = json.loads((folder / "config.json").read_text())
    del config["max_position_embeddings"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="no BERT encoder that can be converted: 'max_position_embeddings'"):
        build_scorer(Weights.of_folder(folder), tmp_path / "out", DEFAULT)


def test_a_bundle_that_cannot_be_written_is_said_in_a_sentence(weights: Weights, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"below: cannot be written: "):
        build_scorer(weights, tmp_path / "file" / "below", DEFAULT)


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json: missing"):
        Weights.of_folder(tmp_path)


def test_building_never_replaces_a_folder_that_is_no_bundle(weights: Weights, tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(UserError, match="holds something other than a bundle of kind"):
        build_scorer(weights, tmp_path, DEFAULT)
    assert (tmp_path / "precious.txt").read_text() == "mine"
