"""A request as the decisions about its list see it: who asks, when, and what lists are worth to them now."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Protocol

from services.core.ads_list import AdsList
from services.core.auction import LiveAd, Placement, Viewer, run_auction
from services.core.refresh.features import Computed, Request

_MICROS = 1_000_000


class LiveAds(Protocol):
    """Where the live ads are; another mapping after every full load."""

    @property
    def ads(self) -> Mapping[int, LiveAd]:
        """Live ads by id."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One RankAds call: what its list is cached by, and the auction that it starts."""

    key_text: str
    fingerprint: bytes
    viewer: Viewer
    slots: int
    reserve_micros: int
    replica: LiveAds
    now_ms: int

    @property
    def ads(self) -> Mapping[int, LiveAd]:
        """The live ads of this moment, by id."""
        return self.replica.ads

    @property
    def request(self) -> Request:
        """As refresh models see it; no fast estimate of its revenue is known live."""
        viewer = self.viewer
        location = zlib.crc32(viewer.location.encode()) if viewer.location else 0
        return Request(self.now_ms, location, viewer.gender, viewer.age_band, viewer.device, math.nan)

    def auction(self, entry: AdsList, drops: MutableMapping[str, int] | None = None) -> list[Placement]:
        """The positions as the ads of a list would fill them; `drops` counts as `run_auction` says."""
        return run_auction(
            entry.ad_ids,
            entry.click_probabilities,
            self.ads,
            self.viewer,
            self.slots,
            self.reserve_micros,
            drops,
        )

    def computed(self, fresh: AdsList, cached: AdsList | None, kept_ads: int) -> Computed:
        """What computing a list showed: its worth, and what serving the cached one would have lost.

        cached: the list before, None where there was none. kept_ads: ads of the list that takes its place.
        """
        value_usd = loss_usd = 0.0
        held = frozenset[int]() if cached is None else frozenset(cached.ad_ids)
        for placement in self.auction(fresh):
            worth_usd = placement.click_probability * placement.price_micros / _MICROS
            value_usd += worth_usd
            if placement.ad.ad_id not in held:
                loss_usd += worth_usd
        offered_usd = sum(
            probability * self.ads[ad_id].bid_micros
            for ad_id, probability in zip(fresh.ad_ids, fresh.click_probabilities, strict=True)
            if ad_id in self.ads
        )
        change = math.nan
        if cached is not None:
            change = 1 - len(held.intersection(fresh.ad_ids)) / max(1, len(held.union(fresh.ad_ids)))
        return Computed(
            kept_ads,
            value_usd,
            offered_usd / _MICROS / max(1, len(fresh.ad_ids)),
            float(fresh.cost_us),
            math.nan if cached is None else loss_usd,
            change,
        )
