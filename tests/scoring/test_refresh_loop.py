"""The whole loop: a service logs its control group, a refresh model learns from that log, and serves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from redis_process import RedisProcess
from scoring_stand_ins import World, urls, world

from frugalads.scoring.v1 import scoring_pb2
from loadtest.request_log.importing import import_log
from services.cli import main

STABLE, CHANGING = "laser printer", "ink cartridge"
FOUND = ({1: 0.9}, {2: 0.9}, {3: 0.9})


async def ask(made: World, query: str, turn: int) -> scoring_pb2.RankAdsResponse:
    made.retrieval.found = dict(FOUND[turn % len(FOUND) if query == CHANGING else 0])
    response: scoring_pb2.RankAdsResponse = await made.stub.RankAds(
        scoring_pb2.RankAdsRequest(query=query, slots=2), timeout=10
    )
    return response


def test_a_model_trained_on_the_control_log_tells_changing_lists_from_stable_ones(
    valkey_server: RedisProcess, tmp_path: Path
) -> None:
    log, imported, model = tmp_path / "control.jsonl", tmp_path / "log", tmp_path / "model"

    async def control_group() -> None:
        options: dict[str, Any] = {"control_log": str(log), "control_share": 1.0, "control_per_s": 100_000}
        async with world(*urls(valkey_server), **options) as made:
            for turn in range(600):  # `train refresh` wants 1,000 rows
                await ask(made, STABLE, turn)
                await ask(made, CHANGING, turn)

    asyncio.run(control_group())
    valkey_server.client().flushall()
    import_log(log, imported)
    assert main(["train", "refresh", str(imported), "--out", str(model)]) == 0

    async def served() -> tuple[str, float, float]:
        async with world(*urls(valkey_server), refresh_model=str(model)) as made:
            losses = dict.fromkeys((STABLE, CHANGING), 0.0)
            for turn in range(40):
                for query in losses:
                    losses[query] += (await ask(made, query, turn)).predicted_loss_usd
            policy = (await made.stub.GetInfo(scoring_pb2.GetInfoRequest(), timeout=10)).refresh_policy
            return policy, losses[STABLE], losses[CHANGING]

    policy, stable_usd, changing_usd = asyncio.run(served())
    assert policy == "predicted"
    assert changing_usd > 5 * stable_usd
