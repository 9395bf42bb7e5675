"""`frugalads bench NAME`: measurements whose figures the documents quote."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeAlias

_Names: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def register(subparsers: _Names) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("bench", help="measure a part beside its baseline, in one run")
    names = parser.add_subparsers(metavar="NAME", required=True)
    pipeline = _bench(
        names,
        "pipeline",
        "RankAds on a hit beside a bare gRPC handler that returns the same bytes",
        run_pipeline,
    )
    pipeline.add_argument("--requests", type=int, default=4000, help="calls a round (default 4000)")
    pipeline.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    trees = _bench(
        names, "trees", "boosted trees beside the libraries that train them, one thread", run_trees
    )
    trees.add_argument("--rounds", type=int, default=15, help="interleaved rounds (default 15)")


def _bench(
    names: _Names, name: str, about: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    """One bench; all of them take `--json`."""
    parser = names.add_parser(name, help=about)
    parser.add_argument("--json", metavar="FILE", help="write header and rows as one JSON document")
    parser.set_defaults(run=run)
    return parser


def run_pipeline(arguments: argparse.Namespace) -> int:
    """Runs the pipeline bench and prints its table."""
    from loadtest.bench_pipeline import main

    return main(arguments.requests, arguments.rounds, arguments.json)


def run_trees(arguments: argparse.Namespace) -> int:
    """Runs the trees bench and prints its table."""
    from loadtest.bench_trees import main

    return main(arguments.rounds, arguments.json)
