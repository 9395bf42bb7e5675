"""Public reports about eviction orders, and about events that get lost."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from eviction.sidecar import PREFIX, hit, key, managed, sidecar, store, write
from hypothesis import given
from hypothesis import strategies as st
from redis_process import RedisProcess

from services.core.eviction.batches import HIT, REQUEST
from services.core.eviction.keyed import KeyedOrder
from services.core.eviction.priority import LIVE, priority_of
from services.core.eviction.table import packed

costs = st.lists(st.integers(0, 65_535), min_size=2, max_size=60)


def order_of(name: str) -> KeyedOrder:
    """An order as the sidecar makes it."""
    return KeyedOrder(name, typical_cost=1_024, typical_size=1_024)


@pytest.mark.parametrize("name", LIVE)
@given(drawn=costs)
def test_caffeine_7ce1c9b_varying_costs_give_varying_places(name: str, drawn: list[int]) -> None:
    """A wheel that folded its queues lost the order of costs; here it is the order of costs."""
    order = order_of(name)
    for n, cost in enumerate(drawn):
        order.admit(b"%d" % n, 1, cost)
    victims = [victim.cost for victim in iter(order.pop, None)]
    assert victims == sorted(drawn)


@pytest.mark.parametrize("name", LIVE)
def test_caffeine_83aaec1_the_costliest_untouched_entry_goes_at_last(name: str) -> None:
    """A hand that never advanced kept dear entries for ever: L must reach them."""
    order = order_of(name)
    worth = order.admit(b"dear", 1, 65_535)
    for n in range(60_000):
        order.admit(b"%d" % n, 1, 300)
        if len(order) > 10:
            order.pops(1, 1)
        if b"dear" not in order:
            break
    assert b"dear" not in order
    assert order.clock >= worth


@pytest.mark.parametrize("name", LIVE)
def test_caffeine_1982_sizes_beyond_32_bits_are_counted(name: str) -> None:
    order = order_of(name)
    for n in range(4):
        order.admit(b"%d" % n, 2**31, 1)
    assert order.total_bytes == 2**33
    order.admit(b"0", 2**32 + 1, 1)
    assert order.total_bytes == 3 * 2**31 + 2**32 + 1


@pytest.mark.parametrize("name", LIVE)
def test_cachetools_405_growth_is_the_difference(name: str) -> None:
    order = order_of(name)
    order.admit(b"a", 4, 1)
    order.admit(b"a", 6, 1)
    assert order.total_bytes == 6


@pytest.mark.parametrize("name", LIVE)
def test_fak_2668_a_stale_hot_entry_is_displaced_by_one_shot_keys(name: str) -> None:
    """However often it was used: L passes what its uses were worth."""
    order = order_of(name)
    order.admit(b"hot", 100, 50)
    words, ends = packed([b"hot"] * 40)
    zeros, ones = np.zeros(40, np.int64), np.ones(1_000, np.int64)
    order.apply(np.full(40, HIT, np.uint8), words, ends, zeros, zeros)
    for first in range(0, 60_000, 1_000):
        words, ends = packed([b"%d" % n for n in range(first, first + 1_000)])
        order.apply(np.full(1_000, REQUEST, np.uint8), words, ends, 60 * ones, 100 * ones, 2_000)
    assert b"hot" not in order


def test_valkey_28_the_order_converges_without_any_report(valkey_server: RedisProcess) -> None:
    """Notifications are lossy (also hoplite#7): entries, priorities and evictions come from Redis alone."""

    async def scenario() -> None:
        with valkey_server.client() as client:
            client.config_set("maxmemory", 64 << 20)
            async with sidecar(valkey_server.url) as it:
                store(client, [write(n, 100, 1_000 - n, n) for n in range(900)])
                client.delete(*[key(n) for n in range(100)])
                await it.until(lambda s: s.entries >= 800)
                listed = {e.key: e.priority for e in await it.order()}
                held = {k: priority_of(client.pexpiretime(k)) for k in managed(client)}
                assert held.items() <= listed.items()

    asyncio.run(scenario())


def test_reports_of_keys_that_never_existed_do_no_harm(valkey_server: RedisProcess) -> None:
    """A client that reports before, or without, writing: memory stays bounded and real entries stay right."""

    async def scenario() -> None:
        with valkey_server.client() as client:
            client.config_set("maxmemory", 64 << 20)
            async with sidecar(valkey_server.url) as it, it.reporter() as reporter:
                store(client, [write(n, 100, 1_000, n) for n in range(50)])
                await it.until(lambda s: s.entries == 50)
                await reporter.report([write(f"phantom{n}", 100, 5, n).event() for n in range(5_000)])
                await reporter.report([hit(f"unknown{n}") for n in range(1_000)])
                await it.until(lambda s: s.entries == 50)
                assert {e.key for e in await it.order()} == managed(client)
                assert not client.exists(PREFIX + b"phantom1")

    asyncio.run(scenario())
