"""The refresh model in the service: it decides, is replaced without a restart, and refused without harm."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from redis_process import RedisProcess
from refresh_models import write_model
from scoring_stand_ins import World, until, urls, world

from frugalads.scoring.v1 import scoring_pb2
from services.core.refresh.features import OURS
from services.runtime import forests
from services.scoring import refresher

HIT, MISS = scoring_pb2.CACHE_STATE_HIT, scoring_pb2.CACHE_STATE_MISS
REFRESHED = scoring_pb2.CACHE_STATE_REFRESHED
UNMODELLED = scoring_pb2.DEGRADED_REASON_REFRESH_MODEL


@pytest.fixture(autouse=True)
def _watchful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks often, and leaves out the throw-away process, which takes a second and is tested elsewhere."""
    monkeypatch.setattr(refresher, "WATCH_S", 0.02)
    monkeypatch.setattr(forests, "parse_in_child", lambda *_: None)


def run(
    server: RedisProcess, model: Path, scenario: Callable[[World], Awaitable[None]], **options: Any
) -> None:
    async def inside() -> None:
        options_: dict[str, Any] = {"refresh_model": str(model), "refresh_every": 2} | options
        async with world(*urls(server), **options_) as made:
            await scenario(made)

    asyncio.run(inside())


async def info(made: World) -> Any:
    return await made.stub.GetInfo(scoring_pb2.GetInfoRequest(), timeout=10)


async def serves(made: World, policy: str) -> bool:
    return bool((await info(made)).refresh_policy == policy)


def test_what_the_model_predicts_decides_and_is_told(valkey_server: RedisProcess, tmp_path: Path) -> None:
    write_model(tmp_path / "model", 0.0)

    async def reuse(made: World) -> None:
        answers = [await made.rank() for _ in range(6)]
        assert [answer.cache_state for answer in answers] == [MISS] + [HIT] * 5
        assert {answer.predicted_loss_usd for answer in answers} == {0}
        told = await info(made)
        assert (told.refresh_policy, told.refresh_model_fault) == ("predicted", "")
        assert len(told.refresh_model) == 32

    run(valkey_server, tmp_path / "model", reuse)
    write_model(tmp_path / "model", 100.0)

    async def refresh(made: World) -> None:
        answers = [await made.rank() for _ in range(4)]
        assert [answer.cache_state for answer in answers] == [REFRESHED] * 4, "the list was cached before"
        assert [answer.predicted_loss_usd for answer in answers] == pytest.approx([100] * 4)

    run(valkey_server, tmp_path / "model", refresh)


def test_the_price_is_the_measured_cost_of_the_list(valkey_server: RedisProcess, tmp_path: Path) -> None:
    """The auction of the stand-ins earns 0.5 * 0.67 + 0.22 * 0.75 + .. = some 0.5 dollars a request."""
    write_model(tmp_path / "model", 0.05)

    states = []

    async def scenario(made: World) -> None:
        assert (await made.rank()).cache_state == MISS
        states.append((await made.rank()).cache_state)

    for ratio in (0.01, 1.0):
        valkey_server.client().flushall()
        run(valkey_server, tmp_path / "model", scenario, refresh_cost_ratio=ratio)
    assert states == [REFRESHED, HIT]


def test_probes_measure_what_reuse_would_have_lost(valkey_server: RedisProcess, tmp_path: Path) -> None:
    write_model(tmp_path / "model", 0.01, probe_share=1.0)

    async def scenario(made: World) -> None:
        await made.rank()
        made.retrieval.found = {2: 0.9, 3: 0.8}  # nothing is new
        first = await made.rank()
        made.retrieval.found = {1: 0.9, 2: 0.8}
        made.inference.probability = lambda ad_id: 0.5
        second = await made.rank()
        assert [first.cache_state, second.cache_state] == [REFRESHED] * 2
        assert first.predicted_loss_usd == pytest.approx(0.01)
        assert second.predicted_loss_usd < 0.01, "corrected: the first probe found no loss"
        service: Any = made.running.service
        probes = service._refresher._probes
        assert probes.labels("predicted")._value.get() == pytest.approx(0.02)
        assert probes.labels("found")._value.get() == 0

    run(valkey_server, tmp_path / "model", scenario)


def test_a_model_is_replaced_without_a_restart(valkey_server: RedisProcess, tmp_path: Path) -> None:
    model = tmp_path / "model"
    write_model(model, 0.0)

    async def scenario(made: World) -> None:
        await made.rank()
        assert (await made.rank()).cache_state == HIT
        before = (await info(made)).refresh_model
        await asyncio.to_thread(write_model, model, 100.0)
        await until(lambda: made.answers(REFRESHED))
        assert (await info(made)).refresh_model not in ("", before)
        shutil.rmtree(model)
        assert [await serves(made, "predicted") for _ in range(50)] == [True] * 50

    run(valkey_server, model, scenario)


def alter(model: Path) -> None:
    write_model(model, 0.0)
    data = bytearray((model / "model").read_bytes())
    data[len(data) // 2] ^= 1
    (model / "model").write_bytes(data)


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (lambda model: None, "no such bundle"),
    "altered": (alter, "SHA-256"),
    "another kind": (lambda model: write_model(model, 0.0, kind="termination"), "of kind 'termination'"),
    "other features": (
        lambda model: write_model(model, 0.0, names=(*OURS[:-1], "mood")),
        "'mood', but 'change_per_request' is computed",
    ),
    "another rule": (lambda model: write_model(model, 0.0, probe_share=2.0), "probe_share"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_refused_model_leaves_the_policy_and_says_so(
    valkey_server: RedisProcess, tmp_path: Path, fault: str
) -> None:
    model, (make, said) = tmp_path / "model", FAULTS[fault]
    make(model)

    async def scenario(made: World) -> None:
        answers = [await made.rank() for _ in range(3)]
        assert [answer.cache_state for answer in answers] == [MISS, HIT, REFRESHED]
        assert [list(answer.degraded_reasons) for answer in answers] == [[], [UNMODELLED], [UNMODELLED]]
        told = await info(made)
        assert (told.refresh_policy, told.refresh_model) == ("fixed", "")
        assert said in told.refresh_model_fault
        shutil.rmtree(model, ignore_errors=True)
        await asyncio.to_thread(write_model, model, 0.0)
        await until(lambda: serves(made, "predicted"))
        assert not (await made.rank()).degraded_reasons

    run(valkey_server, model, scenario)


def test_a_bad_replacement_hands_the_decisions_back(valkey_server: RedisProcess, tmp_path: Path) -> None:
    model = tmp_path / "model"
    write_model(model, 100.0)

    async def scenario(made: World) -> None:
        assert await serves(made, "predicted")
        await asyncio.to_thread(write_model, model, 0.0, names=("mood",))
        await until(lambda: serves(made, "fixed"))
        assert [(await made.rank()).cache_state for _ in range(3)] == [MISS, HIT, REFRESHED]

    run(valkey_server, model, scenario)
