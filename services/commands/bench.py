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
    cache = _bench(
        names,
        "cache",
        "a decision, a hit and a refresh of the ads cache, policy off and on",
        run_cache,
    )
    cache.add_argument("--requests", type=int, default=2000, help="calls a measurement (default 2000)")
    cache.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    trees = _bench(
        names, "trees", "boosted trees beside the libraries that train them, one thread", run_trees
    )
    trees.add_argument("--rounds", type=int, default=15, help="interleaved rounds (default 15)")
    _add_eviction(_bench(names, "eviction", "eviction orders on one request stream", run_eviction))
    speed = _bench(names, "eviction-speed", "time of an operation by number of keys", run_eviction_speed)
    speed.add_argument(
        "--keys", nargs="+", type=int, default=[10**4, 10**5, 10**6, 10**7], metavar="N", help="keys held"
    )
    _add_retrieval(_bench(names, "retrieval", "stop rules beside stock FAISS at equal recall", run_retrieval))


def _add_retrieval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--vectors",
        default="glove50-norm",
        metavar="glove50|glove50-norm|FILE.npy",
        help="what to search; queries are in FILE.queries.npy, or else held out (default %(default)s)",
    )
    parser.add_argument(
        "--index", default="ivf", choices=("ivf", "ivfpq", "hnsw"), help="default %(default)s"
    )
    parser.add_argument("--k", type=_counts, default=[1, 10], metavar="K,K", help="default 1,10")
    parser.add_argument(
        "--targets", type=_shares, default=[0.9, 0.95, 0.99], metavar="R,R", help="default .90,.95,.99"
    )
    parser.add_argument("--seeds", type=_count, default=3, metavar="N", help="splits and indexes (default 3)")
    parser.add_argument(
        "--batch", type=_count, default=1, metavar="B", help="queries a timed call (default 1)"
    )


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, 1 or more")
    return value


def _counts(text: str) -> list[int]:
    return [_count(part) for part in text.split(",")]


def _shares(text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(0 < value < 1 for value in values):
        raise argparse.ArgumentTypeError(f"{text!r}: must be between 0 and 1")
    return values


def _add_eviction(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trace", default="zipf", metavar="FILE|zipf", help=".xz of 64-bit keys, or modelled (default)"
    )
    parser.add_argument("--costs", nargs="+", default=["w1"], metavar="C", help="w1 .. w5 or lognormal")
    parser.add_argument("--sizes", default="unit", metavar="unit|meta", help="of entries (default unit)")
    parser.add_argument(
        "--correlation", default="none", metavar="none|positive|negative", help="of costs with popularity"
    )
    parser.add_argument("--entries", nargs="+", type=int, default=[], metavar="N", help="sizes of the cache")
    parser.add_argument("--seeds", type=int, default=5, metavar="K", help="draws of costs (default 5)")
    parser.add_argument(
        "--live",
        action="store_true",
        help="real servers: Redis' own policies beside the sidecar, about 3 minutes a seed",
    )
    parser.add_argument(
        "--requests", type=int, default=120_000, metavar="N", help="with --live: a policy (default 120000)"
    )


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


def run_cache(arguments: argparse.Namespace) -> int:
    """Runs the cache bench and prints its table."""
    from loadtest.bench_cache import main

    return main(arguments.requests, arguments.rounds, arguments.json)


def run_trees(arguments: argparse.Namespace) -> int:
    """Runs the trees bench and prints its table."""
    from loadtest.bench_trees import main

    return main(arguments.rounds, arguments.json)


def run_eviction(arguments: argparse.Namespace) -> int:
    """Runs the eviction bench and prints its tables."""
    if arguments.live:
        return _run_eviction_live(arguments)
    from loadtest.bench_eviction import Options, main

    options = Options(
        trace=arguments.trace,
        costs=arguments.costs,
        sizes=arguments.sizes,
        correlation=arguments.correlation,
        entries=arguments.entries,
        seeds=arguments.seeds,
    )
    return main(options, arguments.json)


def _run_eviction_live(arguments: argparse.Namespace) -> int:
    from loadtest.bench_eviction_live import ENTRIES, Options, main
    from services.runtime.errors import UserError

    if len(arguments.costs) != 1 or len(arguments.entries) > 1:
        raise UserError("--live takes one of --costs and one of --entries")
    options = Options(
        trace=arguments.trace,
        costs=arguments.costs[0],
        sizes=arguments.sizes,
        correlation=arguments.correlation,
        entries=arguments.entries[0] if arguments.entries else ENTRIES,
        seeds=arguments.seeds,
        requests=arguments.requests,
    )
    return main(options, arguments.json)


def run_eviction_speed(arguments: argparse.Namespace) -> int:
    """Runs the bench of operations on eviction orders and prints its table."""
    from loadtest.bench_eviction_speed import main

    return main(arguments.keys, arguments.json)


def run_retrieval(arguments: argparse.Namespace) -> int:
    """Runs the retrieval bench and prints a table for each seed."""
    from loadtest.retrieval_bench.main import Options, main

    options = Options(
        vectors=arguments.vectors,
        index=arguments.index,
        ks=arguments.k,
        targets=arguments.targets,
        seeds=arguments.seeds,
        batch=arguments.batch,
    )
    return main(options, arguments.json)
