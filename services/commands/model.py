"""`frugalads model`: builds the scorer bundle, and calibrates it on rated pairs."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from services.runtime.errors import UserError

if TYPE_CHECKING:
    from models.scorer.calibration import Evaluation

DEFAULT_MODEL = Path(".frugalads/models/scorer")
DEFAULT_CATALOGUE = Path(".frugalads/catalogue")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `frugalads model build` and `frugalads model calibrate`."""
    parser = subparsers.add_parser("model", help="build the scorer model, or calibrate it")
    actions = parser.add_subparsers(required=True, metavar="ACTION")

    build = actions.add_parser("build", help="quantize an encoder to INT8 and bundle it with a calibrator")
    build.add_argument(
        "--weights",
        type=Path,
        metavar="DIR",
        help="BERT-family model folder (config.json, model.safetensors, tokenizer.json); "
        "default all-MiniLM-L6-v2 of the installed package",
    )
    build.add_argument("--out", type=Path, default=DEFAULT_MODEL, metavar="DIR", help="default %(default)s")
    build.set_defaults(run=run_build)

    calibrate = actions.add_parser(
        "calibrate", help="fit click probabilities on rated pairs, and measure them on held-out queries"
    )
    calibrate.add_argument(
        "--catalogue", type=Path, default=DEFAULT_CATALOGUE, metavar="DIR", help="default %(default)s"
    )
    calibrate.add_argument(
        "--ratings", type=Path, required=True, metavar="CSV", help="columns query, docid, rating 0..3"
    )
    calibrate.add_argument(
        "--model", type=Path, default=DEFAULT_MODEL, metavar="DIR", help="default %(default)s"
    )
    calibrate.add_argument(
        "--out", type=Path, metavar="FILE", help="write the calibrator here and leave the model as it is"
    )
    calibrate.set_defaults(run=run_calibrate)


def run_build(args: argparse.Namespace) -> int:
    """Builds the bundle and prints its fingerprint."""
    from models.scorer.calibration import DEFAULT
    from models.scorer.convert import Weights, build_scorer

    weights = Weights.of_folder(args.weights) if args.weights else Weights.of_package()
    meta = build_scorer(weights, args.out, DEFAULT)
    recipe = meta["recipe"]
    print(f"encoder {meta['encoder']}: INT8, {meta['dimension']} numbers, {recipe['max_tokens']} tokens")
    if args.weights:
        print("WARNING: calibrated for all-MiniLM-L6-v2; run `frugalads model calibrate`")
    print(f"scorer model: {args.out}")
    return 0


def run_calibrate(args: argparse.Namespace) -> int:
    """Fits, prints the figures on the held-out half, and puts the new calibrator into the model."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from models.scorer.bundle import load_scorer, replace_calibrator
    from models.scorer.ratings import calibrate, read_ratings
    from services.catalogue.bundle import read_catalogue

    ratings = read_ratings(args.ratings)
    texts = {ad.ad_id: ad.text for ad in read_catalogue(args.catalogue)}
    scorer = load_scorer(args.model, threads=len(os.sched_getaffinity(0)))
    unknown = sum(rating.ad_id not in texts for rating in ratings)
    columns = (TextColumn("encoding"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("encoding")
        fitted, measured = calibrate(
            scorer.encoder,
            ratings,
            texts,
            f"{args.ratings.name}, encoder {scorer.encoder_fingerprint}",
            lambda done, total: bar.update(task, completed=done, total=total),
        )
    if unknown:
        print(f"left out: {unknown:,} of {len(ratings):,} pairs, whose ad is not in the catalogue")
    print(f"p(click) = logistic({fitted.intercept:.4f} + {fitted.slope:.4f} x similarity)")
    print(describe(measured))
    if args.out is None:
        replace_calibrator(args.model, fitted)
        print(f"scorer model: {args.model}")
        return 0
    try:
        args.out.write_text(fitted.to_json(), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{args.out}: cannot be written: {error.strerror}") from error
    print(f"calibrator: {args.out}")
    return 0


def describe(measured: Evaluation) -> str:
    """The figures of a calibration in three lines."""
    return (
        f"held-out half: {measured.pairs:,} pairs of {measured.queries:,} queries\n"
        f"AUC of the {measured.relevant:,} relevant (rating 2, 3) against the rest: {measured.auc:.4f}\n"
        f"against MODELLED click rates, mean {measured.mean_rate:.4%}: "
        f"log-loss {measured.log_loss:.6f} (constant {measured.constant_log_loss:.6f}, "
        f"least possible {measured.least_log_loss:.6f}), ECE {measured.ece:.4%}"
    )
