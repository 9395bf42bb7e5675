"""`frugalads loadtest`: an open-loop load on a running stack, and its report."""

from __future__ import annotations

import argparse
from pathlib import Path


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `frugalads loadtest`."""
    parser = subparsers.add_parser(
        "loadtest",
        help="replay queries against a running stack",
        description="Sends the queries of a file in order, again from its start when it ends, at Poisson "
        "arrival times, and reports latencies from the scheduled send.",
    )
    parser.add_argument("--queries", type=Path, required=True, metavar="FILE", help="one query a line")
    parser.add_argument("--rate", type=float, required=True, metavar="R", help="mean requests a second")
    parser.add_argument("--requests", type=int, required=True, metavar="N", help="requests in all")
    parser.add_argument("--target", default="127.0.0.1:7400", metavar="HOST:PORT", help="loopback only")
    parser.add_argument("--slots", type=int, default=4, metavar="N", help="ad positions asked for")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of arrivals, users and clicks")
    parser.add_argument("--timeout", type=float, default=5.0, metavar="S", help="deadline from the schedule")
    parser.add_argument("--max-in-flight", type=int, default=1000, metavar="N", help="more stay unsent")
    parser.add_argument("--clicks", action="store_true", help="draw clicks and send them: charges budgets")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report; raw samples as .npz")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the load and prints the report; returns 1 when nothing was answered."""
    import asyncio

    from loadtest.progress import progress
    from loadtest.report import render, run_header, summarize, write
    from loadtest.runner import Load, read_queries, replay

    load = Load(
        queries=read_queries(args.queries),
        rate_per_s=args.rate,
        requests=args.requests,
        slots=args.slots,
        seed=args.seed,
        clicks=args.clicks,
        timeout_s=args.timeout,
        max_in_flight=args.max_in_flight,
    )
    with progress("replaying", args.requests) as show:
        samples = asyncio.run(replay(args.target, load, lambda ended, _samples: show(ended)))
    summary = summarize(samples)
    print(render(summary))
    if args.json:
        options = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
        del options["run"], options["seed"]
        raw = write(args.json, summary, samples, run_header(options, args.seed))
        print(f"report: {args.json}, raw samples: {raw}")
    return 0 if summary.achieved_per_s > 0 else 1
