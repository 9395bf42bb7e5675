"""`frugalads log`: request streams for replay, and request logs."""

from __future__ import annotations

import argparse
from pathlib import Path

from services.commands.arguments import seed


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `frugalads log queries`, `import` and `generate`."""
    parser = subparsers.add_parser("log", help="make request streams and request logs")
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

    take = actions.add_parser("import", help="check a request log of your own and make it a log bundle")
    take.add_argument("file", type=Path, metavar="FILE", help=".jsonl, .csv (both also .gz) or .parquet")
    take.add_argument("--out", type=Path, required=True, metavar="DIR")
    take.set_defaults(run=run_import)

    make = actions.add_parser("generate", help="make a request log held to published distributions")
    make.add_argument(
        "--profile",
        choices=("bing", "ci"),
        default="bing",
        help="bing: 1.2 million requests a day (the default); ci: 0.36 million",
    )
    make.add_argument("--days", type=int, default=1, metavar="D", help="default %(default)s")
    make.add_argument("--seed", type=seed, default=1, metavar="S", help="default %(default)s")
    make.add_argument("--out", type=Path, required=True, metavar="DIR")
    make.add_argument(
        "--key-stream",
        type=Path,
        metavar="FILE",
        help=".xz trace of big-endian 64-bit keys; without it, draws from a published popularity curve",
    )
    make.add_argument(
        "--catalogue", type=Path, metavar="DIR", help="whose ads to list; without it, 20,000 made-up ads"
    )
    make.set_defaults(run=run_generate)


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


def run_import(args: argparse.Namespace) -> int:
    """Imports a log with a progress bar, and prints what came of it."""
    from loadtest.progress import progress
    from loadtest.request_log.importing import describe, import_log

    with progress("importing, %", 100) as show:
        summary = import_log(args.file, args.out, lambda share: show(int(100 * share)))
    print(describe(summary))
    print(f"request log: {args.out}")
    return 0


def run_generate(args: argparse.Namespace) -> int:
    """Generates a log with a progress bar, and prints what it holds."""
    from loadtest.request_log.generator.generate import generate_log

    summary = generate_log(
        args.out,
        args.profile,
        days=args.days,
        seed=args.seed,
        key_stream=args.key_stream,
        catalogue=args.catalogue,
    )
    print(
        f"{summary.requests:,} requests of {summary.phrases:,} phrases list {summary.listed:,} ads; "
        f"{summary.clicks:,} clicks earn {summary.revenue_usd:,.0f} USD\n"
        f"request log: {args.out}"
    )
    return 0
