"""The `state` Redis: live ads, advertisers, spend, clicks, revenue history, and the stream of their changes.

Keys, all under `frugalads:state:`

    ads            hash    ad id -> Ad message as created; its bid and pause are superseded by the next two
    bids           hash    ad id -> micro-dollars
    paused         set     ad ids
    advertisers    hash    name -> Advertiser message
    spend:<day>    hash    advertiser -> micro-dollars charged on that UTC day; 3 days
    click:<id>     string  this click id was charged          } 48 h, twice what a token is valid,
    shown:<id>     string  this ad of this answer was charged } so no token outlives its record
    revenue:<head> hash    clicks, revenue_micros, last_click_ms of a query by its fingerprint; 30 days
    earning        zset    those queries -> last_click_ms, so that all can be read at once
    changes        stream  every change with its new values, numbered without gaps; the newest 20,000
    meta           hash    epoch, drawn when the state is founded; sequence, the number of the last change

Every write is one script, so it is all or nothing and takes its place in the stream with what it
changed. The server must persist before it answers (`appendfsync always`) and must not evict (`noeviction`). A
call without an answer may have been applied. Repeating it is safe: clicks are recognised, updates set values.

Writes wait for the disk, and for a silent server until their timeout. Only so many may wait at once: the
others are refused, so that clicks never hold all the places of a server that can still rank ads.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import RedisError

from services.runtime.errors import NotFound, Unavailable
from services.scoring.click_token import MAX_AGE_MS, Shown

_PREFIX = "frugalads:state:"
ADS, BIDS, PAUSED, ADVERTISERS = (_PREFIX + name for name in ("ads", "bids", "paused", "advertisers"))
CHANGES, META, EARNING = (_PREFIX + name for name in ("changes", "meta", "earning"))

_RECORD_S = 2 * MAX_AGE_MS // 1000
_SPEND_S = 3 * 24 * 3600
_REVENUE_S = 30 * 24 * 3600
_STREAM_LENGTH = 20_000
_SCAN = 500


def utc_day(now_ms: int) -> str:
    """The UTC date of an instant, `YYYY-MM-DD`: the budget day it falls in."""
    return datetime.fromtimestamp(now_ms / 1000, UTC).date().isoformat()


class Update(NamedTuple):
    """One change of an UpdateAds; empty where unused. op: ad, change, delete, advertiser."""

    op: str
    id: int | str
    message: bytes = b""
    bid_micros: int | str = ""
    paused: int | str = ""


class Position(NamedTuple):
    """A point in the history of changes: the founding it belongs to, the number and stream id of the last
    change.
    """

    epoch: bytes
    sequence: int
    stream_id: bytes


class StoredAd(NamedTuple):
    """An ad as stored: its message, live bid and pause."""

    message: bytes
    bid_micros: int
    paused: bool


class Gap(Exception):
    """The stream does not continue the position that was asked for: load everything again."""


class State:
    """Reads and writes of the state Redis.

    Without an answer every method raises Unavailable (STATE_UNAVAILABLE), and so does a write while
    `max_writes` others wait.
    """

    def __init__(self, client: Redis, max_writes: int = 128) -> None:
        self._max_writes = max_writes
        self._writes = 0
        self._client: Any = client  # redis-py's types allow text replies; this client gives bytes
        self._record_clicks = client.register_script(_script("record_clicks.lua"))
        self._update_ads = client.register_script(_script("update_ads.lua"))
        self._epoch = secrets.token_hex(8)

    async def record_clicks(self, clicks: Sequence[tuple[str, Shown]], now_ms: int) -> list[bool]:
        """Charge clicks (click id, what was shown); true where charged now, false where before."""
        day = utc_day(now_ms)
        keys = [f"{_PREFIX}spend:{day}", CHANGES, META, EARNING]
        args: list[Any] = [self._epoch, _STREAM_LENGTH, _RECORD_S, _SPEND_S, _REVENUE_S, day, now_ms]
        for click_id, shown in clicks:
            keys.append(f"{_PREFIX}click:{click_id}")
            keys.append(f"{_PREFIX}shown:{shown.answer_id.hex()}:{shown.ad_id}")
            keys.append(f"{_PREFIX}revenue:{shown.fingerprint_head.hex()}")
            args += [shown.advertiser, shown.price_micros, shown.fingerprint_head]
        with self._writing():
            outcomes = await self._record_clicks(keys=keys, args=args)
        return [outcome == 1 for outcome in outcomes]

    async def update(self, updates: Sequence[Update]) -> None:
        """Apply changes, all or none. Raises NotFound for a change to an ad that does not exist."""
        keys = [ADS, BIDS, PAUSED, ADVERTISERS, CHANGES, META]
        args: list[Any] = [self._epoch, _STREAM_LENGTH]
        for update in updates:
            args += update
        with self._writing():
            unknown = await self._update_ads(keys=keys, args=args)
        if unknown:
            ad_id = unknown.decode()
            raise NotFound("AD_NOT_FOUND", f"ad {ad_id} does not exist; nothing was applied", ad_id=ad_id)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        if self._writes >= self._max_writes:
            cause = f"{self._writes} writes are waiting"
            raise Unavailable("STATE_UNAVAILABLE", "the state Redis is behind", 250, cause=cause)
        self._writes += 1
        try:
            with _answering():
                yield
        finally:
            self._writes -= 1

    async def position(self) -> Position:
        """The present position."""
        with _answering():
            async with self._client.pipeline(transaction=True) as pipe:
                pipe.hmget(META, "epoch", "sequence")
                pipe.xrevrange(CHANGES, count=1)
                (epoch, sequence), newest = await pipe.execute()
        return Position(epoch or b"", int(sequence or 0), newest[0][0] if newest else b"0-0")

    async def changes(self, after: Position, limit: int) -> tuple[Position, list[dict[bytes, bytes]]]:
        """At most `limit` changes after a position, oldest first, and the position behind them.

        Raises Gap.
        """
        with _answering():
            async with self._client.pipeline(transaction=True) as pipe:
                pipe.hmget(META, "epoch", "sequence")
                pipe.xread({CHANGES: after.stream_id}, count=limit)
                (epoch, sequence), streams = await pipe.execute()
        entries = _entries(streams)
        numbers = [int(fields[b"n"]) for _, fields in entries]
        last = after.sequence + len(entries)
        unbroken = numbers == list(range(after.sequence + 1, last + 1))
        complete = int(sequence or 0) == last or len(entries) == limit
        # A state that is founded after its first reader came has an epoch where that reader saw none.
        same = (epoch or b"") == after.epoch or (after.epoch == b"" and after.sequence == 0)
        if not (unbroken and complete and same):
            raise Gap
        stream_id = entries[-1][0] if entries else after.stream_id
        return Position(epoch or b"", last, stream_id), [fields for _, fields in entries]

    async def ads(self) -> AsyncIterator[list[tuple[int, StoredAd]]]:
        """Every ad, in batches; one that changes meanwhile may appear in its old or new form."""
        cursor = 0
        while True:
            with _answering():
                cursor, messages = await self._client.hscan(ADS, cursor, count=_SCAN)
                ids = list(messages)
                bids, paused = await self._bids_and_pauses(ids) if ids else ([], [])
            yield [
                (int(ad_id), StoredAd(messages[ad_id], int(bid), bool(is_paused)))
                for ad_id, bid, is_paused in zip(ids, bids, paused, strict=True)
                if bid is not None  # deleted between the two reads
            ]
            if cursor == 0:
                return

    async def _bids_and_pauses(self, ids: list[bytes]) -> tuple[list[bytes | None], list[int]]:
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.hmget(BIDS, ids)
            pipe.smismember(PAUSED, ids)
            bids, paused = await pipe.execute()
        return bids, paused

    async def advertisers(self) -> AsyncIterator[bytes]:
        """Every Advertiser message."""
        async for _, message in self._scan(ADVERTISERS):
            yield message

    async def spend(self, day: str) -> AsyncIterator[tuple[str, int]]:
        """Advertisers and what they were charged on a UTC day, micro-dollars."""
        async for name, micros in self._scan(f"{_PREFIX}spend:{day}"):
            yield name.decode(), int(micros)

    async def earning(self) -> AsyncIterator[bytes]:
        """Every query that earned in the last 30 days, by the phrase part of its fingerprint."""
        cursor = 0
        while True:
            with _answering():
                cursor, found = await self._client.zscan(EARNING, cursor, count=_SCAN)
            for head, _ in found:
                yield head
            if cursor == 0:
                return

    async def _scan(self, key: str) -> AsyncIterator[tuple[bytes, bytes]]:
        cursor = 0
        while True:
            with _answering():
                cursor, found = await self._client.hscan(key, cursor, count=_SCAN)
            for pair in found.items():
                yield pair
            if cursor == 0:
                return

    async def run_id(self) -> str:
        """Identifier of the server process; another one after a restart."""
        with _answering():
            info = await self._client.info("server")
        return str(info["run_id"])

    async def ping(self) -> None:
        """Returns when the server answers."""
        with _answering():
            await self._client.ping()

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose()


def _script(name: str) -> str:
    return files("services.scoring").joinpath(name).read_text(encoding="utf-8")


def _entries(streams: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Entries of the one stream of an XREAD, whose reply is a list of pairs or, under RESP3, a mapping."""
    if not streams:
        return []
    if isinstance(streams, dict):
        [batches] = streams.values()
        return [entry for batch in batches for entry in batch]
    return list(streams[0][1])


@contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        cause = f"{type(error).__name__}: {error}"[:200]
        raise Unavailable("STATE_UNAVAILABLE", "the state Redis gave no answer", 250, cause=cause) from error
