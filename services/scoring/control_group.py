"""The control group: a small share of queries that are served without the cache, and the log of them.

Problem. What a refresh policy decides cannot be learned from, or judged by, what it let happen: of a list
that was reused nobody knows what computing it anew would have given.

How. The queries of the group are drawn by their fingerprint, the same in every process. Each of their hits is
computed anew, unless one of the same query is being computed, and their lists are not merged. So the group's
requests are what `frugalads log import` calls a request log: every request with the list that the scorer
gave, the bids of the moment, what was shown and what was clicked. `frugalads train refresh` learns from it,
`frugalads simulate` compares policies on it. Beside the columns of a log each row says what the policy would
have done (`decision`, `predicted_loss_usd`).

Clicks come with the change stream, from whichever process charged them; a row waits `CLICK_WAIT_S` for its
own and is then written, or earlier where more than `MAX_WAITING` do. A thread writes, in the order of the
answers, to one file; when it is full it becomes the older of two and another begins.

Invariants: no answer waits for the log; rows that wait, hits computed anew a second, and bytes on the disk
are bounded, and what the bounds keep out is counted. A disk that takes nothing costs rows, never an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog

from services.core.ads_list import AdsList
from services.core.auction import Placement
from services.core.personalisation import phrase_of
from services.core.refresh.policy import Decision
from services.runtime.metrics import Metrics
from services.scoring.asked import Asked

CLICK_WAIT_S = 300.0
MAX_WAITING = 6_000  # some 10 kB each

_INTERVAL_S = 1.0
_MICROS = 1_000_000

# As request logs spell them, by the numbers of scoring.proto.
_GENDERS = (None, "female", "male")
_AGES = (None, "13-17", "18-24", "25-34", "35-49", "50-64", "65+")
_DEVICES = (None, "desktop", "mobile", "tablet")

Row = dict[str, Any]


class ControlGroup:
    """Queries whose lists are never reused, and the log of their requests. Event-loop only.

    file: where rows go, None without a group. share: of the queries, 0..1. per_s: most hits computed anew for
    it a second. max_bytes: of the file, and of the older one beside it.
    """

    def __init__(
        self,
        file: Path | None,
        share: float,
        per_s: int,
        max_bytes: int,
        metrics: Metrics,
        log: structlog.stdlib.BoundLogger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
        self._below = int(share * 2**64) if file is not None else 0
        self._interval_s = 1 / per_s
        self._max_bytes = max_bytes
        self._log = log
        self._clock = clock
        self._next_s = 0.0
        self._waiting: OrderedDict[bytes, tuple[float, Row]] = OrderedDict()  # answer -> due, row
        self._last_ms = 0
        self._stopping = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._rows = metrics.counter(
            "control_rows_total",
            "Requests of the control group by what became of them: logged; over its pace and served from the"
            " cache; lost because too many waited or the file took nothing.",
            ("outcome",),
            ("logged", "paced", "lost"),
        )
        metrics.gauge("waiting_rows", "Requests of the control group that wait for clicks.").set_function(
            lambda: len(self._waiting)
        )

    def has(self, fingerprint: bytes) -> bool:
        """Whether a key's query is in the group."""
        return int.from_bytes(phrase_of(fingerprint)) < self._below

    def takes_hit(self, fingerprint: bytes) -> bool:
        """Whether a hit is computed anew for the group; what it says counts as done."""
        if not self.has(fingerprint):
            return False
        now_s = self._clock()
        if now_s < self._next_s:
            self._rows.labels("paced").inc()
            return False
        # Pauses shorter than a second are made up for, so that a burst of one query is not thinned out.
        self._next_s = max(self._next_s, now_s - 1.0) + self._interval_s
        return True

    def answered(
        self,
        answer_id: bytes,
        asked: Asked,
        fresh: AdsList,
        placements: Sequence[Placement],
        decision: Decision,
    ) -> None:
        """A request of the group was answered from a list just computed; the policy would have decided so."""
        if len(self._waiting) >= 2 * MAX_WAITING:
            self._rows.labels("lost").inc()
            return
        self._last_ms = max(asked.now_ms, self._last_ms)
        row = _row(asked, fresh, placements, self._last_ms)
        row["decision"] = "refresh" if decision.refresh else "reuse"
        row["predicted_loss_usd"] = decision.predicted_loss_usd
        self._waiting[answer_id] = self._clock() + CLICK_WAIT_S, row

    def clicked(self, answer_id: bytes, ad_id: int) -> None:
        """A click on an ad of an answer was charged, here or elsewhere."""
        found = self._waiting.get(answer_id)
        if found is not None and ad_id in found[1]["ads"]:
            found[1]["clicked"][found[1]["ads"].index(ad_id)] = True

    async def start(self) -> None:
        """Begin writing."""
        if self._below:
            self._writer = asyncio.create_task(self._write_due())

    async def stop(self) -> None:
        """Write all that waits, and stop."""
        self._stopping.set()
        if self._writer is not None:
            await self._writer
            await self._write(len(self._waiting))

    async def _write_due(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_INTERVAL_S):
                    await self._stopping.wait()
            now_s = self._clock()
            due = sum(1 for due_s, _ in self._waiting.values() if due_s <= now_s)
            await self._write(max(due, len(self._waiting) - MAX_WAITING))

    async def _write(self, count: int) -> None:
        """Write the `count` rows that wait longest."""
        rows = [self._waiting.popitem(last=False)[1][1] for _ in range(count)]
        if not rows:
            return
        try:
            await asyncio.to_thread(self._append, rows)
        except (OSError, ValueError) as error:  # ValueError: a number that JSON does not have
            self._rows.labels("lost").inc(count)
            self._log.warning("control_log_failed", path=str(self._file), fault=str(error))
        else:
            self._rows.labels("logged").inc(count)

    def _append(self, rows: Sequence[Row]) -> None:
        assert self._file is not None
        text = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows).encode()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        if self._file.exists() and self._file.stat().st_size + len(text) > self._max_bytes:
            self._file.replace(self._file.with_suffix(f".1{self._file.suffix}"))
        with self._file.open("ab") as stream:
            stream.write(text)


def _row(asked: Asked, fresh: AdsList, placements: Sequence[Placement], time_ms: int) -> Row:
    """The columns of a request log (loadtest/request_log/README.md), with nothing clicked yet.

    Ads that cannot take part at the moment are left out: they are no candidates. cost is microseconds.
    """
    shown = {placement.ad.ad_id: placement for placement in placements}
    row: Row = {"time_ms": time_ms, "query": asked.key_text, "cost": fresh.cost_us}
    viewer = asked.viewer
    row |= {"location": viewer.location or None, "gender": _GENDERS[viewer.gender]}
    row |= {"age": _AGES[viewer.age_band], "device": _DEVICES[viewer.device]}
    row |= {name: [] for name in ("ads", "click_probability", "bid_usd", "charge_usd", "shown_probability")}
    for ad_id, probability in zip(fresh.ad_ids, fresh.click_probabilities, strict=True):
        ad = asked.ads.get(ad_id)
        if ad is None or ad.paused or not ad.account.open:
            continue
        if ad.targeting is not None and not ad.targeting.admits(viewer):
            continue
        placement = shown.get(ad_id)
        row["ads"].append(ad_id)
        row["click_probability"].append(probability)
        row["bid_usd"].append(ad.bid_micros / _MICROS)
        row["charge_usd"].append(placement.price_micros / _MICROS if placement else 0)
        row["shown_probability"].append(placement.click_probability if placement else 0)
    row["clicked"] = [False] * len(row["ads"])
    return row
