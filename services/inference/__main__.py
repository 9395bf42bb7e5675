"""Runs the inference service: `python -m services.inference [--config FILE]`."""

from __future__ import annotations

import sys

from services.inference.config import InferenceConfig
from services.inference.server import build
from services.runtime.server import run

if __name__ == "__main__":
    sys.exit(run("inference", InferenceConfig, build))
