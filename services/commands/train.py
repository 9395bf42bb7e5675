"""`frugalads train NAME`: trains a learned decision and writes the bundle that a service loads."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from services.commands.arguments import seed
from services.commands.index import DEFAULT_MODEL, sample_lines
from services.commands.index import DEFAULT_OUT as DEFAULT_INDEX
from services.runtime.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from models.termination.training import Trained

DEFAULT_OUT = Path(".frugalads/models/termination")
DEFAULT_REFRESH_OUT = Path(".frugalads/models/refresh")
QUERIES = 6_000
KS = (1, 10, 50, 100)
MEAN_RECALLS = (0.8, 0.9, 0.95, 0.98, 0.99)
COVERAGES = ((0.9, 0.9), (0.9, 0.95), (0.95, 0.9), (0.95, 0.95))
MAX_INDEX_BYTES = 1 << 40


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `frugalads train`."""
    parser = subparsers.add_parser("train", help="train a learned decision")
    names = parser.add_subparsers(required=True, metavar="NAME")
    _add_termination(names)
    _add_refresh(names)


def _add_termination(names: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = names.add_parser("termination", help="when a search of an index has found enough")
    parser.add_argument(
        "--index", type=Path, default=DEFAULT_INDEX, metavar="BUNDLE", help="default %(default)s"
    )
    parser.add_argument(
        "--queries",
        type=Path,
        metavar="FILE",
        help=f"one query a line (.gz too), of which {QUERIES:,} are drawn; without it noisy ads stand in",
    )
    for name, default in (("model", DEFAULT_MODEL), ("out", DEFAULT_OUT)):
        parser.add_argument(
            f"--{name}", type=Path, default=default, metavar="DIR", help="default %(default)s"
        )
    parser.add_argument("--seed", type=seed, default=1, metavar="S", help="default %(default)s")
    parser.set_defaults(run=run_termination)


def _add_refresh(names: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = names.add_parser("refresh", help="what serving a cached list would lose")
    parser.add_argument(
        "log", type=Path, metavar="LOG", help="a folder of frugalads log generate or import, to learn from"
    )
    parser.add_argument(
        "--recipe",
        choices=("ours", "www18"),
        default="ours",
        help="ours, which a service can load (the default), or the published one, to compare with",
    )
    parser.add_argument(
        "--days", type=int, metavar="D", help="learn from the first D days of the log; default: all of it"
    )
    parser.add_argument(
        "--out", type=Path, default=DEFAULT_REFRESH_OUT, metavar="DIR", help="default %(default)s"
    )
    parser.add_argument("--seed", type=seed, default=1, metavar="S", help="default %(default)s")
    parser.set_defaults(run=run_refresh)


def run_refresh(args: argparse.Namespace) -> int:
    """Trains a refresh model on a log, and prints what it was trained on."""
    from loadtest.request_log.storage import open_log, read_log
    from loadtest.simulator.traffic import traffic
    from models.refresh.recipes import RECIPES
    from models.refresh.training import KIND, train_refresh, write_refresh
    from services.runtime.bundles import check_replaceable

    if args.days is not None and args.days < 1:
        raise UserError(f"--days: {args.days} must be at least 1")
    check_replaceable(args.out, KIND)
    log = read_log(args.log, days=None if args.days is None else (0, args.days))
    requests = len(log.phrase)
    trained = train_refresh(traffic(log), requests, RECIPES[args.recipe], args.seed)
    meta = {"recipe": args.recipe, "log": open_log(args.log).fingerprint, "requests": requests}
    write_refresh(args.out, trained, {**meta, "seed": args.seed})
    print(f"{requests:,} requests: {trained.rows:,} training rows, {trained.positives:,} of them with a loss")
    for name, found in (("balanced", trained.balance), ("the rule", trained.threshold)):
        if found is not None:
            print(
                f"last hour, {name}: {found.none_below:.1%} of requests without a loss are below"
                f" {found.threshold_usd:.4g} USD, {found.some_above:.1%} of those with one above"
            )
    print(f"refresh model: {args.out}")
    return 0


def run_termination(args: argparse.Namespace) -> int:
    """Trains the stop model of an index, with a progress bar, and prints what it reaches."""
    import numpy as np
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from models.termination.calibration import Target
    from models.termination.training import KIND, train_termination, write_termination
    from services.retrieval.build import noisy_ads
    from services.retrieval.contents import KIND as INDEX
    from services.retrieval.contents import check_seal, read_contents
    from services.retrieval.index import views_of
    from services.retrieval.kernels import limit_loading
    from services.runtime.bundles import check_replaceable, open_bundle
    from services.stack.work_folder import BUNDLES, require_bundle

    check_replaceable(args.out, KIND)
    require_bundle(args.index, BUNDLES["index"].format(data=".frugalads"))
    lines = None if args.queries is None else sample_lines(args.queries, QUERIES, args.seed)
    bundle = open_bundle(args.index, INDEX, max_bytes=MAX_INDEX_BYTES)
    limit_loading(MAX_INDEX_BYTES)
    contents = read_contents(bundle, check_seal(bundle))
    vectors = contents.vectors
    ks = [k for k in KS if k < len(vectors)]
    targets = [*map(Target, MEAN_RECALLS), *(Target(*coverage) for coverage in COVERAGES)]
    columns = (TextColumn("{task.description:>12}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks = {stage: bar.add_task(stage, total=None) for stage in ("label", "record", "calibrate")}
        if lines is None:
            queries = noisy_ads(vectors, QUERIES, np.random.default_rng(args.seed))
        else:
            queries = _embedded(args.model, contents.encoder, lines)
        trained = train_termination(
            views_of(contents)[0],
            vectors,
            queries,
            ks,
            targets,
            args.seed,
            lambda stage, done, total: bar.update(tasks[stage], completed=done, total=total),
            depth=contents.calibration.depth,
        )
    source = "noisy_ads" if lines is None else "queries"
    meta = {"encoder": contents.encoder, "queries": len(queries), "source": source, "seed": args.seed}
    write_termination(args.out, trained, contents.fingerprint, meta)
    print(describe(trained))
    said = (
        "noisy copies of ads (better: your own, by --queries FILE)" if lines is None else "queries of yours"
    )
    print(f"\n{len(queries):,} {said}; recall on the third of them that neither trained nor calibrated")
    print(f"stop model: {args.out}, of index {contents.fingerprint}")
    return 0


def describe(trained: Trained) -> str:
    """The table of calibrated policies and what they reach on held-out queries."""
    from services.stack.tables import text_table

    columns = ("k", "target", "rule", "recall", "95 %", "reach it", "vectors", "saved")
    rows = [
        (
            str(one.point.k),
            f"{one.point.recall:.2f}" + (f" for {one.point.share:.0%}" if one.point.share else ""),
            one.point.rule,
            f"{one.recall:.4f}",
            f"{one.low:.4f}-{one.high:.4f}",
            f"{one.coverage:.1%}",
            f"{one.codes:,.0f}",
            f"{1 - one.codes / one.fixed_codes:.0%}",
        )
        for one in trained.achieved
    ]
    return text_table(columns, rows, left=(1, 2))


def _embedded(model: Path, encoder: str, lines: list[str]) -> npt.NDArray[np.float32]:
    """The queries as the index' encoder embeds them."""
    from models.scorer.bundle import load_scorer
    from services.retrieval.build import unit_rows
    from services.stack.work_folder import BUNDLES, require_bundle

    require_bundle(model, BUNDLES["models/scorer"])
    scorer = load_scorer(model, threads=os.cpu_count() or 1)
    if scorer.encoder_fingerprint != encoder:
        raise UserError(f"{model} has encoder {scorer.encoder_fingerprint}, the index is of {encoder}")
    return unit_rows("queries", scorer.encoder.encode(lines))
