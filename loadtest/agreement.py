"""Whether the live cache does what the simulator says: one request stream through both.

Problem. Policies are chosen in a simulator. Its figures are worth nothing if the service, with its Redis, its
single flight and its own clock, saves or earns something else.

How. A stack runs, and on it more scoring servers, in this process: one with its cache *off* (all queries are
in the control group, so every list is computed and logged) and one with its cache *on* for each policy. Each
request goes to all of them at the same moment, one request after the other as fast as they answer: the time
of the log is compressed, its order kept. Meanwhile the catalogue moves: at the start some ads are taken out
of the index, and in `STEPS` steps they come back and a share of the bids changes. Cached lists then lack ads
that computed ones have.

The control log is imported and simulated, as a user's own log is: live scores, live bids, measured costs.
Compared are, over the requests after the warm-up,

    computation saved    cost of the requests answered from the cache, in the cost of all
    auction revenue      click probability x price of the ads shown, against the cache that is off. The
                         simulator lets only ads move up that the log showed, live any listed ad fills a
                         position: its figure is the lower one

Costs are those that the server with its cache off measured, for both sides: what is compared is decisions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import secrets
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from frugalads.inference.v1 import inference_pb2, inference_pb2_grpc
from frugalads.retrieval.v1 import retrieval_pb2, retrieval_pb2_grpc
from frugalads.scoring.v1 import scoring_pb2, scoring_pb2_grpc
from loadtest.files import written_whole
from loadtest.progress import progress
from loadtest.queries import write_queries
from loadtest.report import run_header
from loadtest.request_log.importing import import_log
from loadtest.request_log.schema import RequestLog
from loadtest.request_log.storage import read_log
from loadtest.runner import read_queries
from loadtest.simulator.designs import Design
from loadtest.simulator.engine import simulate
from loadtest.simulator.learned import Learned
from loadtest.simulator.outcome import HIT
from models.refresh.recipes import OURS
from services.catalogue.bundle import read_catalogue
from services.catalogue.schema import Ad
from services.runtime import logs
from services.runtime.errors import UserError
from services.runtime.server import start_server
from services.scoring.config import ScoringConfig
from services.scoring.refresher import load_model
from services.scoring.replica import POLL_S
from services.scoring.server import build
from services.stack.ports import HOST, Ports
from services.stack.tables import text_table

WARMUP = 0.25
STEPS = 20
ABSENT_SHARE = 0.1  # of the ads, at the start
MOVING_SHARE = 0.02  # of the bids, at each step
BID_SIGMA = 0.3  # of the log of a moving bid
EVERY = 5
SLOTS = 8
MERGED_ADS = 64

_CALL_S = 30.0
_BATCH = 32


@dataclass(frozen=True)
class Stack:
    """Where the parts of a running stack are that the scoring processes of ours share with it."""

    cache_url: str
    state_url: str
    retrieval_target: str
    inference_target: str

    @classmethod
    def at(cls, ports: Ports) -> Stack:
        """The stack that `frugalads up` runs at these ports."""
        return cls(
            f"redis://{HOST}:{ports.of('cache')}/0",
            f"redis://{HOST}:{ports.of('state')}/0",
            f"{HOST}:{ports.of('retrieval')}",
            f"{HOST}:{ports.of('inference')}",
        )


@dataclass(frozen=True)
class Row:
    """Percent of computation saved, and change of the auction's revenue in percent, of one policy."""

    policy: str
    requests: int
    live_saved: float
    simulated_saved: float
    live_revenue: float
    simulated_revenue: float


@dataclass(frozen=True)
class _Policy:
    """One policy on both sides. learned: what the simulator decides by, of a learned one."""

    design: Design
    options: Mapping[str, Any]
    learned: Learned | None = None


@dataclass(frozen=True)
class _Seen:
    """Of every request: the cache state (0 before the first) and what the ads shown earn, US dollars."""

    state: NDArray[np.int8]
    revenue_usd: NDArray[np.float64]


def measure(
    stack: Stack, catalogue: Path, queries: Sequence[str], model: Path | None, seed: int = 1
) -> list[Row]:
    """Replays and simulates the queries; a row a policy: `none`, `fixed`, and `predicted` with a model.

    catalogue: the bundle that the stack serves. Leaves changed bids and a changed index behind. Raises
    RuntimeError when an answer fails or is not logged.
    """
    policies = _policies(model)
    with tempfile.TemporaryDirectory() as name:
        control_log = Path(name) / "control.jsonl"
        ads = read_catalogue(catalogue)
        off, live = asyncio.run(_replay(stack, ads, queries, policies, control_log, random.Random(seed)))
        import_log(control_log, Path(name) / "log")
        log = read_log(Path(name) / "log")
    if len(log.phrase) != len(queries):
        raise RuntimeError(f"{len(log.phrase)} of {len(queries)} requests were logged")
    first = int(WARMUP * len(queries))
    return [_row(name, policy, log, off, live[name], first) for name, policy in policies.items()]


def _policies(model: Path | None) -> dict[str, _Policy]:
    def design(policy: Any, **parameters: Any) -> Design:
        return Design(policy, policy, merge=True, every=EVERY, queue_ads=MERGED_ADS, **parameters)

    policies = {
        "none": _Policy(design("none"), {"refresh_policy": "none"}),
        "fixed": _Policy(design("fixed"), {"refresh_policy": "fixed", "refresh_every": EVERY}),
    }
    if model is not None:
        loaded, rule = load_model(model, ScoringConfig().refresh_cost_ratio)
        learned = Learned(loaded.forest.arrays, rule)
        policies["predicted"] = _Policy(
            design("predicted", recipe=OURS), {"refresh_model": str(model)}, learned
        )
    return policies


def _row(name: str, policy: _Policy, log: RequestLog, off: _Seen, on: _Seen, first: int) -> Row:
    entries = len(log.phrases)
    outcome = simulate(log, policy.design, entries, warmup=first, learned=policy.learned)
    cost = log.cost[first:].astype(np.float64)

    def saved(hits: NDArray[np.bool_]) -> float:
        return float(100 * cost[hits[first:]].sum() / cost.sum())

    revenue = on.revenue_usd[first:].sum() / off.revenue_usd[first:].sum() - 1
    return Row(
        name,
        len(cost),
        saved(on.state == scoring_pb2.CACHE_STATE_HIT),
        saved(outcome.decisions == HIT),
        float(100 * revenue),
        outcome.revenue_auction,
    )


async def _replay(
    stack: Stack,
    ads: list[Ad],
    queries: Sequence[str],
    policies: Mapping[str, _Policy],
    control_log: Path,
    chance: random.Random,
) -> tuple[_Seen, dict[str, _Seen]]:
    """Sends every query to a process without and one a policy with a cache."""
    without = {"control_log": str(control_log), "control_share": 1.0, "control_per_s": 100_000}
    run = secrets.token_hex(4)  # lists that an earlier run left would be hits
    options = {"off": without, **{name: policy.options for name, policy in policies.items()}}
    seen = {name: _Seen(np.zeros(len(queries), np.int8), np.zeros(len(queries))) for name in options}
    async with AsyncExitStack() as opened:
        ranks = {}
        for name, own in options.items():
            config = {**_config(stack, f"agreement:{run}:{name}:"), **own}
            running = await opened.enter_async_context(
                start_server("scoring", ScoringConfig(**config), build)
            )
            channel = await opened.enter_async_context(grpc.aio.insecure_channel(f"{HOST}:{running.port}"))
            ranks[name] = scoring_pb2_grpc.ScoringServiceStub(channel)
        movement = await opened.enter_async_context(_Movement(stack, ranks["off"], ads, chance))
        every = max(1, len(queries) // STEPS)
        with progress("requests", len(queries)) as show:
            for at, query in enumerate(queries):
                if at and at % every == 0:
                    await movement.step()
                request = scoring_pb2.RankAdsRequest(query=query, slots=SLOTS)
                calls = [rank.RankAds(request, timeout=_CALL_S) for rank in ranks.values()]
                for name, answer in zip(ranks, await asyncio.gather(*calls), strict=True):
                    seen[name].state[at] = answer.cache_state
                    seen[name].revenue_usd[at] = sum(ad.click_probability * ad.price_usd for ad in answer.ads)
                show(at + 1)
    return seen.pop("off"), seen


def _config(stack: Stack, key_prefix: str) -> dict[str, Any]:
    return {
        **asdict(stack),
        "key_prefix": key_prefix,
        "click_secret": "only for this measurement",
        "list_capacity": MERGED_ADS,
        "max_slots": SLOTS,
        "cache_timeout_ms": 5_000,
        "compute_timeout_ms": 20_000,
        "outdated_refreshes_per_s": 0,
        "grace_ms": 500,
        "log_level": "error",
    }


class _Movement:
    """What changes in the catalogue while requests come."""

    def __init__(
        self,
        stack: Stack,
        scoring: scoring_pb2_grpc.ScoringServiceStub,
        ads: Sequence[Ad],
        chance: random.Random,
    ) -> None:
        self._scoring: Any = scoring
        self._ads = ads
        self._chance = chance
        self._channels = [
            grpc.aio.insecure_channel(t) for t in (stack.inference_target, stack.retrieval_target)
        ]
        self._inference: Any = inference_pb2_grpc.InferenceServiceStub(self._channels[0])
        self._retrieval: Any = retrieval_pb2_grpc.RetrievalServiceStub(self._channels[1])
        self._absent = chance.sample(ads, int(ABSENT_SHARE * len(ads)))
        self._returning = -(-len(self._absent) // (STEPS - 1))

    async def __aenter__(self) -> _Movement:
        ids = [ad.ad_id for ad in self._absent]
        for at in range(0, len(ids), _BATCH):
            await self._retrieval.Delete(retrieval_pb2.DeleteRequest(ad_ids=ids[at : at + _BATCH]))
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in self._channels:
            await channel.close()

    async def step(self) -> None:
        """Some ads come back into the index, and some bids move; returns when every process knows."""
        for _ in range(0, min(self._returning, len(self._absent)), _BATCH):
            batch = [self._absent.pop() for _ in range(min(_BATCH, self._returning, len(self._absent)))]
            embedded = await self._inference.Embed(
                inference_pb2.EmbedRequest(texts=[ad.text for ad in batch]), timeout=_CALL_S
            )
            vectors = np.array(embedded.vectors, np.float32).reshape(len(batch), -1)
            indexed = [
                retrieval_pb2.IndexedAd(ad_id=ad.ad_id, vector=vector)
                for ad, vector in zip(batch, vectors.tolist(), strict=True)
            ]
            await self._retrieval.Upsert(retrieval_pb2.UpsertRequest(ads=indexed), timeout=_CALL_S)
        moving = self._chance.sample(self._ads, int(MOVING_SHARE * len(self._ads)))
        changes = [
            scoring_pb2.AdChange(
                ad_id=ad.ad_id, bid_usd=min(1000.0, ad.bid_usd * self._chance.lognormvariate(0, BID_SIGMA))
            )
            for ad in moving
        ]
        await self._scoring.UpdateAds(scoring_pb2.UpdateAdsRequest(changes=changes), timeout=_CALL_S)
        await asyncio.sleep(5 * POLL_S)


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m loadtest.agreement`: compares on a stack that runs, prints a table, writes a document."""
    parser = argparse.ArgumentParser(prog="loadtest.agreement", description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path(".frugalads"), help="the stack's work folder")
    parser.add_argument("--base-port", type=int, default=Ports().base, help="its first port")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--model", type=Path, metavar="DIR", help="a refresh model, for the policy predicted")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args(argv)
    logs.configure("scoring", "error", "text")
    try:
        with tempfile.TemporaryDirectory() as name:
            stream, catalogue = Path(name) / "queries.txt", arguments.data / "catalogue"
            write_queries(catalogue, stream, requests=arguments.requests, seed=arguments.seed)
            rows = measure(
                Stack.at(Ports(arguments.base_port)),
                catalogue,
                read_queries(stream),
                arguments.model,
                arguments.seed,
            )
    except UserError as error:
        parser.exit(2, f"loadtest.agreement: error: {error}\n")
    sys.stdout.write(render(rows) + "\n")
    if arguments.json is not None:
        options = {key: str(value) for key, value in vars(arguments).items()}
        with written_whole(arguments.json) as file:
            document = {"header": run_header(options, arguments.seed), "rows": [asdict(row) for row in rows]}
            json.dump(document, file, indent=1)
    return 0


def render(rows: Sequence[Row]) -> str:
    """A table of both sides, in percent."""
    columns = ("policy", "requests", "saved live", "simulated", "revenue live", "simulated")
    cells = [
        (
            row.policy,
            f"{row.requests:,}",
            *(f"{value:.2f}" for value in (row.live_saved, row.simulated_saved)),
            *(f"{value:+.2f}" for value in (row.live_revenue, row.simulated_revenue)),
        )
        for row in rows
    ]
    return text_table(columns, cells, left=(0,))


if __name__ == "__main__":
    sys.exit(main())
