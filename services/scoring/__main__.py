"""Runs the scoring service: `python -m services.scoring [--config FILE]`."""

import sys

from services.runtime.signals import leave_on_signals


def main() -> int:
    """Takes signals first, imports what is slow to import after it, and serves."""
    leave_on_signals()
    from services.runtime.server import run
    from services.scoring.config import ScoringConfig
    from services.scoring.server import build

    return run("scoring", ScoringConfig, build)


if __name__ == "__main__":
    sys.exit(main())
