"""How a refresh policy is learned: the published recipe, and ours."""

from __future__ import annotations

from dataclasses import dataclass, replace

PROBE_SHARE = 0.02
FLOOR = 0.1
MERGE_ADS = 32
"""Ads that a merged list holds, as in `loadtest.simulator.designs`."""


@dataclass(frozen=True)
class Recipe:
    """What a model looks at, what it predicts, and the rule that goes by it.

    published: the features WWW18, else OURS.
    by_clicks: predicts the charges of clicked ads that the list lacks, else the value of all such ads.
    priced: refreshes where the predicted loss exceeds the price of computing, else above a threshold that is
        searched on the last hour of the training log.
    merge_ads: capacity of a merged list, 0 where a refresh replaces the list.
    probe_share: of the hits that would be served, refreshed to measure what serving loses.
    rows: most training rows; more are thinned at random.
    """

    published: bool
    by_clicks: bool
    priced: bool
    merge_ads: int = 0
    probe_share: float = 0.0
    rows: int = 400_000

    @property
    def training(self) -> Recipe:
        """The recipe without what training does not depend on: equal ones give equal models."""
        return replace(self, probe_share=0.0)


WWW18 = Recipe(published=True, by_clicks=True, priced=False, rows=2_000_000)
"""C. Li et al., "Better Caching in Search Advertising Systems with Rapid Refresh Predictions" (WWW 2018)."""

OURS = Recipe(published=False, by_clicks=False, priced=True, merge_ads=MERGE_ADS, probe_share=PROBE_SHARE)

RECIPES = {"www18": WWW18, "ours": OURS}
