"""Finds out what Redis holds, by scanning: everything at start, a little every tick.

Reports may be lost, so nothing depends on them: an entry that was never reported is found by the sweep,
one whose report was wrong is put right when its eviction is tried, and an expiry that lags a little behind
its priority is raised as the sweep comes past. After a crash the priorities are read back from the expiries.
The clock L comes from the lease; without one it is the lowest priority, because no entry can lie below L.

A key under the prefix without an expiry (a plain SET drops it) would outlive every eviction, of ours and
of Redis' (redis#4356, opencollective-api#10005). It is given the expiry that its cost makes it worth, the
present clock where no cost is known, and counted. Keys of a pinned class lose theirs instead.
"""

from __future__ import annotations

import asyncio
import time
from operator import attrgetter

import structlog

from services.core.eviction.priority import BASE_MS, priority_of
from services.eviction.answers import Found
from services.eviction.counters import Counters
from services.eviction.lease import Lease
from services.eviction.ledger import Ledger
from services.eviction.store import Store

_SCAN_KEYS = 1_000
_SWEEP_KEYS = 100
_REST_SWEEPS = 10
_LEARN_KEYS = 5_000


class Discovery:
    """Fills a ledger from the keys of one Redis. Event-loop only; called by one task."""

    def __init__(
        self,
        ledger: Ledger,
        store: Store,
        lease: Lease,
        counters: Counters,
        log: structlog.stdlib.BoundLogger,
    ) -> None:
        self._ledger = ledger
        self._store = store
        self._lease = lease
        self._counters = counters
        self._log = log
        self._cursor = 0
        self._rest = 0

    async def rebuild(self, reason: str, clock: int) -> None:
        """Forgets every entry and learns them from Redis; `clock` is where L stood, 0 when nobody knows."""
        started_s = time.perf_counter()
        found: list[Found] = []
        cursor = -1
        while cursor:
            await self._lease.keep(clock)
            cursor, keys = await self._store.scan(max(cursor, 0), _SCAN_KEYS)
            if keys:
                found += await self._store.describe(keys)
        found.sort(key=attrgetter("expiry_ms"))  # among equal priorities a client's earlier write goes first
        priorities = (priority_of(item.expiry_ms) for item in found if item.expiry_ms >= BASE_MS)
        self._ledger.clear(clock or min(priorities, default=0))
        rebuilt = 0
        for first in range(0, len(found), _LEARN_KEYS):
            rebuilt += self._ledger.learn(found[first : first + _LEARN_KEYS])
            await asyncio.sleep(0)  # reports and health go on
        immortal = len(self._ledger.immortal)
        while self._ledger.immortal or self._ledger.to_pin:
            await self._repair()
        self._cursor = 0
        duration_s = time.perf_counter() - started_s
        self._counters.rebuilt(reason, rebuilt + immortal, duration_s)
        self._log.info(
            "order_rebuilt",
            reason=reason,
            entries=len(self._ledger),
            repaired=immortal,
            clock=self._ledger.order.clock,
            seconds=round(duration_s, 3),
        )

    async def sweep(self) -> None:
        """Scans about 100 keys onwards: learns unknown entries, repairs those without expiry.

        Rests for ten calls after a scan that found nothing: where all is reported a scan only costs.
        """
        await self._repair()
        self._rest -= 1
        if self._rest > 0:
            return
        self._cursor, keys = await self._store.scan(self._cursor, _SWEEP_KEYS)
        self._ledger.recall(keys)
        unknown = [key for key in keys if self._ledger.held_ms(key) is None and self._ledger.manages(key)]
        found = self._ledger.learn(await self._store.describe(unknown)) if unknown else 0
        self._counters.found.inc(found)
        self._rest = 0 if found or self._ledger.immortal else _REST_SWEEPS
        await self._repair()

    async def _repair(self) -> None:
        to_pin = list(self._ledger.to_pin)[:_SCAN_KEYS]
        if to_pin:
            await self._store.pin(to_pin)
            self._counters.pinned.inc(len(to_pin))
            for key in to_pin:
                self._ledger.to_pin.pop(key, None)
        repaired = [self._ledger.repaired(item) for item in self._ledger.immortal[:_SCAN_KEYS]]
        if not repaired:
            return
        done = await self._store.mortalise(repaired)
        del self._ledger.immortal[: len(repaired)]
        found = [item for item, given in zip(repaired, done, strict=True) if given]
        self._ledger.learn(found)
        if found:
            self._counters.repaired.inc(len(found))
            self._log.warning("keys_without_expiry", repaired=len(found), example=repr(found[0].key))
