"""`python -m services.scoring [--config FILE]`."""

import sys

from services.runtime.server import run
from services.scoring.config import ScoringConfig
from services.scoring.server import build

sys.exit(run("scoring", ScoringConfig, build))
