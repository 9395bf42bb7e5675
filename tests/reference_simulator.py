"""The simulator written down plainly, from SoCC'17 and nothing of ours: what the fast one must agree with."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loadtest.request_log.schema import RequestLog
from loadtest.simulator.auction import Market
from loadtest.simulator.designs import Design

Key = tuple[int, ...]


@dataclass
class Entry:
    """A cached list and its state."""

    ads: dict[int, int] = field(default_factory=dict)  # ad -> where it was listed, head first
    count: int = 1
    every: int = 1
    ttl_ms: int = 0
    written_ms: int = 0
    cost_ms: float = 0.0


class Reference:
    """Replays a log; `sums` and `decisions` are what it found."""

    def __init__(self, log: RequestLog, design: Design, entries: int, warmup: int, trade: Market) -> None:
        self.log, self.design, self.capacity, self.trade = log, design, entries, trade
        self.cache: OrderedDict[Key, Entry] = OrderedDict()
        self.earning = {p for p in range(len(log.phrases)) if log.prior_clicks[p]}
        self.uniform = np.random.default_rng(17).random(len(log.phrase))
        self.sums: dict[str, Any] = dict.fromkeys(
            ("requests", "hits", "refreshes", "compared", "similarity", "cost", "cost_saved", "revenue_usd",
             "lost_usd", "revenue_realised_usd", "lost_realised_usd", "auction_usd", "probes",
             "served_predicted_usd", "served_estimated_usd"), 0
        )  # fmt: skip
        self.decisions: list[str] = []
        for i in range(len(log.phrase)):
            self.request(i, counted=i >= warmup)

    def key(self, i: int) -> Key:
        log = self.log
        phrase = int(log.phrase[i])
        scheme = self.design.key
        if scheme == "all" or (scheme == "selective" and phrase in self.earning):
            return (phrase, int(log.location[i]), int(log.gender[i]), int(log.age[i]))
        return (phrase,)

    def request(self, i: int, counted: bool) -> None:
        log, key = self.log, self.key(i)
        places = range(log.offsets[i], log.offsets[i + 1])
        current = {int(log.ads[j]): j for j in places}
        entry = self.cache.get(key)
        served = current
        if entry is None:
            decision = "miss"
            if len(key) > 1 and (key[0],) in self.cache:
                del self.cache[(key[0],)]  # Algorithm 2: the phrase's own list
            elif len(self.cache) == self.capacity:
                self.cache.popitem(last=False)
            entry = self.cache[key] = Entry(ttl_ms=self.design.ttl_ms)
            self.write(entry, i, {}, current)
        elif self.is_due(entry, i):
            decision = "refresh"
            self.adapt(entry, i, current)
            self.write(entry, i, entry.ads if self.design.merge else {}, current)
        else:
            decision = "hit"
            served = entry.ads
        self.cache.move_to_end(key)
        self.decisions.append(decision)
        if counted:
            self.count(i, decision, current, served)
        if any(log.clicked[j] and log.charge_usd[j] > 0 for j in places):
            self.earning.add(int(log.phrase[i]))

    def is_due(self, entry: Entry, i: int) -> bool:
        design, earns = self.design, int(self.log.phrase[i]) in self.earning
        age_ms = int(self.log.time_ms[i]) - entry.written_ms
        if design.policy == "none":
            return False
        if design.policy == "adaptive_ttl":
            return age_ms >= entry.ttl_ms
        if design.policy == "xfetch":
            early_ms = -design.beta * entry.cost_ms * math.log(self.uniform[i])
            return age_ms + early_ms >= design.ttl_ms
        if design.policy == "fixed":
            every = design.every
        elif not earns:
            every = design.cold_every
        else:
            every = 1 if design.policy == "two_level" else entry.every
        if entry.count % every == 0:
            return True
        entry.count += 1
        return False

    def adapt(self, entry: Entry, i: int, current: dict[int, int]) -> None:
        if not entry.ads or not current:
            return
        alike = len(entry.ads.keys() & current.keys()) / len(current)
        if int(self.log.phrase[i]) in self.earning:
            if alike > 0.9:
                entry.every += 1
            elif alike < 0.7:
                entry.every = max(1, entry.every - 1)
        if alike > 0.9:
            entry.ttl_ms = min(2 * entry.ttl_ms, self.design.longest_ttl_ms)
        else:
            entry.ttl_ms = self.design.ttl_ms

    def write(self, entry: Entry, i: int, before: dict[int, int], current: dict[int, int]) -> None:
        merged = current | {ad: j for ad, j in before.items() if ad not in current}
        longest = self.design.queue_ads if self.design.merge else len(merged)
        entry.ads = dict(list(merged.items())[:longest])
        entry.count = 1
        entry.written_ms = int(self.log.time_ms[i])
        entry.cost_ms = self.design.ms_per_candidate * float(self.log.cost[i])

    def count(self, i: int, decision: str, current: dict[int, int], served: dict[int, int]) -> None:
        log, sums = self.log, self.sums
        sums["requests"] += 1
        sums["cost"] += float(log.cost[i])
        sums["auction_usd"] += self.auction_usd(current, served)
        sums["refreshes"] += decision == "refresh"
        for j in range(log.offsets[i], log.offsets[i + 1]):
            charge_usd = float(log.charge_usd[j])
            expected_usd = float(log.shown_probability[j]) * charge_usd
            realised_usd = charge_usd if log.clicked[j] else 0.0
            sums["revenue_usd"] += expected_usd
            sums["revenue_realised_usd"] += realised_usd
            if int(log.ads[j]) not in served:
                sums["lost_usd"] += expected_usd
                sums["lost_realised_usd"] += realised_usd
        if decision == "hit":
            sums["hits"] += 1
            sums["cost_saved"] += float(log.cost[i])
            if current:
                sums["compared"] += 1
                sums["similarity"] += len(served.keys() & current.keys()) / len(current)

    def auction_usd(self, current: dict[int, int], served: dict[int, int]) -> float:
        """The auction that `auction.py` describes."""
        log, reserve = self.log, self.trade.reserve_usd
        shown = [(ad, j) for ad, j in current.items() if log.charge_usd[j] > 0]
        shown.sort(key=lambda pair: -self.score(pair[1]))
        kept = [rank for rank, (ad, _) in enumerate(shown) if ad in served]
        earned_usd = 0.0
        for position, rank in enumerate(kept):
            j = shown[rank][1]
            estimate, charge = float(log.click_probability[j]), float(log.charge_usd[j])
            price = charge
            if rank + 1 < len(shown) and rank + 1 not in kept and estimate:
                last = shown[-1][1]
                score = float(log.charge_usd[last]) * float(log.click_probability[last])
                if position + 1 < len(kept):
                    score = self.score(shown[kept[position + 1]][1])
                elif log.charge_usd[last] <= reserve:
                    score = 0.0
                price = min(max(score / estimate, reserve), charge)
            moved = self.trade.factors[position] / self.trade.factors[rank]
            earned_usd += min(float(log.shown_probability[j]) * moved, 1.0) * price
        return earned_usd

    def score(self, j: int) -> float:
        return float(self.log.bid_usd[j]) * float(self.log.click_probability[j])
