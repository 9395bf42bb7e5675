"""`frugalads log`: request streams for replay."""

from __future__ import annotations

import argparse
from pathlib import Path

from services.commands.arguments import seed


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `frugalads log queries`."""
    parser = subparsers.add_parser("log", help="make request streams")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    queries = actions.add_parser("queries", help="write a stream of queries, one request a line")
    queries.add_argument("--catalogue", type=Path, required=True, metavar="DIR", help="an imported catalogue")
    queries.add_argument("--out", type=Path, required=True, metavar="FILE")
    queries.add_argument(
        "--requests",
        type=int,
        metavar="N",
        help="default: the whole key stream; without one, until there are 2,000 distinct queries",
    )
    queries.add_argument(
        "--key-stream",
        type=Path,
        metavar="FILE",
        help=".xz trace of big-endian 64-bit keys; without it, draws from a published popularity curve",
    )
    queries.add_argument("--ratings", type=Path, metavar="FILE", help="CSV with a column query, to use first")
    queries.add_argument("--web-queries", type=Path, metavar="FILE", help="web queries, one a line")
    queries.add_argument("--seed", type=seed, default=1, metavar="S", help="default %(default)s")
    queries.set_defaults(run=run_queries)


def run_queries(args: argparse.Namespace) -> int:
    """Writes a query stream and prints what it holds."""
    from loadtest.queries import write_queries

    summary = write_queries(
        args.catalogue,
        args.out,
        requests=args.requests,
        key_stream=args.key_stream,
        ratings=args.ratings,
        web_queries_file=args.web_queries,
        seed=args.seed,
    )
    if summary.shared:
        print(
            f"the catalogue yields only {summary.from_catalogue:,} distinct queries: "
            f"they come again for the other {summary.shared:,} that were due"
        )
    print(
        f"{summary.requests:,} requests of {summary.distinct:,} distinct queries; "
        f"the top 1 % carry {summary.top_1_percent_share:.1%}\n"
        f"distinct queries: {summary.rated:,} rated, {summary.from_catalogue:,} from the catalogue, "
        f"{summary.from_web_file:,} from the web stream, {summary.made_up_web:,} made-up web queries "
        f"({summary.web_share:.1%} of the requests are web queries)\n"
        f"queries: {args.out}"
    )
    return 0
