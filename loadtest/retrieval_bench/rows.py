"""A row of the bench: one rule in one cell of one seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.stack.tables import text_table


@dataclass(frozen=True)
class Row:
    """A rule in a cell. recall to p99_distances: at the calibrated point. At equal recall: ratio, distances
    of `fixed` over the rule's; p99_ratio, 99th percentiles of the rule over `fixed`; the times; predict_us;
    faiss_ratio, time of stock FAISS over the rule's; over_default, the rule's distances over the default's.

    default: the rule that serves, by calibration. covered: for the default, the share of test
    queries that reach the recall `target` where calibration was for a share of `target`. shifted: recall on
    queries of another kind (see `shift`) under the policy that reaches the target on the test split."""

    policy: str
    index: str
    k: int
    target: float
    recall: float
    recall_ci: tuple[float, float]
    coverage: float
    mean_us: float
    p50_us: float
    p99_us: float
    distances: float
    p99_distances: float
    model_calls: float
    predict_us: float
    queries: int
    seed: int
    lists: float
    equal_distances: float
    ratio: float
    ratio_ci: tuple[float, float]
    over_default: float
    over_default_ci: tuple[float, float]
    p99_ratio: float
    faiss_ratio: float
    faiss_ci: tuple[float, float]
    faiss_us: float
    default: bool
    covered: float | None
    shifted: float


def table(rows: Sequence[Row]) -> str:
    """The rows for a terminal."""
    columns = (
        *("policy", "k", "target", "recall", "distances", "p99"),
        *("x fixed", "95 %", "p99 / fixed", "calls", "us", "model us", "x FAISS", "shifted"),
    )
    cells = [
        (
            *(row.policy, str(row.k), f"{row.target:g}", f"{row.recall:.4f}"),
            *(f"{row.distances:.0f}", f"{row.p99_distances:.0f}"),
            *(f"{row.ratio:.2f}", f"{row.ratio_ci[0]:.2f}-{row.ratio_ci[1]:.2f}", f"{row.p99_ratio:.2f}"),
            *(f"{row.model_calls:.1f}", f"{row.mean_us:.1f}", f"{row.predict_us:.2f}"),
            *(f"{row.faiss_ratio:.2f}", f"{row.shifted:.3f}"),
        )
        for row in rows
    ]
    return text_table(columns, cells)
