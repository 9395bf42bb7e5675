"""The loop that keeps the cache between two watermarks, in the ledger's order.

Every tick, one after another and never two at once: keep the lease; look at the memory; raise expiries that
lag behind; while more than the high watermark is used, unlink victims down to the low one; scan a little for
keys that no report told of.

While another sidecar holds the lease of the prefix this one only watches it: not ready, no order, reports
waiting. When the lease ends it learns the order from Redis and goes on.

Memory is Redis' own logical count, the one it compares with maxmemory. Resident memory and fragmentation
are reported but steer nothing: they may stay high after deletions, and an evictor that chases them empties
the cache (redis#7482, #6290, #354). Client buffers count as used, as they do for Redis.

When Redis is gone or silent the sidecar is not ready, keeps trying with growing pauses, and goes on taking
reports. A restarted or flushed Redis, or another one in its place, is noticed by its run id or its number of
keys; the ledger is then rebuilt by scanning. While this process is absent or behind, Redis evicts by itself
in nearly the same order, because the priorities are its expiries.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence

import structlog
from redis.exceptions import RedisError

from services.eviction.answers import UNLINKED
from services.eviction.breaker import FreedBreaker
from services.eviction.config import EvictionConfig
from services.eviction.counters import RESTARTED, START, TAKEN_OVER, VANISHED, Counters
from services.eviction.discovery import Discovery
from services.eviction.lease import Lease
from services.eviction.ledger import Ledger, Victim
from services.eviction.reports import Reports
from services.eviction.store import SCRIPT_KEYS, Fenced, Memory, Store
from services.runtime.errors import UserError
from services.runtime.health import Dependency

_BATCH_BYTES = 4 << 20  # a string is freed on Redis' only thread, whatever its size: bounds that pause
_RISES = 256  # in one pipeline
_RISES_PER_TICK = 4_096
_FIRST_RETRY_S = 0.1
_LONGEST_RETRY_S = 5.0
_SPARE_ENTRIES = 65_536


class Enforcer:
    """Enforces a ledger's order on one Redis. Event-loop only."""

    def __init__(
        self,
        config: EvictionConfig,
        ledger: Ledger,
        store: Store,
        discovery: Discovery,
        lease: Lease,
        redis: Dependency,
        reports: Reports,
        counters: Counters,
        log: structlog.stdlib.BoundLogger,
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._store = store
        self._discovery = discovery
        self._redis = redis
        self._reports = reports
        self._counters = counters
        self._log = log
        self.lease = lease
        self._breaker = FreedBreaker()
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._run_id = ""
        self._evicted_keys = 0
        self._counted_run_id = ""
        self._connected = False
        self._passive = False
        self._exhausted = False
        self.memory = Memory("", "", "", 0, 0, 0, 0, 0)
        self.used_bytes = 0
        self.high_bytes = 0
        self.low_bytes = 0

    async def connect(self) -> None:
        """Verifies the server and, unless another sidecar leads, learns what it holds; ready then.

        Raises UserError when it cannot be managed, redis-py's errors when it does not answer.
        """
        memory = await self._store.verify()
        self._connected = True
        await self._lead(memory)

    async def _lead(self, memory: Memory) -> bool:
        """Whether this sidecar holds the lease, with the order learnt from the server that it stands in."""
        led = self.lease.leads
        leads = await self.lease.keep(self._ledger.order.clock)
        self._counters.leading.set(leads)
        if not leads:
            if led:
                self._log.warning("lease_lost", epoch=self.lease.epoch)
            self._passive, self._run_id = True, ""
            self._reports.hold()
            self._redis.down(f"another sidecar holds the lease, epoch {self.lease.epoch}")
            return False
        if memory.run_id != self._run_id:
            reason = TAKEN_OVER if self._passive else RESTARTED if self._counted_run_id else START
            await self._rebuild(reason, memory)
            self._passive = False
        self._redis.up()
        return True

    def lost(self, error: Exception) -> None:
        """Notes that Redis does not serve us, and why."""
        reason = str(error) or type(error).__name__
        if self._connected or self._redis.reason != reason:
            self._log.warning("redis_lost", reason=reason)
        self._connected = False
        self._redis.down(reason)

    async def run(self) -> None:
        """Ticks until told to stop; no state of Redis ends it."""
        retry_s, tick_s = _FIRST_RETRY_S, self._config.tick_ms / 1000
        while not self._stopping.is_set():
            try:
                if not self._connected:
                    await self.connect()
                await self.tick()
            except (RedisError, OSError, TimeoutError, UserError) as error:
                self.lost(error)
                await self._pause(self._stopping, retry_s)
                retry_s = min(2 * retry_s, _LONGEST_RETRY_S)
                continue
            retry_s = _FIRST_RETRY_S
            # At the most ten times the rate, however many reports wake us.
            await self._pause(self._stopping, 0.1 * tick_s)
            await self._pause(self._wake, 0.9 * tick_s)

    def stop(self) -> None:
        """Has `run` return after the command that it waits for."""
        self._stopping.set()
        self._wake.set()

    @staticmethod
    async def _pause(event: asyncio.Event, longest_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), longest_s)

    def reported(self) -> None:
        """Called after reports were applied: brings the next tick forward when they fill the cache."""
        if self._connected and self.used_bytes + self._ledger.grown_bytes > self.high_bytes:
            self._wake.set()

    async def tick(self) -> None:
        """One round; raises what the store raises."""
        started_s = time.perf_counter()
        if not self._stopping.is_set():
            self._wake.clear()
        expected = len(self._ledger)
        self._ledger.grown_bytes = 0
        memory = await self._store.memory()
        if memory.role != "master" or memory.policy != "volatile-ttl" or memory.max_bytes == 0:
            await self._store.verify()
        if memory.run_id not in (self._run_id, ""):
            await self._store.verify()
        if not await self._lead(memory):
            return
        await self._notice(memory, min(expected, len(self._ledger)))
        clock = self._ledger.order.clock
        await self._raise()
        await self._evict()
        await self._measure()
        await self._discovery.sweep()
        if self._ledger.order.clock != clock:
            self._reports.clock_moved()
        watermarks = (self.low_bytes, self.high_bytes)
        self._counters.observe(self._ledger, self.memory, self.used_bytes, watermarks, self._breaker.is_open)
        self._counters.tick.observe(time.perf_counter() - started_s)

    async def _notice(self, memory: Memory, expected: int) -> None:
        """Draws the conclusions from one look at the memory."""
        if expected > 2 * memory.keys + 16:
            await self._rebuild(VANISHED, memory)
        self._take(memory)

    def _take(self, memory: Memory) -> None:
        if memory.run_id != self._counted_run_id:
            self._evicted_keys = memory.evicted_keys if not self._counted_run_id else 0
            self._counted_run_id = memory.run_id
        self._counters.backstop.inc(max(memory.evicted_keys - self._evicted_keys, 0))
        self._evicted_keys = memory.evicted_keys
        config = self._config
        self.memory, self.used_bytes = memory, memory.used_bytes
        self.high_bytes = int(config.high_watermark * memory.max_bytes)
        self.low_bytes = int(config.low_watermark * memory.max_bytes)
        self._ledger.max_entry_bytes = self.low_bytes
        self._ledger.max_entries = 2 * memory.keys + _SPARE_ENTRIES

    async def _raise(self) -> None:
        for _ in range(0, _RISES_PER_TICK, _RISES):
            rises = self._ledger.take_rises(_RISES)
            if not rises:
                return
            try:
                held_ms = await self._store.rise([r.key for r in rises], [r.target_ms for r in rises])
            except BaseException:
                self._ledger.return_rises(rises)
                raise
            self._ledger.settle_rises(rises, held_ms)
            self._counters.rises.inc(len(rises))

    async def _evict(self) -> None:
        if self.used_bytes <= self.high_bytes:
            return
        keys_left, bytes_left = self._config.max_keys_per_tick, self._config.max_bytes_per_tick
        while (excess_bytes := self.used_bytes - self.low_bytes) > 0 and keys_left > 0 and bytes_left > 0:
            if self._stopping.is_set() or not self._breaker.allows():
                return
            victims = self._ledger.take_victims(
                min(excess_bytes, bytes_left, _BATCH_BYTES), min(keys_left, SCRIPT_KEYS)
            )
            if bool(victims) is self._exhausted:
                self._exhausted = not victims
                if self._exhausted:
                    self._log.error("nothing_left_to_evict", used=self.used_bytes, high=self.high_bytes)
            if not victims or not await self._unlink(victims):
                return
            keys_left -= len(victims)
            bytes_left -= sum(victim.entry.size_bytes for victim in victims)

    async def _unlink(self, victims: Sequence[Victim]) -> bool:
        """Evicts a batch; whether the lease allowed it."""
        keys, expected_ms = [v.entry.key for v in victims], [v.expected_ms for v in victims]
        try:
            done = await self._store.unlink(self.lease.token, keys, expected_ms)
        except Fenced as error:
            self._ledger.return_victims(victims)
            self._log.warning("eviction_fenced", reason=str(error), epoch=self.lease.epoch)
            self.lease.doubt()
            return False
        except BaseException:
            self._ledger.return_victims(victims)  # it may have run: a later try finds out
            raise
        self.used_bytes = done.used_bytes
        settled = self._ledger.settle_victims(victims, done.answers)
        self._counters.evicted.inc(settled.unlinked)
        for reason in ("changed", "gone", "immortal"):
            self._counters.skipped.labels(reason).inc(getattr(settled, reason))
        self._counters.freed_bytes.inc(max(done.freed_bytes, 0))
        estimated_bytes = sum(
            v.entry.size_bytes for v, a in zip(victims, done.answers, strict=True) if a == UNLINKED
        )
        if self._breaker.record(estimated_bytes, done.freed_bytes):
            self._log.error(
                "evictions_free_too_little",
                estimated_bytes=estimated_bytes,
                freed_bytes=done.freed_bytes,
                meaning="reported sizes are wrong or memory is held elsewhere; evictions pause",
            )
        return True

    async def _measure(self) -> None:
        """Compares a few reported sizes with what the entries occupy."""
        sampled = self._ledger.sampled
        if not sampled:
            return
        for found in await self._store.describe(list(sampled)):
            if found.size_bytes:
                self._ledger.observe(sampled[found.key], found.size_bytes)
        sampled.clear()

    async def _rebuild(self, reason: str, memory: Memory) -> None:
        """Learns everything anew; not ready meanwhile."""
        self._redis.down("rebuilding the order from Redis")
        self._reports.hold()
        self._run_id = ""
        await self._discovery.rebuild(reason, max(self.lease.clock, self._ledger.order.clock))
        self._run_id = memory.run_id
        self._take(memory)
        self._reports.release()
        self._redis.up()
