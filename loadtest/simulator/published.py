"""The tables of the papers that our designs come from.

They are about other logs, private ones; ours is held to their workload figures, not to these results. The
losses are the pessimistic ones, which need no auction simulator: SoCC'17 figures 7-11, WWW'18 tables 3-4 and
section 5.5.1.
"""

from __future__ import annotations

from typing import NamedTuple

SOURCES = (
    "SoCC'17: C. Li, D. G. Andersen, Q. Fu, S. Elnikety, Y. He. Workload Analysis and Caching Strategies\n"
    "for Search Advertising Systems. SoCC 2017, doi 10.1145/3127479.3129255, figures 7-11.",
    "WWW'18: C. Li, D. G. Andersen, Q. Fu, S. Elnikety, Y. He. Better Caching in Search Advertising\n"
    "Systems with Rapid Refresh Predictions. WWW 2018, tables 3-4 and section 5.5.1.",
)


class Published(NamedTuple):
    """A row of a paper, in percent; similarity None where it gives none."""

    paper: str
    design: str
    policy: str  # ours
    hit: float
    similarity: float | None
    cost_saving: float
    loss_pessimistic: float

    def net_profit(self, cost_ratio: float) -> float:
        """Percent of revenue, by WWW'18 section 5."""
        return cost_ratio * self.cost_saving - self.loss_pessimistic


PUBLISHED = (
    Published("SoCC'17", "no refresh", "none", 67.2, 43.1, 46.0, 25.5),
    Published("SoCC'17", "fixed n=2", "fixed2", 36.3, 47.8, 27.7, 14.1),
    Published("SoCC'17", "two-level 20/1", "two_level", 15.7, 54.2, 16.6, 2.0),
    Published("SoCC'17", "adaptive", "adaptive", 29.1, 70.0, 24.5, 2.8),
    Published("SoCC'17", "fixed + merge", "fixed2_merge", 36.3, 76.1, 27.7, 11.7),
    Published("SoCC'17", "adaptive + merge", "adaptive_merge", 34.5, 80.0, 30.7, 3.9),
    Published("SoCC'17", "fixed + all personalised", "fixed2_personalised", 27.1, 59.8, 17.6, 4.4),
    Published("SoCC'17", "adaptive + all personalised", "adaptive_personalised", 17.5, 69.7, 16.1, 1.1),
    Published("SoCC'17", "adaptive + selective", "adaptive_selective", 19.3, 66.2, 19.0, 1.3),
    Published("SoCC'17", "all three", "adaptive_selective_merge", 20.7, 78.3, 20.6, 1.3),
    Published("WWW'18", "fixed, refresh at 5th hit", "fixed5", 40.1, None, 30.7, 15.2),
    Published("WWW'18", "SoCC'17 heuristic", "adaptive_selective_merge", 21.4, None, 17.0, 2.5),
    Published("WWW'18", "predictor, 29 features", "www18", 45.1, None, 24.2, 1.0),
)
