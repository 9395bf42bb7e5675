"""Runs the inference service: `python -m services.inference [--config FILE]`."""

import sys

from services.runtime.signals import leave_on_signals


def main() -> int:
    """Takes signals first, imports what is slow to import after it, and serves."""
    leave_on_signals()
    from services.inference.config import InferenceConfig
    from services.inference.server import build
    from services.runtime.server import run

    return run("inference", InferenceConfig, build)


if __name__ == "__main__":
    sys.exit(main())
