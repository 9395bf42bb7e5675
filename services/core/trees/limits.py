"""What a model file may hold, and the error that says it holds something else."""

from __future__ import annotations

MAX_BYTES = 64 << 20
"""Longest model file. What is parsed takes at most some 20 times as many."""
MAX_LINES = 1_000_000
"""Of a LightGBM text, which has some 20 per tree."""
MAX_TREES = 20_000
MAX_NODES = 2_000_000
"""Splits and leaves of all trees together: 32 MB of nodes."""
MAX_FEATURES = 10_000
MAX_NESTING = 32
"""Deepest nesting of a UBJSON document; XGBoost writes eight levels. JSON has Python's limit on recursion."""
MAX_CONTAINERS = 4_000_000
"""Most lists and objects in a JSON or UBJSON document."""


class ForestError(ValueError):
    """Model bytes, or rows, that are not what they should be; the text names field, value and limit."""
