"""Eviction policies on real servers: computation to redo, misses, Redis' CPU time, and how long a GET waits.

Rows differ in nothing but the policy of the server and, in the last, in the sidecar: see
`loadtest/eviction/live.py`. Requests are those behind what the constants of our order were chosen on
(`loadtest/eviction/streams.py`); the first half of them fills the cache and is not measured. Seeds differ in
the costs of keys and, for `zipf`, in the requests.

The faults that a sidecar must not turn into failures are tried once, on the first seed
(`loadtest/eviction/live_faults.py`).
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadtest.bench_eviction import MAX_ENTRIES, MAX_SEEDS
from loadtest.eviction.costs import COSTS, RANK_CORRELATION, SIZES, draw_costs, draw_sizes
from loadtest.eviction.live import (
    POLICIES,
    SIDECAR,
    Load,
    Prober,
    Server,
    Work,
    bytes_for,
    client,
    running_prober,
    running_server,
    running_sidecar,
)
from loadtest.eviction.live_faults import Faults, try_faults
from loadtest.eviction.report import ratio_interval
from loadtest.eviction.streams import stream_of
from loadtest.files import written_whole
from loadtest.progress import progress
from loadtest.report import run_header
from services.runtime.errors import UserError
from services.stack.tables import text_table
from services.stack.valkey import server_binary

ENTRIES = 10_000
UNIT_VALUE_BYTES = 1_000
LEAST_ENTRIES = 1_000  # of 1 kB: fewer, and an empty server is most of the memory
TURNS = 10
LAG_S = 0.2  # in which the sidecar does what its last reports ask for; it counts
LEAST_REQUESTS, MAX_REQUESTS = 1_000, 10_000_000


@dataclass(frozen=True)
class Options:
    """What to measure. trace: a file, or "zipf". requests: of a policy and seed, half of them measured."""

    trace: str
    costs: str
    sizes: str
    correlation: str
    entries: int
    seeds: int
    requests: int


@dataclass(frozen=True)
class Row:
    """One policy on one seed.

    cost_miss: share of all requests' cost that had to be computed; object_miss: of requests. redis_cpu_s: of
    the server for 1,000 requests, whatever it was used for, in the first half of those measured.
    get_p99_us: of a concurrent GET in the second half, with its 95 % interval. keys, used_bytes: at the end.
    failed: requests that raised. oom_errors: writes refused for memory.
    """

    policy: str
    seed: int
    cost_miss: float
    object_miss: float
    redis_cpu_s: float
    get_p99_us: float
    get_p99_low_us: float
    get_p99_high_us: float
    keys: int
    used_bytes: int
    max_bytes: int
    failed: int
    oom_errors: int


class Ratio(NamedTuple):
    """The sidecar's column over that of another policy; no interval for one seed."""

    against: str
    column: str
    ratio: float
    low: float | None
    high: float | None


def main(options: Options, json_file: str | None) -> int:
    """Measures, prints tables and, on request, writes one JSON document."""
    rows, faults = measure(options)
    ratios = compare(rows)
    sys.stdout.write(table(options, rows) + "\n\n" + ratio_table(ratios) + "\n\n")
    for text in faults.lines():
        sys.stdout.write(text + "\n")
    if json_file is not None:
        header = run_header(asdict(options), 0)
        header["ratios"] = [ratio._asdict() for ratio in ratios]
        header["faults"] = asdict(faults)
        document = {"header": header, "rows": [asdict(row) for row in rows]}
        with written_whole(Path(json_file)) as stream:
            stream.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
    return 0


def measure(options: Options) -> tuple[list[Row], Faults]:
    """All rows by seed, and what the faults did. Raises UserError for a value out of bounds."""
    _check(options)
    binary, rows = server_binary(), []
    with progress("faults and seeds", 1 + options.seeds) as show:
        for seed in range(options.seeds):
            work = work_of(options, seed)
            max_bytes = bytes_for(binary, work, options.entries)
            if seed == 0:
                faults = try_faults(binary, work, max_bytes)
                show(1)
            first = seed % len(POLICIES)
            policies = (*POLICIES[first:], *POLICIES[:first])
            rows += rows_of(binary, policies, work, options, seed, max_bytes)
            show(1 + seed + 1)
    return rows, faults


def _check(options: Options) -> None:
    for name, value, known in (
        ("costs", options.costs, COSTS),
        ("sizes", options.sizes, SIZES),
        ("correlation", options.correlation, RANK_CORRELATION),
    ):
        if value not in known:
            raise UserError(f"{name}: {value!r} is none of {', '.join(known)}")
    for name, number, low, high in (
        ("seeds", options.seeds, 1, MAX_SEEDS),
        ("entries", options.entries, LEAST_ENTRIES, MAX_ENTRIES),
        ("requests", options.requests, LEAST_REQUESTS, MAX_REQUESTS),
    ):
        if not low <= number <= high:
            raise UserError(f"{name}: {number} is outside {low}..{high}")


def work_of(options: Options, seed: int) -> Work:
    """The requests, and one cost and one size a key."""
    stream, random = stream_of(options.trace, seed), np.random.default_rng((seed, 1))
    keys = stream.keys[stream.warm : stream.warm + options.requests]
    if len(keys) < options.requests or len(np.unique(keys)) <= options.entries:
        raise UserError(
            f"requests: {options.trace} has {len(keys)} of {options.requests} behind its warm-up, for"
            f" {len(np.unique(keys))} keys; a cache of {options.entries} must be smaller"
        )
    costs = draw_costs(
        options.costs, np.bincount(stream.keys, minlength=stream.count), options.correlation, random
    )
    sizes = draw_sizes(options.sizes, stream.count, random)
    return Work(keys, costs, np.full(stream.count, UNIT_VALUE_BYTES) if options.sizes == "unit" else sizes)


def rows_of(
    binary: Path, policies: Sequence[str], work: Work, options: Options, seed: int, max_bytes: int
) -> list[Row]:
    """One row a policy, in their order.

    All servers run at once, and the policies take turns of a share of the requests, so that other load on the
    machine meets all alike: first for CPU time, then, beside GETs of another process, for what these wait.
    """
    warm = options.requests // 2
    turns = np.array_split(np.arange(warm, len(work.keys)), 2 * TURNS)
    with contextlib.ExitStack() as stack:
        running = [_Running.started(stack, binary, policy, work, max_bytes) for policy in policies]
        prober = stack.enter_context(running_prober())
        for each in running:
            each.load.replay(0, warm)
        for number, turn in enumerate(turns):
            first = number % len(running)
            for each in (*running[first:], *running[:first]):
                if number < TURNS:
                    before_s = each.server.usage().cpu_s
                    each.replay(turn)
                    time.sleep(LAG_S)
                    each.cpu_s += each.server.usage().cpu_s - before_s
                else:
                    prober.turn_to(each.server)
                    each.replay(turn)
                    prober.turn_to(None)
        in_turns = sum(len(turn) for turn in turns[:TURNS])
        return [each.row(work, warm, in_turns, prober, seed, max_bytes) for each in running]


@dataclass
class _Running:
    """A policy's server and client, and what was measured on them."""

    policy: str
    server: Server
    load: Load
    missed: list[NDArray[np.bool_]]
    cpu_s: float = 0.0

    @classmethod
    def started(
        cls, stack: contextlib.ExitStack, binary: Path, policy: str, work: Work, max_bytes: int
    ) -> _Running:
        server = stack.enter_context(running_server(binary))
        server.set_policy(policy, max_bytes)
        sidecar = stack.enter_context(running_sidecar(server)) if policy == SIDECAR else None
        return cls(policy, server, Load(stack.enter_context(client(server, sidecar)), work), [])

    def replay(self, turn: NDArray[np.int64]) -> None:
        """Sends the requests of these numbers, which follow one another."""
        self.missed.append(self.load.replay(int(turn[0]), len(turn)))

    def row(self, work: Work, warm: int, in_turns: int, prober: Prober, seed: int, max_bytes: int) -> Row:
        """What was measured; in_turns: the requests in cpu_s."""
        after, waited = self.server.usage(), prober.waits(self.server)
        missed, costs = np.concatenate(self.missed), work.costs[work.keys[warm:]]
        return Row(
            policy=self.policy,
            seed=seed,
            cost_miss=float(costs[missed].sum() / costs.sum()),
            object_miss=float(missed.mean()),
            redis_cpu_s=self.cpu_s / in_turns * 1000,
            get_p99_us=waited.p99_us,
            get_p99_low_us=waited.low_us,
            get_p99_high_us=waited.high_us,
            keys=after.keys,
            used_bytes=after.used_bytes,
            max_bytes=max_bytes,
            failed=self.load.failed,
            oom_errors=after.oom_errors,
        )


def compare(rows: Sequence[Row]) -> list[Ratio]:
    """The sidecar over each other policy, seed by seed: geometric means, 95 % intervals."""
    ratios = []
    for against in (policy for policy in POLICIES if policy != SIDECAR):
        for column in ("cost_miss", "object_miss", "redis_cpu_s", "get_p99_us"):
            ours, theirs = (
                [getattr(row, column) for row in sorted(rows, key=_seed) if row.policy == policy]
                for policy in (SIDECAR, against)
            )
            ratios.append(Ratio(against, column, *ratio_interval(ours, theirs)))
    return ratios


def _seed(row: Row) -> int:
    return row.seed


def table(options: Options, rows: Sequence[Row]) -> str:
    """One line a policy, means over the seeds."""
    lines = []
    for policy in POLICIES:
        own = [row for row in rows if row.policy == policy]

        def mean(column: str, own: Sequence[Row] = own) -> float:
            return float(np.mean([getattr(row, column) for row in own]))

        lines.append(
            (
                policy,
                f"{mean('cost_miss'):.4f}",
                f"{mean('object_miss'):.4f}",
                f"{1000 * mean('redis_cpu_s'):.1f}",
                f"{mean('get_p99_us'):.0f}",
                f"{mean('get_p99_low_us'):.0f}-{mean('get_p99_high_us'):.0f}",
                f"{mean('keys'):.0f}",
                f"{mean('used_bytes') / mean('max_bytes'):.3f}",
                str(sum(row.failed for row in own)),
                str(sum(row.oom_errors for row in own)),
            )
        )
    columns = (
        f"{options.costs}, {options.entries:,} entries", "cost missed", "missed", "Redis CPU ms/1,000",
        "GET p99 us", "95 %", "keys", "used/max", "failed", "OOM",
    )  # fmt: skip
    return text_table(columns, lines)


def ratio_table(ratios: Sequence[Ratio]) -> str:
    """The sidecar over the others."""
    lines = [
        (
            ratio.against,
            ratio.column,
            f"{ratio.ratio:.3f}",
            "-" if ratio.low is None or ratio.high is None else f"{ratio.low:.3f}-{ratio.high:.3f}",
        )
        for ratio in ratios
    ]
    return text_table(("sidecar over", "of", "ratio", "95 %"), lines)
