"""`frugalads loadtest`: an open-loop load on a running stack, and its report."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from services.commands.arguments import seed
from services.runtime.errors import UserError


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `frugalads loadtest`."""
    parser = subparsers.add_parser(
        "loadtest",
        help="replay queries against a running stack",
        description="Sends the queries of a file in order, again from its start when it ends, at Poisson "
        "arrival times, and reports latencies from the scheduled send.",
    )
    parser.add_argument(
        "--queries", type=Path, required=True, metavar="FILE", help="one query a line (.gz too)"
    )
    parser.add_argument("--rate", type=float, required=True, metavar="R", help="mean requests a second")
    parser.add_argument("--requests", type=int, required=True, metavar="N", help="requests in all")
    parser.add_argument("--target", default="127.0.0.1:7400", metavar="HOST:PORT", help="loopback only")
    parser.add_argument("--slots", type=int, default=4, metavar="N", help="ad positions asked for")
    parser.add_argument("--seed", type=seed, default=1, metavar="S", help="of arrivals, users and clicks")
    parser.add_argument("--timeout", type=float, default=5.0, metavar="S", help="deadline from the schedule")
    parser.add_argument("--max-in-flight", type=int, default=1000, metavar="N", help="more stay unsent")
    parser.add_argument("--clicks", action="store_true", help="draw clicks and send them: charges budgets")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report; raw samples as .npz")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the load and prints the report; returns 1 when nothing was answered, 130 after an interrupt."""
    import asyncio

    from loadtest.progress import progress
    from loadtest.report import render, run_header, summarize, write
    from loadtest.runner import Load, Samples, ended, read_queries, replay

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
    if args.json is not None and args.json.is_dir():
        raise UserError(f"--json: {args.json} is a folder")
    so_far: Samples | None = None
    with progress("replaying", args.requests) as show:

        def on_progress(count: int, samples: Samples) -> None:
            nonlocal so_far
            so_far = samples
            show(count)

        try:
            samples, interrupted = asyncio.run(replay(args.target, load, on_progress)), False
        except KeyboardInterrupt:
            if so_far is None:
                raise
            samples, interrupted = ended(so_far), True
    summary = summarize(samples)
    if interrupted:
        print(f"interrupted: this is the report of {summary.requests} of {args.requests} requests\n")
    print(render(summary))
    if args.json:
        options = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
        del options["run"], options["seed"]
        raw = write(args.json, summary, samples, run_header(options, args.seed))
        print(f"report: {args.json}, raw samples: {raw}")
    if interrupted:
        return 128 + signal.SIGINT
    return 0 if summary.achieved_per_s > 0 else 1
