"""Wheels against heaps, victim for victim, over many random operations; and the table under attack."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from numpy.typing import NDArray

from services.core.eviction.batches import ADMIT, HIT, REMOVE, REQUEST
from services.core.eviction.keyed import KeyedOrder
from services.core.eviction.replay import replay
from services.core.eviction.table import packed, siphash

OPERATIONS = 10_000_000 if os.environ.get("FRUGALADS_DRILL") else 500_000
BLOCK = 25_000
KEYS = 3_000
CAPACITY = 40_000


def _costs(random: np.random.Generator, count: int) -> NDArray[np.int64]:
    """From 0 to 2^40: units, thousands, everything, and many that are equal."""
    drawn = np.array(
        [
            random.integers(0, 4, count),
            random.integers(0, 3_000, count),
            np.exp2(random.uniform(0, 40, count)).astype(np.int64),
            np.full(count, 700),
            np.where(random.random(count) < 0.01, 2**40, 70_000),
        ]
    )
    return drawn[random.choice(5, count, p=[0.1, 0.4, 0.1, 0.3, 0.1]), np.arange(count)]


@pytest.mark.drill
@pytest.mark.parametrize(("wheel", "heap"), [("gdwheel", "greedydual"), ("ours", "ours-heap")])
def test_a_wheel_gives_the_victims_of_a_heap(wheel: str, heap: str) -> None:
    """Every key comes again soon, so one wrong victim shows as a find that the other order does not make.

    Behind every block the whole orders, with their priorities, are compared as well.
    """
    random = np.random.default_rng(5)
    one, other = (
        KeyedOrder(name, entries=64, typical_cost=1_000, typical_size=30, secret=7) for name in (wheel, heap)
    )
    evicted = 0
    for _ in range(OPERATIONS // BLOCK):
        rows = np.minimum(random.zipf(1.2, BLOCK), KEYS) - 1
        rows = np.where(random.random(BLOCK) < 0.5, rows, random.integers(0, KEYS, BLOCK))
        words, ends = packed([b"key %d" % row for row in rows.tolist()])
        operations = random.choice(
            np.array([ADMIT, HIT, REMOVE, REQUEST], np.uint8), BLOCK, p=[0.02, 0.1, 0.02, 0.86]
        )
        costs, sizes = _costs(random, BLOCK), random.integers(0, 60, BLOCK)
        found = one.apply(operations, words, ends, costs, sizes, CAPACITY)
        assert np.array_equal(found, other.apply(operations, words, ends, costs, sizes, CAPACITY))
        assert (one.clock, one.total_bytes, one.evictions) == (
            other.clock,
            other.total_bytes,
            other.evictions,
        )
        assert one.head(KEYS) == other.head(KEYS)
        evicted = one.evictions
    assert evicted > OPERATIONS // 20


def test_ours_equals_its_twin_where_every_newcomer_has_been_here_before() -> None:
    """A cache that holds nearly all keys: the branch for settled key sets, past several halvings."""
    random = np.random.default_rng(6)
    keys = np.concatenate([random.permutation(2_000), random.integers(0, 2_000, 150_000)]).astype(np.int32)
    costs, ones = random.integers(10, 400, 2_000), np.ones(2_000, np.int64)
    wheel, heap = (replay(name, keys, costs, ones, 1_800) for name in ("ours", "ours-heap"))
    assert np.array_equal(wheel.hit, heap.hit)
    assert wheel.evictions == heap.evictions > 10_000


def test_the_wheel_of_2015_departs_where_costs_cross_wheel_1() -> None:
    """What keeping only the cost loses; while all costs stay in wheel 1, nothing."""
    random = np.random.default_rng(7)
    keys, ones = random.integers(0, 500, 60_000).astype(np.int32), np.ones(500, np.int64)
    low, high = random.integers(1, 256, 500), random.integers(1, 3_000, 500)
    exact, of_2015 = (replay(name, keys, low, ones, 200) for name in ("greedydual", "gdwheel2015"))
    assert np.array_equal(exact.hit, of_2015.hit)
    exact, kept, of_2015 = (
        replay(name, keys, high, ones, 200) for name in ("greedydual", "gdwheel", "gdwheel2015")
    )
    assert np.array_equal(exact.hit, kept.hit)
    assert not np.array_equal(exact.hit, of_2015.hit)


def test_byte_keys_and_numbers_replay_alike() -> None:
    random = np.random.default_rng(8)
    keys = random.integers(0, 300, 5_000).astype(np.int32)
    costs, sizes = random.integers(0, 900, 300), random.integers(1, 90, 300)
    numbers = replay("greedydual", keys, costs, sizes, 4_000)
    texts = [b"a key of %d bytes " % n * (1 + n % 4) for n in range(300)]
    words, ends = packed([texts[key] for key in keys])
    order = KeyedOrder("greedydual")
    hit = order.apply(np.full(len(keys), REQUEST, np.uint8), words, ends, costs[keys], sizes[keys], 4_000)
    assert np.array_equal(numbers.hit, hit)
    assert numbers.evictions == order.evictions > 0


def test_the_hash_is_that_of_python() -> None:
    """SipHash-1-3 under a secret of zeros, which is Python's own hash of bytes without randomisation."""
    records = [b"12345678", b"0123456789abcdef" * 3]
    program = f"print([hash(record) for record in {records!r}])"
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    run = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    if sys.hash_info.algorithm != "siphash13":
        pytest.skip(f"this Python hashes bytes by {sys.hash_info.algorithm}")
    secret = np.zeros(2, np.uint64)
    ours = [
        int(np.int64(siphash(secret, np.frombuffer(record, np.uint64), 0, len(record) // 8)))
        for record in records
    ]
    assert str(ours) == run.stdout.strip()


def test_keys_that_differ_in_a_byte_or_a_zero_are_different_keys() -> None:
    order = KeyedOrder("lru")
    held = [b"", b"\0", b"\0\0", b"a", b"a\0", b"b", b"a" * 7, b"a" * 8, b"a" * 300, b"a" * 299 + b"b"]
    for n, key in enumerate(held):
        order.admit(key, n, n)
    assert [entry.key for entry in order.head(20)] == held
    assert all((entry := order.get(key)) is not None and entry.cost == n for n, key in enumerate(held))
    assert order.remove(b"a\0")
    assert b"a" in order
    assert b"a\0" not in order


def test_keys_made_to_collide_under_one_secret_do_not_under_another() -> None:
    """The place of a key depends on 128 secret bits, so nobody outside can build a slow table."""
    first, second = KeyedOrder("lru", secret=1), KeyedOrder("lru", secret=2)
    digests = []
    for order in (first, second):
        for n in range(200):
            order.admit(b"%d" % n, 1, 1)
        nodes = order._state.nodes[1:201]
        digests.append(nodes["digest"].copy())
        assert len(set(nodes["digest"].tolist())) == 200
    assert (digests[0] != digests[1]).all()
