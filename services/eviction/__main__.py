"""Runs the eviction service: `python -m services.eviction [--config FILE]`."""

import sys

from services.runtime.signals import leave_on_signals


def main() -> int:
    """Takes signals first, imports what is slow to import after it, and serves."""
    leave_on_signals()
    from services.eviction.config import EvictionConfig
    from services.eviction.server import build
    from services.runtime.server import run

    return run("eviction", EvictionConfig, build)


if __name__ == "__main__":
    sys.exit(main())
