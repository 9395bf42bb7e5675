"""The `frugalads` command: one module in `services.commands` a sub-command."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

COMMANDS = (
    "up",
    "query",
    "catalogue",
    "log",
    "model",
    "index",
    "train",
    "evict",
    "loadtest",
    "simulate",
    "bench",
    "config",
    "info",
)

EXTRAS = {"matplotlib": "loadtest", "scipy": "loadtest", "lightgbm": "train", "xgboost": "train"}
"""Where packages come from that most users of the command do without."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one sub-command; returns 0, 2 for a user's mistake, 130 when interrupted."""
    # gRPC's own notices, such as a peer's GOAWAY, are no messages for the user of a command.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        return _main(argv)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of a pipe (head, less) went away; what is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _main(argv: Sequence[str] | None) -> int:
    # Imported here: loading gRPC takes a while, and an interrupt in it must end as cleanly as any other.
    from services.runtime.errors import UserError

    parser = argparse.ArgumentParser(prog="frugalads", description="Search ads at the lowest cost.")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in COMMANDS:
        importlib.import_module(f"services.commands.{name}").register(subparsers)
    arguments = parser.parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except UserError as error:
        sys.stderr.write(f"frugalads: error: {error}\n")
        return 2
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        sys.stderr.write(
            f"frugalads: error: {package} is not installed; this command needs the extra {EXTRAS[package]}: "
            f"pip install -c constraints.txt -e '.[{EXTRAS[package]}]'\n"
        )
        return 2
    return code


if __name__ == "__main__":
    sys.exit(main())
