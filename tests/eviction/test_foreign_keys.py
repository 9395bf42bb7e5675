"""Only keys under the prefix are ever touched, whatever the prefix and whatever lies beside it."""

from __future__ import annotations

import asyncio
from typing import Any

from eviction.sidecar import settled, sidecar, squeeze
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis_process import RedisProcess

from services.core.eviction.priority import expire_at_ms

prefixes = st.text("ab*?[]\\^-:", min_size=1, max_size=6)
tails = st.text("ab*?[]\\:~", max_size=4)
kinds = st.sampled_from(["plain", "living", "priority", "hash"])


@st.composite
def beside(draw: st.DrawFn) -> tuple[str, dict[bytes, str]]:
    """A prefix, and foreign keys with what each is: many that a glob, or half a prefix, would match."""
    prefix = draw(prefixes)
    near = st.sampled_from(
        [prefix[:-1], prefix[1:], prefix.swapcase(), "x" + prefix, prefix[:-1] + "x", "~lease", ""]
    )
    names = draw(st.lists(st.tuples(near, tails, kinds), min_size=1, max_size=25))
    foreign = {(head + tail).encode(): kind for head, tail, kind in names}
    return prefix, {name: kind for name, kind in foreign.items() if not name.startswith(prefix.encode())}


@given(drawn=beside())
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_keys_of_others_are_never_touched(
    valkey_server: RedisProcess, drawn: tuple[str, dict[bytes, str]]
) -> None:
    """Not raised, not repaired, not pinned, not evicted, while the sidecar does all of it beside them."""
    prefix, foreign = drawn

    async def scenario() -> None:
        with valkey_server.client() as client:
            client.flushall()
            client.config_set("maxmemory", 64 << 20)
            for name, kind in foreign.items():
                if kind == "hash":
                    client.hset(name, mapping={"cost_us": 5, "value": "x" * 500})
                else:
                    client.set(name, "x" * 500)
                if kind in ("living", "priority"):
                    client.pexpireat(name, expire_at_ms(0, 1) - (kind == "living") * 10**9)
            before = {name: state(client, name) for name in foreign}
            managed = prefix.encode()
            pipe = client.pipeline(transaction=False)
            for n in range(600):
                expiry = None if n % 3 else expire_at_ms(n, 1)
                pipe.set(managed + b"%d" % n, b"x" * 1_000, pxat=expiry)
            pipe.execute()
            options = {"cost_field": "cost_us", "key_classes": "1=pin, 2=77"}
            async with sidecar(valkey_server.url, key_prefix=prefix, tick_ms=5, **options) as it:
                await it.until(lambda s: s.entries >= 489)
                squeeze(client, 0.97)
                stats = await it.until(settled)
                assert stats.evicted > 0
            assert {name: state(client, name) for name in foreign} == before

    asyncio.run(scenario())


def state(client: Any, name: bytes) -> tuple[bytes | None, int]:
    """Value and expiry of a key."""
    return client.dump(name), client.pexpiretime(name)
