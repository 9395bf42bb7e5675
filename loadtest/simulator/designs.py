"""The designs that the simulator compares: a refresh policy, a cache key, and whether lists are merged.

The ten of SoCC'17 (figures 7-11) come first, under the names of its mechanisms; then fixed refresh at the 5th
hit, which WWW'18 compares with, and two policies from the caching literature that know nothing about ads;
then the learned ones: WWW'18, ours, and ours without one of its parts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from models.refresh.recipes import OURS, WWW18, Recipe
from services.core.personalisation import Scheme
from services.core.refresh.adaptive_ttl import LONGEST_TTL_MS
from services.core.refresh.two_level import COLD_EVERY
from services.core.refresh.xfetch import BETA

Policy = Literal["none", "fixed", "two_level", "adaptive", "adaptive_ttl", "xfetch", "predicted"]

POLICIES: tuple[Policy, ...] = (
    "none",
    "fixed",
    "two_level",
    "adaptive",
    "adaptive_ttl",
    "xfetch",
    "predicted",
)

QUEUE_ADS = 32
"""Ads that a merged list holds. The paper says "somewhat longer than a usual list", and +15 % of memory at
most; its usual list has 11 ads, the longest of the published fit 24."""


@dataclass(frozen=True)
class Design:
    """One design; the parameters that its policy does not use are without effect.

    every: n of the fixed policy. cold_every: n of phrases that never earned (two_level, adaptive). ttl_ms:
    the time to live of xfetch, the least one of adaptive_ttl. ms_per_candidate: what computing a list takes,
    for each candidate of the log's cost indicator (xfetch). queue_ads: capacity of a merged list. recipe: how
    the model of `predicted` is trained. price_factor: of the price of computing that it goes by.
    """

    name: str
    policy: Policy
    merge: bool = False
    key: Scheme = "phrase"
    every: int = 2
    cold_every: int = COLD_EVERY
    ttl_ms: int = 600_000
    longest_ttl_ms: int = LONGEST_TTL_MS
    beta: float = BETA
    ms_per_candidate: float = 0.05
    queue_ads: int = QUEUE_ADS
    recipe: Recipe | None = None
    price_factor: float = 1.0

    def __post_init__(self) -> None:
        for field in ("every", "cold_every", "ttl_ms", "queue_ads"):
            if getattr(self, field) < 1:
                raise ValueError(f"{self.name}: {field} {getattr(self, field)} must be at least 1")
        if self.longest_ttl_ms < self.ttl_ms:
            raise ValueError(
                f"{self.name}: longest_ttl_ms {self.longest_ttl_ms} is below ttl_ms {self.ttl_ms}"
            )
        if not (self.beta >= 0.0 and self.ms_per_candidate >= 0.0):
            raise ValueError(f"{self.name}: beta and ms_per_candidate must be at least 0")
        if (self.policy == "predicted") != (self.recipe is not None) or (
            self.recipe and self.key != "phrase"
        ):
            raise ValueError(f"{self.name}: predicted, and no other policy, has a recipe, and phrase keys")


def _learned(name: str, recipe: Recipe, price_factor: float = 1.0) -> Design:
    queue_ads = recipe.merge_ads or QUEUE_ADS
    return Design(
        name,
        "predicted",
        merge=recipe.merge_ads > 0,
        queue_ads=queue_ads,
        recipe=recipe,
        price_factor=price_factor,
    )


_ALL = (
    Design("none", "none"),
    Design("fixed2", "fixed"),
    Design("two_level", "two_level"),
    Design("adaptive", "adaptive"),
    Design("fixed2_merge", "fixed", merge=True),
    Design("adaptive_merge", "adaptive", merge=True),
    Design("fixed2_personalised", "fixed", key="all"),
    Design("adaptive_personalised", "adaptive", key="all"),
    Design("adaptive_selective", "adaptive", key="selective"),
    Design("adaptive_selective_merge", "adaptive", key="selective", merge=True),
    Design("fixed5", "fixed", every=5),
    Design("adaptive_ttl", "adaptive_ttl"),
    Design("xfetch", "xfetch", ttl_ms=3_600_000),
)

_LEARNED = (
    _learned("www18", WWW18),
    _learned("www18_priced", replace(WWW18, priced=True)),
    _learned("predicted", OURS),
    # without one of its parts: rule, label, features, merging, probes
    _learned("predicted_threshold", replace(OURS, priced=False)),
    _learned("predicted_clicks", replace(OURS, by_clicks=True)),
    _learned("predicted_www18_features", replace(OURS, published=True)),
    _learned("predicted_unmerged", replace(OURS, merge_ads=0)),
    _learned("predicted_unprobed", replace(OURS, probe_share=0.0)),
    # with a wrong price, and with little data
    _learned("predicted_price_0.7", OURS, 0.7),
    _learned("predicted_price_1.4", OURS, 1.4),
    _learned("predicted_170k_rows", replace(OURS, rows=170_000)),
)

DESIGNS: dict[str, Design] = {design.name: design for design in _ALL}
"""By name."""

LEARNED: dict[str, Design] = {design.name: design for design in _LEARNED}
"""Those that are trained on the warm-up of a log, by name."""

SOCC17 = tuple(design.name for design in _ALL[:10])
"""The ten designs of SoCC'17, in the order of its table."""
