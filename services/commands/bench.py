"""`frugalads bench NAME`: measurements whose figures the documents quote."""

from __future__ import annotations

import argparse


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("bench", help="measure a part beside its baseline, in one run")
    names = parser.add_subparsers(metavar="NAME", required=True)
    pipeline = names.add_parser(
        "pipeline", help="RankAds on a hit beside a bare gRPC handler that returns the same bytes"
    )
    pipeline.add_argument("--requests", type=int, default=4000, help="calls a round (default 4000)")
    pipeline.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    pipeline.add_argument("--json", metavar="FILE", help="write header and rows as one JSON document")
    pipeline.set_defaults(run=run_pipeline)


def run_pipeline(arguments: argparse.Namespace) -> int:
    """Runs the pipeline bench and prints its table."""
    from loadtest.bench_pipeline import main

    return main(arguments.requests, arguments.rounds, arguments.json)
