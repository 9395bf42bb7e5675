"""Finds out what Redis holds, by scanning: everything at start, a little every tick.

Reports may be lost, so nothing depends on them: an entry that was never reported is found by the sweep,
one whose report was wrong is put right when its eviction is tried. After a crash the priorities are read
back from the expiries, and the clock L is the lowest of them, because no entry can lie below the clock.

A key under the prefix without an expiry (a plain SET drops it) would outlive every eviction, of ours and
of Redis' (redis#4356, opencollective-api#10005). It is given an expiry at the present clock, and counted.
"""

from __future__ import annotations

import asyncio
import time

import structlog

from services.core.eviction.priority import expire_at_ms, priority_of
from services.eviction.counters import Counters
from services.eviction.ledger import IMMORTAL, Ledger
from services.eviction.store import Store

_SCAN_KEYS = 1_000
_SWEEP_KEYS = 200
_LEARN_KEYS = 5_000


def _expiry_ms(described: tuple[bytes, int, int]) -> int:
    return described[1]


class Discovery:
    """Fills a ledger from the keys of one Redis. Event-loop only; called by one task."""

    def __init__(
        self, ledger: Ledger, store: Store, counters: Counters, log: structlog.stdlib.BoundLogger
    ) -> None:
        self._ledger = ledger
        self._store = store
        self._counters = counters
        self._log = log
        self._cursor = 0

    async def rebuild(self, reason: str) -> None:
        """Forgets every entry and learns them from Redis; what is reported meanwhile stays."""
        started_s = time.perf_counter()
        self._ledger.clear()
        found: list[tuple[bytes, int, int]] = []
        cursor = -1
        while cursor:
            cursor, keys = await self._store.scan(max(cursor, 0), _SCAN_KEYS)
            if keys:
                found += await self._store.describe(keys)
        found.sort(key=_expiry_ms)  # among equal priorities the earlier write of a client goes first
        priorities = [priority_of(expiry_ms) for _, expiry_ms, _ in found if expiry_ms > 0]
        if priorities:
            self._ledger.order.advance(min(priorities))
        rebuilt = 0
        for first in range(0, len(found), _LEARN_KEYS):
            rebuilt += self._ledger.learn(found[first : first + _LEARN_KEYS])
            await asyncio.sleep(0)  # reports and health go on
        immortal = sum(expiry_ms == IMMORTAL for _, expiry_ms, _ in found)
        while self._ledger.immortal:
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
        """Scans about 200 keys onwards: learns unknown entries, repairs those without expiry."""
        self._cursor, keys = await self._store.scan(self._cursor, _SWEEP_KEYS)
        unknown = [key for key in keys if self._ledger.held_ms(key) is None]
        if unknown:
            self._counters.found.inc(self._ledger.learn(await self._store.describe(unknown)))
        await self._repair()

    async def _repair(self) -> None:
        immortal = self._ledger.immortal[:_SCAN_KEYS]
        if not immortal:
            return
        expiry_ms = expire_at_ms(self._ledger.order.clock, 0)
        repaired = await self._store.mortalise([key for key, _ in immortal], expiry_ms)
        del self._ledger.immortal[: len(immortal)]
        found = [(key, expiry_ms, used) for (key, used), done in zip(immortal, repaired, strict=True) if done]
        self._ledger.learn(found)
        if found:
            self._counters.repaired.inc(len(found))
            self._log.warning("keys_without_expiry", repaired=len(found), example=repr(found[0][0]))
