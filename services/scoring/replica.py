"""The in-process copy of live ads that every auction reads, and of the queries that have earned.

It is loaded in full once, then follows the change stream by a poll every 100 ms, so that a new bid, a pause
or an exhausted budget shows well within a second in every scoring process. When the stream does not continue
where the copy stands (trimmed, restarted, flushed), everything is loaded again beside the copy in use and
swapped in. While the state Redis gives no answer the copy stays, and `age_ms` tells how old it is.

A full load takes its position in the stream first and the data after it; changes made meanwhile are then
applied once more, which is harmless because each sets values and none adds.

Budgets: an account is open while it is not paused and what it was charged today, by UTC date, is below its
daily budget. The day turns by this process's clock or by the first charge of the next day, whichever comes
first, never back. A charge of a day that is more than an hour away by this process's clock comes from a wrong
clock and is ignored: it would give every exhausted account its budget again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Mapping, Set

import structlog

from frugalads.scoring.v1 import scoring_pb2
from services.core.auction import Account, LiveAd, Targeting
from services.runtime.errors import Unavailable
from services.runtime.metrics import Metrics
from services.scoring.state import Gap, Position, State, StoredAd, utc_day
from services.scoring.tasks import end

POLL_S = 0.1
STALE_AFTER_MS = 1000
MAX_SKEW_MS = 3_600_000

_BATCH = 1000
_RETRY_S = 0.25


def to_micros(usd: float) -> int:
    """US dollars as whole micro-dollars."""
    return round(usd * 1_000_000)


class Copy:
    """Live ads, accounts and earning queries of one load.

    `latest_day` is the last day that can have begun on any clock.
    """

    def __init__(self, day: str) -> None:
        self.day = self.latest_day = day
        self.ads: dict[int, LiveAd] = {}
        self.accounts: dict[str, Account] = {}
        self.earning: set[bytes] = set()

    def put_ad(self, ad_id: int, stored: StoredAd) -> None:
        """Add or replace an ad."""
        ad = scoring_pb2.Ad.FromString(stored.message)
        account = self.account(ad.advertiser)
        targeting = _targeting(ad.targeting) if ad.HasField("targeting") else None
        self.ads[ad_id] = LiveAd(
            ad_id, ad.title, ad.description, account, stored.bid_micros, stored.paused, targeting
        )

    def put_advertiser(self, message: bytes) -> None:
        """Add an account or replace its budget and pause."""
        stored = scoring_pb2.Advertiser.FromString(message)
        account = self.account(stored.advertiser)
        has_budget = stored.HasField("daily_budget_usd")
        account.daily_budget_micros = to_micros(stored.daily_budget_usd) if has_budget else None
        account.paused = stored.paused
        account.settle()

    def put_spend(self, advertiser: str, day: str, micros: int) -> None:
        """Note what an account was charged in all on a day; a day that is over or far ahead is ignored."""
        if day <= self.latest_day:
            self.turn_to(day)
        if day == self.day:
            account = self.account(advertiser)
            account.spent_today_micros = max(account.spent_today_micros, micros)
            account.settle()

    def turn_to(self, day: str) -> None:
        """Begin a day: nothing is spent. An earlier day or the same one changes nothing."""
        if day > self.day:
            self.day = day
            for account in self.accounts.values():
                account.spent_today_micros = 0
                account.settle()

    def account(self, advertiser: str) -> Account:
        """The account of an advertiser; one that nobody created has no budget and is open."""
        account = self.accounts.get(advertiser)
        if account is None:
            account = self.accounts[advertiser] = Account(advertiser)
        return account

    def apply(self, change: Mapping[bytes, bytes]) -> None:
        """Apply one entry of the change stream."""
        op, name = change[b"op"], change[b"id"]
        if op == b"spend":
            self.put_spend(name.decode(), change[b"day"].decode(), int(change[b"micros"]))
        elif op == b"earning":
            self.earning.add(name)
        elif op == b"advertiser":
            self.put_advertiser(change[b"message"])
        elif op == b"delete":
            self.ads.pop(int(name), None)
        elif op == b"ad":
            bid_micros, paused = int(change[b"bid"]), change[b"paused"] == b"1"
            self.put_ad(int(name), StoredAd(change[b"message"], bid_micros, paused))
        elif op == b"change" and (ad := self.ads.get(int(name))) is not None:
            if change[b"bid"]:
                ad.bid_micros = int(change[b"bid"])
            if change[b"paused"]:
                ad.paused = change[b"paused"] == b"1"


class Replica:
    """Keeps a copy current. Event-loop only.

    on_click: told of each click charged from now on, by any process: answer id and ad id.
    """

    def __init__(
        self,
        state: State,
        metrics: Metrics,
        log: structlog.stdlib.BoundLogger,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        on_click: Callable[[bytes, int], None] = lambda answer_id, ad_id: None,
    ) -> None:
        self._state = state
        self._log = log
        self._on_click = on_click
        self._wall_ms = wall_ms
        self._copy = Copy(utc_day(wall_ms()))
        self._position = Position(b"", 0, b"0-0")
        self._run_id = ""
        self._current_at_s = -math.inf
        self._is_answering = True
        self._wake = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None
        self._loads = metrics.counter("replica_loads_total", "Full loads of the live ads.")
        metrics.gauge("replica_ads", "Live ads known.").set_function(lambda: len(self._copy.ads))
        metrics.gauge("replica_age_seconds", "Age of the copy of live ads.").set_function(
            lambda: self.age_ms / 1000
        )

    @property
    def ads(self) -> Mapping[int, LiveAd]:
        """Live ads by id, paused ones included."""
        return self._copy.ads

    @property
    def earning(self) -> Set[bytes]:
        """Queries that have earned, by the phrase part of their fingerprint.

        One that earned within 30 days of the last full load, or since; a load forgets the others.
        """
        return self._copy.earning

    @property
    def age_ms(self) -> int:
        """Milliseconds since the copy was last known to be current."""
        return int(min(time.monotonic() - self._current_at_s, 1e9) * 1000)

    @property
    def is_stale(self) -> bool:
        """Whether the copy is older than a second."""
        return time.monotonic() - self._current_at_s > STALE_AFTER_MS / 1000

    async def start(self) -> None:
        """Load everything, waiting for the state Redis as long as it takes, and follow from there."""
        while True:
            try:
                await self._load()
                break
            except Unavailable as error:
                self._log.warning("state_unavailable", cause=error.metadata.get("cause"))
                await asyncio.sleep(_RETRY_S)
        self._follower = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """Stop following."""
        if self._follower is not None:
            await end(self._follower)

    def nudge(self) -> None:
        """Poll at once: this process has just written."""
        self._wake.set()

    async def _load(self) -> None:
        began_s = time.monotonic()
        run_id = await self._state.run_id()
        position = await self._state.position()
        copy = Copy(utc_day(self._wall_ms()))
        async for message in self._state.advertisers():
            copy.put_advertiser(message)
        async for advertiser, micros in self._state.spend(copy.day):
            copy.put_spend(advertiser, copy.day, micros)
        async for query in self._state.earning():
            copy.earning.add(query)
        async for batch in self._state.ads():
            for ad_id, stored in batch:
                copy.put_ad(ad_id, stored)
        self._copy, self._position, self._run_id, self._current_at_s = copy, position, run_id, began_s
        self._loads.inc()
        self._log.info("ads_loaded", ads=len(copy.ads), ms=int((time.monotonic() - began_s) * 1000))

    async def _follow(self) -> None:
        while True:
            more = False
            try:
                more = await self._catch_up()
            except Unavailable as error:
                if self._is_answering:
                    self._log.warning("state_unavailable", cause=error.metadata.get("cause"))
                self._is_answering = False
            except Exception:
                # Something in the state that no release of ours wrote. The copy ages and answers say so; it
                # is tried again, because a follower that died would show paused ads for ever.
                self._log.exception("ads_follow_failed")
                await asyncio.sleep(_RETRY_S)
            if not more:
                self._wake.clear()
                # Not wait_for: before Python 3.12 it can swallow the cancellation that stops this task.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await self._wake.wait()

    async def _catch_up(self) -> bool:
        """Apply what is new; true when there may be more. Raises Unavailable."""
        try:
            # A server that came back without its newest writes can have reached the same numbers again.
            if not self._is_answering and await self._state.run_id() != self._run_id:
                raise Gap
            more = await self._poll()
        except Gap:
            self._log.warning("ads_resync", sequence=self._position.sequence)
            await self._load()
            more = False
        self._is_answering = True
        return more

    async def _poll(self) -> bool:
        """Apply one batch of changes; true when there may be more."""
        began_s = time.monotonic()
        position, changes = await self._state.changes(self._position, _BATCH)
        self._copy.latest_day = utc_day(self._wall_ms() + MAX_SKEW_MS)
        for change in changes:
            self._copy.apply(change)
            for click in change.get(b"clicks", b"").split():
                answer_id, _, ad_id = click.partition(b":")
                self._on_click(bytes.fromhex(answer_id.decode()), int(ad_id))
        self._copy.turn_to(utc_day(self._wall_ms()))
        self._position = position
        if len(changes) == _BATCH:
            return True
        self._current_at_s = began_s
        return False


def _targeting(stored: scoring_pb2.Targeting) -> Targeting | None:
    targeting = Targeting(
        frozenset(stored.locations),
        frozenset(stored.genders),
        frozenset(stored.age_bands),
        frozenset(stored.devices),
    )
    return None if targeting == Targeting() else targeting
