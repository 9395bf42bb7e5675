"""Runs the retrieval service: `python -m services.retrieval [--config FILE]`."""

import sys

from services.runtime.signals import leave_on_signals


def main() -> int:
    """Takes signals first, imports what is slow to import after it, and serves."""
    leave_on_signals()
    from services.retrieval.config import RetrievalConfig
    from services.retrieval.server import build
    from services.runtime.server import run

    return run("retrieval", RetrievalConfig, build)


if __name__ == "__main__":
    sys.exit(main())
