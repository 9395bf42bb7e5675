"""`frugalads index build`: embeds a catalogue and builds the index that retrieval serves."""

from __future__ import annotations

import argparse
import math
import os
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

from loadtest.files import read_text
from services.commands.arguments import seed
from services.runtime.errors import UserError

if TYPE_CHECKING:
    from services.retrieval.build import Built

DEFAULT_CATALOGUE = Path(".frugalads/catalogue")
DEFAULT_MODEL = Path(".frugalads/models/scorer")
DEFAULT_OUT = Path(".frugalads/index")
MAX_QUERY_CHARS = 500
SHOWN_K = (10, 100)
SHOWN_RECALL = (0.8, 0.9, 0.95, 0.99, 1.0)


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `frugalads index build`."""
    parser = subparsers.add_parser("index", help="build the index of an ad catalogue")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    build = actions.add_parser("build", help="embed the catalogue and build its index")
    for name, default in (("catalogue", DEFAULT_CATALOGUE), ("model", DEFAULT_MODEL), ("out", DEFAULT_OUT)):
        build.add_argument(f"--{name}", type=Path, default=default, metavar="DIR", help="default %(default)s")
    build.add_argument(
        "--queries",
        type=Path,
        metavar="FILE",
        help="one query a line (.gz too); a sample of them calibrates the recall of each search budget",
    )
    build.add_argument(
        "--kind",
        choices=("ivf_flat", "ivf_pq"),
        default="ivf_flat",
        help="ivf_pq compares short codes and re-ranks exactly: less to read, a ceiling on recall; "
        "default %(default)s",
    )
    build.add_argument("--seed", type=seed, default=1, metavar="S", help="default %(default)s")
    build.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Builds the index with a progress bar and prints what it reaches."""
    import numpy as np
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from models.scorer.bundle import load_scorer
    from services.catalogue.bundle import KIND as CATALOGUE
    from services.catalogue.bundle import MAX_BYTES, read_catalogue
    from services.retrieval.build import CALIBRATION_QUERIES, build_index
    from services.retrieval.contents import KIND, try_load
    from services.retrieval.index import LoadedIndex
    from services.runtime.bundles import check_replaceable, open_bundle
    from services.stack.work_folder import BUNDLES, require_bundle

    started = time.monotonic()
    check_replaceable(args.out, KIND)
    require_bundle(args.model, BUNDLES["models/scorer"])
    require_bundle(args.catalogue, BUNDLES["catalogue"])
    lines = None if args.queries is None else sample_lines(args.queries, CALIBRATION_QUERIES, args.seed)
    catalogue = open_bundle(args.catalogue, CATALOGUE, max_bytes=MAX_BYTES).fingerprint
    ads = read_catalogue(args.catalogue)
    scorer = load_scorer(args.model, threads=os.cpu_count() or 1)
    encode = scorer.encoder.encode
    columns = (TextColumn("{task.description:>12}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks = {stage: bar.add_task(stage, total=None) for stage in ("embed", "train", "calibrate")}

        def progress(stage: str, done: int, total: int) -> None:
            bar.update(tasks[stage], completed=done, total=total)

        vectors = encode([ad.text for ad in ads], progress=lambda *at: progress("embed", *at))
        embedded_s = time.monotonic() - started
        prices = (math.nan if ad.product_price_usd is None else ad.product_price_usd for ad in ads)
        built = build_index(
            vectors,
            np.array([ad.ad_id for ad in ads], dtype=np.int64),
            {
                "advertiser": [ad.advertiser or None for ad in ads],
                "category": [ad.category or None for ad in ads],
            },
            {"product_price_usd": np.fromiter(prices, dtype=np.float64, count=len(ads))},
            scorer.encoder_fingerprint,
            args.out,
            args.seed,
            progress,
            None if lines is None else encode(lines),
            catalogue=catalogue,
            kind=args.kind,
        )
    # As a server does before it is ready. What it compiles for that stays compiled for the servers.
    LoadedIndex(try_load(args.out)).warm()
    print(describe(built, embedded_s))
    print(f"index: {args.out}")
    return 0


def sample_lines(file: Path, most: int, seed: int) -> list[str]:
    """At most `most` distinct non-empty lines of a text file, drawn by `seed`, in file order.

    Raises UserError naming file and fault.
    """
    text = read_text(file)
    lines = list(dict.fromkeys(line.strip()[:MAX_QUERY_CHARS] for line in text.splitlines() if line.strip()))
    if not lines:
        raise UserError(f"{file}: holds no query")
    chosen = sorted(random.Random(seed).sample(range(len(lines)), min(most, len(lines))))
    return [lines[i] for i in chosen]


def describe(built: Built, embedded_s: float) -> str:
    """The summary table: sizes, seconds, and the lists that each mean recall takes."""
    table = built.calibration
    source = {
        "queries": f"{table.queries:,} queries of yours",
        "noisy_ads": f"{table.queries:,} noisy copies of ads (better: your own, by --queries FILE)",
    }[table.source]
    rows = [
        ("kind", f"{built.kind}, {built.code_bytes:,} bytes an ad"),
        ("ads", f"{built.ads:,}"),
        ("dimension", f"{built.dimension}"),
        ("lists", f"{built.lists:,}"),
        ("embedding", f"{embedded_s:.1f} s"),
        ("training", f"{built.train_s:.1f} s"),
        ("calibration", f"{built.calibrate_s:.1f} s, {source}"),
    ]
    lines = [f"{name:<12} {value}" for name, value in rows]
    lines.append("")
    lines.append(f"{'mean recall':<12}" + "".join(f"{f'lists, k={k}':>16}" for k in SHOWN_K))
    for recall in SHOWN_RECALL:
        choices = (table.for_mean_recall(k, recall) for k in SHOWN_K)
        shown = ("above ceiling" if choice is None else f"{choice.lists:,}" for choice in choices)
        lines.append(f"{recall:<12.2f}" + "".join(f"{text:>16}" for text in shown))
    if table.depth:
        ceilings = (table.ceiling(k) for k in SHOWN_K)
        lines.append(f"{'ceiling':<12}" + "".join(f"{ceiling:>16.4f}" for ceiling in ceilings))
    return "\n".join(lines)
