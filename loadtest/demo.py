"""`make demo`: the whole pipeline under load on this machine, in one table and five answers.

Run as `python -m loadtest.demo [--catalogue FILE] [--data DIR]`. Everything it starts ends with it, however
it ends: exit code 0 when done, 1 when the stack failed, 2 for a user's mistake, 130 after Ctrl-C. This module
imports nothing heavy, so that a Ctrl-C in the first second ends as cleanly as a later one.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

RATE_PER_S = 40.0

# gRPC's own notices, such as a peer's GOAWAY, are no part of the demo; gRPC reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo; returns the exit code."""
    # A shell that runs this in the background has SIGINT ignored; SIGTERM must stop what was started, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _stop)
    parser = argparse.ArgumentParser(prog="make demo", description="The pipeline under load on this machine.")
    parser.add_argument("--catalogue", type=Path, metavar="FILE", help="your ads; default: a sample")
    parser.add_argument("--data", type=Path, default=Path(".frugalads"), metavar="DIR", help="work folder")
    parser.add_argument("--rate", type=float, default=RATE_PER_S, metavar="R", help="requests a second")
    args = parser.parse_args(argv)
    try:
        return _run(args)
    except KeyboardInterrupt:
        _say("interrupted; everything is stopped")
        return 128 + signal.SIGINT


def _run(args: argparse.Namespace) -> int:
    from loadtest.showcase import show
    from services.runtime.errors import UserError
    from services.stack.supervisor import StackError, Stopped

    try:
        show(args.data, args.catalogue, args.rate, _say)
    except Stopped as stopped:
        _say(f"stopped by {stopped}; everything is stopped")
        return 128 + stopped.signum
    except UserError as error:
        sys.stderr.write(f"demo: error: {error}\n")
        return 2
    except StackError as error:
        sys.stderr.write(f"demo: the stack failed: {error}\n")
        return 1
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _stop(signum: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)


if __name__ == "__main__":
    sys.exit(main())
