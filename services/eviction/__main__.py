"""`python -m services.eviction [--config FILE]`."""

import sys

from services.eviction.config import EvictionConfig
from services.eviction.server import build
from services.runtime.server import run

sys.exit(run("eviction", EvictionConfig, build))
