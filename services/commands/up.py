"""`frugalads up`: the whole pipeline on this machine, until Ctrl-C."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `frugalads up`."""
    parser = subparsers.add_parser(
        "up", help="run all services on this machine", description="Runs all services until Ctrl-C."
    )
    add_stack_options(parser)
    parser.set_defaults(run=run)


def add_stack_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say which stack to run."""
    parser.add_argument("--data", type=Path, default=Path(".frugalads"), metavar="DIR", help="work folder")
    parser.add_argument("--base-port", type=int, default=7400, metavar="PORT", help="scoring; others follow")
    parser.add_argument("--cache-mb", type=int, default=64, metavar="MB", help="memory of the embedded cache")
    parser.add_argument(
        "--cache-url", metavar="URL", help="Redis of the cache role instead of an embedded one"
    )
    parser.add_argument(
        "--state-url", metavar="URL", help="Redis of the state role instead of an embedded one"
    )


def run(args: argparse.Namespace) -> int:
    """Runs the stack; returns 0 after a signal, 1 when a child cannot be kept running.

    Raises UserError where an option or the work folder does not allow it to start.
    """
    import asyncio
    import time

    from services.stack.given_redis import check_redis_urls
    from services.stack.local import LocalStack
    from services.stack.ports import Ports
    from services.stack.supervisor import StackError, Stopped, Supervisor, supervise
    from services.stack.tables import text_table

    stack = LocalStack(args.data, Ports(args.base_port), args.cache_mb, args.cache_url, args.state_url)
    check_redis_urls(args.cache_url, args.state_url, _say)

    async def work(supervisor: Supervisor) -> None:
        ads = await stack.start(supervisor, _show_progress)
        rows = [(name, address, str(pid), f"{s:.1f} s") for name, address, pid, s in supervisor.status()]
        print(text_table(("process", "address", "pid", "ready in"), rows, left=(0, 1)))
        if ads:
            print(f"{ads} ads sent to scoring")
        print(f"ready after {time.monotonic() - started_s:.1f} s; Ctrl-C stops", flush=True)
        await asyncio.Event().wait()

    with stack.locked():
        started_s = time.monotonic()
        supervisor = Supervisor(stack.children(), stack.run_folder, _say)
        print(f"starting; logs in {stack.run_folder}", flush=True)
        try:
            asyncio.run(supervise(supervisor, work))
        except Stopped as stopped:
            print(f"stopped by {stopped}")
            return 0
        except StackError as error:
            _say(f"the stack stopped: {error}")
            return 1
    raise AssertionError("the stack runs until it is stopped or fails")


def _say(line: str) -> None:
    print(f"frugalads: {line}", file=sys.stderr, flush=True)


def _show_progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done >= total else ""
        print(f"\rsending the catalogue to scoring: {done} of {total}", end=end, file=sys.stderr, flush=True)
