"""Who may evict under a prefix: one sidecar at a time, by a lease that stands in the Redis it is about.

The lease is one key, `<prefix>~lease`. It is the only key of ours under the prefix, so a Redis user that is
confined to the prefix suffices, and it is never managed as an entry. It has no expiry: under `volatile-ttl`
any key that is to expire soon is evicted first. Instead its holder changes it every quarter of the term, and
whoever sees it unchanged for a whole term, by a clock of their own, takes it over; no clocks are compared.

Every taking over raises the epoch. Evictions carry the epoch and are refused under another one (unlink.lua),
so a leader that was stopped for longer than its term evicts nothing when it wakes up. The lease also keeps
the priority clock L for the next leader.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from services.eviction.store import Store

_BEATS = 4  # in a term
_FREE = "-"


class Lease:
    """One sidecar's part in it. Event-loop only."""

    def __init__(self, store: Store, term_ms: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._term_s = term_ms / 1000
        self._now_s = now_s
        self._holder = secrets.token_hex(8)
        self._seen = b""
        self._seen_at_s = 0.0
        self._due_at_s = 0.0
        self.leads = False
        self.epoch = 0
        """Of the own term, or of the one that was seen last."""
        self.clock = 0
        """The priority clock that the lease keeps."""

    @property
    def token(self) -> bytes:
        """How the lease begins while this term lasts."""
        return b"%d %s " % (self.epoch, self._holder.encode())

    async def keep(self, clock: int) -> bool:
        """Renews when it is time, or looks whether the lease is free; whether this sidecar leads.

        clock: the priority clock to keep. Raises what the store raises.
        """
        now_s = self._now_s()
        if now_s >= self._due_at_s:
            stale = self._seen if now_s - self._seen_at_s >= self._term_s else b""
            self.leads, value = await self._store.lease(self._holder, self.epoch, clock, stale)
            self._due_at_s = now_s + self._term_s / _BEATS
            if value != self._seen:
                self._seen, self._seen_at_s = value, now_s
            parts = value.split()
            if len(parts) == 4 and parts[0].isdigit() and parts[3].isdigit():
                self.epoch, self.clock = int(parts[0]), int(parts[3])
        return self.leads

    def doubt(self) -> None:
        """Has the next `keep` ask Redis; for when an eviction was refused."""
        self._due_at_s = 0.0

    async def give_up(self, clock: int) -> None:
        """Frees the lease, so that another sidecar need not wait for its end, and leaves the clock in it."""
        if self.leads:
            self.leads = False
            await self._store.lease(_FREE, self.epoch, clock, self._seen)
