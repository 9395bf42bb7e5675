"""Time and memory of an operation on an eviction order by the number of keys it holds.

A cache of N entries of sizes 1 and costs 1 to 400 is filled once and then asked for keys drawn evenly from
1.25 N: four of five requests hit, the fifth evicts and admits, and no request finds its node in the
processor's cache. What grows with N is the memory's latency, the same for every order, hence the column
relative to LRU. Streams with popular keys are faster (`bench eviction`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from loadtest.eviction.speed import REQUESTS, ROUNDS, speeds
from loadtest.files import written_whole
from loadtest.progress import progress
from loadtest.report import run_header
from services.runtime.errors import UserError
from services.stack.tables import text_table

ORDERS = ("lru", "gdwheel", "gdsf", "ours")
MAX_KEYS = 20_000_000


@dataclass(frozen=True)
class Row:
    """Speed of one order at one number of keys. ns_vs_lru: relative to LRU's at the same number.

    state_bytes_per_key: order and hash table, without the keys.
    """

    policy: str
    keys: int
    ns_per_op: float
    ns_vs_lru: float
    state_bytes_per_key: float


def main(keys: Sequence[int], json_file: str | None) -> int:
    """Measures, prints a table and, on request, writes one JSON document."""
    rows = measure(keys)
    cells = [
        (
            row.policy,
            f"{row.keys:,}",
            f"{row.ns_per_op:.0f}",
            f"{1e3 / row.ns_per_op:.2f}",
            f"{row.ns_vs_lru:.2f}",
            f"{row.state_bytes_per_key:.0f}",
        )
        for row in rows
    ]
    sys.stdout.write(text_table(("order", "keys", "ns/op", "million/s", "ns/LRU", "B/key"), cells) + "\n")
    sys.stdout.write(f"medians of {ROUNDS} rounds of {REQUESTS:,} requests on one thread\n")
    if json_file is not None:
        document = {"header": run_header({"keys": list(keys)}, 0), "rows": [asdict(row) for row in rows]}
        with written_whole(Path(json_file)) as stream:
            stream.write(json.dumps(document, indent=2) + "\n")
    return 0


def measure(keys: Sequence[int]) -> list[Row]:
    """One row an order and number of keys. Raises UserError for a number out of bounds."""
    for count in keys:
        if not 1 <= count <= MAX_KEYS:
            raise UserError(f"keys: {count} is outside 1..{MAX_KEYS}")
    rows = []
    with progress("orders of a size", len(keys)) as show:
        for done, count in enumerate(keys, 1):
            random = np.random.default_rng(count)
            known = count + max(count // 4, 1)
            drawn = random.integers(0, known, ROUNDS * REQUESTS)
            requests = np.concatenate([np.arange(count), drawn]).astype(np.int32)
            costs, sizes = random.integers(1, 401, known), np.ones(known, np.int64)
            measured = speeds(requests, costs, sizes, count, ORDERS)
            rows += [
                Row(name, count, ns, ns / measured["lru"].ns_per_op, state)
                for name, (ns, state) in measured.items()
            ]
            show(done)
    return rows
