"""What the demo shows: a run of the load generator against a stack of its own, and five answers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from frugalads.client import AsyncClient, Options
from frugalads.scoring.v1 import scoring_pb2
from loadtest.preparation import prepare
from loadtest.progress import progress
from loadtest.report import render, summarize
from loadtest.runner import Load, Samples, read_queries, replay
from services.stack.local import LocalStack
from services.stack.ports import Ports, free_base
from services.stack.supervisor import Supervisor, supervise
from services.stack.tables import shortened

REQUESTS = 2500
SLOTS = 4
EXAMPLES = 5
FREQUENT = 50
SEED = 1


def show(data: Path, catalogue: Path | None, rate_per_s: float, say: Callable[[str], None]) -> None:
    """Prepares, starts, replays, reports and stops; everything is said through `say`.

    Raises UserError, StackError, and Stopped after a signal.
    """
    prepared = prepare(data, catalogue, REQUESTS, say)
    queries = read_queries(prepared.queries)
    load = Load(queries, rate_per_s, REQUESTS, slots=SLOTS, seed=SEED)
    stack = LocalStack(data, Ports(free_base()))
    with stack.locked():
        supervisor = Supervisor(stack.children(), stack.run_folder, say)

        async def work(supervisor: Supervisor) -> tuple[Samples, list[str]]:
            started_s = time.monotonic()
            await stack.start(supervisor, lambda _done, _total: None)
            say(f"ready after {time.monotonic() - started_s:.1f} s; scoring at {stack.target}")
            with progress("replaying", load.requests) as advance:
                samples = await replay(stack.target, load, lambda ended, _samples: advance(ended))
            return samples, await _examples(stack.target, examples(samples, queries))

        samples, answers = asyncio.run(supervise(supervisor, work))
    say("")
    say(render(summarize(samples)))
    say("\nFive answers: advertiser, click probability x price of a click")
    for answer in answers:
        say(f"\n{answer}")
    say("\neverything is stopped")


def examples(samples: Samples, queries: Sequence[str], count: int = EXAMPLES) -> list[str]:
    """Distinct queries of a run whose answers filled most slots.

    Of the 50 most frequent, those whose first ad has the highest click probability, best first.
    """
    filled = (samples.ads == samples.ads.max(initial=0)) & (samples.ads > 0)
    asked: Counter[str] = Counter()
    click: dict[str, float] = {}
    for k, probability in zip(
        samples.query[filled].tolist(), samples.first_click[filled].tolist(), strict=True
    ):
        query = queries[k]
        asked[query] += 1
        click[query] = max(probability, click.get(query, 0.0))
    frequent = [query for query, _ in asked.most_common(FREQUENT)]
    return sorted(frequent, key=lambda query: -click[query])[:count]


async def _examples(target: str, queries: Sequence[str]) -> list[str]:
    async with AsyncClient(target, Options(timeout_s=5.0)) as client:
        return [_readable(query, await client.rank_ads(query, slots=SLOTS)) for query in queries]


def _readable(query: str, answer: scoring_pb2.RankAdsResponse) -> str:
    state = scoring_pb2.CacheState.Name(answer.cache_state).removeprefix("CACHE_STATE_")
    lines = [f'"{query}"  {state}, {answer.timings.total_us / 1000:.1f} ms']
    lines += [
        f"  {position}. {shortened(ad.title, 48):48}  {shortened(ad.advertiser, 22):22}  "
        f"{ad.click_probability:.4f} x ${ad.price_usd:.2f}"
        for position, ad in enumerate(answer.ads, start=1)
    ]
    return "\n".join(lines)
