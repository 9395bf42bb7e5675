"""The `frugalads` command: one module in `services.commands` a sub-command."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from services.runtime.errors import UserError

COMMANDS = ("up", "query", "catalogue", "log", "model", "index", "evict", "loadtest", "bench", "info")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one sub-command; returns 0, 2 for a user's mistake, 130 when interrupted."""
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
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of a pipe (head, less) went away; what is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


if __name__ == "__main__":
    sys.exit(main())
