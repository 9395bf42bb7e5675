"""Runs the retrieval service: `python -m services.retrieval [--config FILE]`."""

from __future__ import annotations

import sys

from services.retrieval.config import RetrievalConfig
from services.retrieval.server import build
from services.runtime.server import run

if __name__ == "__main__":
    sys.exit(run("retrieval", RetrievalConfig, build))
