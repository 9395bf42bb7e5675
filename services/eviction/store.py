"""The Redis side of the sidecar: every command that it sends, and what the server must be like.

Commands are bounded: at most 64 keys a script (Redis runs one script at a time, and everybody waits for it).
Values are never read, but for one field of hashes where the operator names it. Errors of the connection are
redis-py's; a server that cannot serve as a managed cache raises UserError with the setting that mends it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError

from services.eviction.answers import Found
from services.runtime.errors import UserError
from services.runtime.redis_client import connect

SCRIPT_KEYS = 63
"""Most entries in one script; with the lease that makes 64 keys."""

_LEAST_VERSION = (7, 0)
_SETTINGS = {
    "maxmemory-policy": "volatile-ttl",  # evicts in the order of our expiries when we do not
    "maxmemory-samples": "10",  # better order than 5; at 64 the pool's stale victims cost more than it gains
    "maxmemory-clients": "5%",  # client buffers count as used: a stalled reader must not shrink the cache
}
_GLOB = re.compile(rb"([*?\[\]\\])")


_SCRIPTS = {
    name: Path(__file__).with_name(name).read_text(encoding="utf-8")
    for name in ("unlink.lua", "describe.lua", "lease.lua")
}


class Fenced(Exception):
    """Evictions were refused because the lease is not ours."""


@dataclass(frozen=True)
class Memory:
    """What one INFO says. `used_bytes` is what Redis compares with maxmemory: logical, not resident."""

    run_id: str
    role: str
    policy: str
    used_bytes: int
    max_bytes: int
    resident_bytes: int
    evicted_keys: int
    keys: int


@dataclass(frozen=True)
class Unlinked:
    """Answers of one unlink script, the bytes it freed and what is used after it."""

    answers: list[int]
    freed_bytes: int
    used_bytes: int


class Store:
    """One cache server. Event-loop only; commands follow one another."""

    def __init__(self, url: str, timeout_ms: int, prefix: bytes, cost_field: str = "") -> None:
        try:
            self._redis = connect(url, timeout_ms, max_connections=2)
        except ValueError as error:
            raise UserError(f"redis_url: {error}") from error
        keywords = self._redis.connection_pool.connection_kwargs
        self.address = f"{keywords.get('host', keywords.get('path', '?'))}:{keywords.get('port', '')}"
        self._database = f"db{keywords.get('db') or 0}"
        self._pattern = _GLOB.sub(rb"\\\1", prefix) + b"*"
        self._cost_field = cost_field.encode()
        self.lease_key = prefix + b"~lease"
        self._digests: dict[str, str] = {}

    async def verify(self) -> Memory:
        """Checks version and maxmemory, sets policy, samples and client limit, loads the scripts.

        Raises UserError when the server cannot be managed; says which setting to change.
        """
        info = await self._redis.info("server")
        version = str(info.get("redis_version", "0"))
        if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < _LEAST_VERSION:
            raise UserError(
                f"{self.address}: server version {version} is older than 7.0 (PEXPIREAT GT, PEXPIRETIME)"
            )
        if (await self._redis.info("cluster")).get("cluster_enabled"):
            raise UserError(
                f"{self.address}: is part of a cluster; a sidecar keeps one server that stands alone"
            )
        memory = await self.memory()
        if memory.role != "master":
            raise UserError(
                f"{self.address}: is a {memory.role}; a sidecar evicts from the primary, which replicates it"
            )
        if memory.max_bytes == 0:
            raise UserError(
                f"{self.address}: maxmemory is 0, so there is nothing to evict for; set it in the server's"
                " configuration, e.g. `maxmemory 2gb`, to at most 3/4 of the memory that the server may use"
            )
        for name, wanted in _SETTINGS.items():
            await self._set(name, wanted, memory.max_bytes)
        for name, text in _SCRIPTS.items():
            self._digests[name] = await self._redis.script_load(text)
        return memory

    async def _set(self, name: str, wanted: str, max_bytes: int) -> None:
        try:
            if (await self._redis.config_get(name)).get(name) in _same(wanted, max_bytes):
                return
            await self._redis.config_set(name, wanted)
            held = (await self._redis.config_get(name)).get(name)
        except RedisConnectionError:
            raise
        except ResponseError as error:
            raise UserError(
                f"{self.address}: CONFIG {name} was refused ({error}); allow CONFIG GET and SET to the"
                f" sidecar's user, or set `{name} {wanted}` in its configuration and allow CONFIG GET"
            ) from error
        if held not in _same(wanted, max_bytes):
            raise UserError(f"{self.address}: {name} stays {held!r} after it was set to {wanted!r}")

    async def memory(self) -> Memory:
        """Memory, counters and identity of the server in one command."""
        info: dict[str, Any] = await self._redis.info("server", "memory", "stats", "keyspace", "replication")
        return Memory(
            run_id=str(info["run_id"]),
            role=str(info["role"]),
            policy=str(info["maxmemory_policy"]),
            used_bytes=int(info["used_memory"]) - int(info["mem_not_counted_for_evict"]),
            max_bytes=int(info["maxmemory"]),
            resident_bytes=int(info["used_memory_rss"]),
            evicted_keys=int(info["evicted_keys"]),
            keys=int(info.get(self._database, {}).get("keys", 0)),
        )

    async def unlink(self, token: bytes, keys: Sequence[bytes], expected_ms: Sequence[int]) -> Unlinked:
        """Unlinks the keys whose expiry is still the expected one, and measures what that freed.

        Raises Fenced, and unlinks nothing, where the lease does not begin with the token.
        """
        try:
            answer = await self._evaluate("unlink.lua", (self.lease_key, *keys), (token, *expected_ms))
        except ResponseError as error:
            if str(error).startswith("FENCED"):
                raise Fenced(str(error)) from error
            raise
        before, after, answers = answer
        return Unlinked(answers, before - after, after)

    async def lease(self, holder: str, epoch: int, clock: int, stale: bytes) -> tuple[bool, bytes]:
        """Renews or takes the lease as lease.lua does; whether the holder has it now, and its value."""
        has_it, value = await self._evaluate("lease.lua", (self.lease_key,), (holder, epoch, clock, stale))
        return bool(has_it), value

    async def rise(self, keys: Sequence[bytes], targets_ms: Sequence[int]) -> list[int]:
        """Raises expiries, never lowers one nor gives one to a key without; the expiry that each has then.

        Pipelined commands cost Redis half of what a script does, and let others in between.
        """
        pipe = self._redis.pipeline(transaction=False)
        for key, target_ms in zip(keys, targets_ms, strict=True):
            pipe.pexpireat(key, target_ms, gt=True)
        raised = await pipe.execute()
        refused = [key for key, answer in zip(keys, raised, strict=True) if not answer]
        for key in refused:
            pipe.execute_command("PEXPIRETIME", key)
        held = iter(await pipe.execute() if refused else [])
        return [target if done else int(next(held)) for done, target in zip(raised, targets_ms, strict=True)]

    async def _evaluate(
        self, name: str, keys: Sequence[bytes], arguments: Sequence[bytes | str | int]
    ) -> Any:
        try:
            return await self._redis.evalsha(self._digests[name], len(keys), *keys, *arguments)
        except NoScriptError:  # somebody's SCRIPT FLUSH
            self._digests[name] = await self._redis.script_load(_SCRIPTS[name])
            return await self._redis.evalsha(self._digests[name], len(keys), *keys, *arguments)

    async def scan(self, cursor: int, count: int) -> tuple[int, list[bytes]]:
        """About `count` keys of the server from a cursor, those under the prefix; 0 begins and ends."""
        answer: Any = await self._redis.scan(cursor, match=self._pattern, count=count)
        return int(answer[0]), answer[1]

    async def describe(self, keys: Sequence[bytes]) -> list[Found]:
        """What is known of each key."""
        described: list[Found] = []
        chunks = [keys[first : first + SCRIPT_KEYS] for first in range(0, len(keys), SCRIPT_KEYS)]
        pipe = self._redis.pipeline(transaction=False)
        for chunk in chunks:
            pipe.evalsha(self._digests["describe.lua"], len(chunk), *chunk, self._cost_field)
        for chunk, answers in zip(chunks, await pipe.execute(raise_on_error=False), strict=True):
            if isinstance(answers, NoScriptError):
                answers = await self._evaluate("describe.lua", chunk, (self._cost_field,))
            elif isinstance(answers, Exception):
                raise answers
            described += map(Found, chunk, answers[::3], answers[1::3], answers[2::3])
        return described

    async def mortalise(self, found: Sequence[Found]) -> list[bool]:
        """Gives their expiries to the keys that have none; whether each got it."""
        pipe = self._redis.pipeline(transaction=False)
        for item in found:
            pipe.pexpireat(item.key, item.expiry_ms, nx=True)
        return [bool(answer) for answer in await pipe.execute()]

    async def pin(self, keys: Sequence[bytes]) -> None:
        """Takes the expiries from keys."""
        pipe = self._redis.pipeline(transaction=False)
        for key in keys:
            pipe.persist(key)
        await pipe.execute()

    async def close(self) -> None:
        """Closes the connections."""
        await self._redis.aclose()
        await self._redis.connection_pool.aclose()


def _same(wanted: str, max_bytes: int) -> tuple[str, ...]:
    """The ways in which a server may write a setting back."""
    return (wanted, str(max_bytes // 20)) if wanted.endswith("%") else (wanted,)
