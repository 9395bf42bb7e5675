"""Recall targets served by a stop model, and what is said where none serves."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from retrieval.small_world import NEVER, Served, World, load_folder, make_world, on_server, query, unit

from frugalads.retrieval.v1 import retrieval_pb2 as pb
from models.termination.calibration import Target
from models.termination.training import KIND, train_termination, write_termination
from services.retrieval import stop_model
from services.retrieval.attributes import Membership
from services.retrieval.delta import Delta, Snapshot
from services.retrieval.index import LoadedIndex
from services.retrieval.plan import Budget, Coverage, Exact, MeanRecall, plan
from services.retrieval.search import BUDGET, DEADLINE, EXHAUSTED, RULE, search
from services.runtime.bundles import write_bundle
from services.runtime.deadlines import Deadline
from services.runtime.errors import BundleError

TARGETS = (Target(0.8), Target(0.9), Target(0.97), Target(0.9, 0.9))


def asked(world: World, count: int, seed: int) -> np.ndarray:
    """Queries distributed as those of the world."""
    rng = np.random.default_rng(seed)
    rows = world.queries[rng.integers(0, len(world.queries), count)]
    return unit(rows + 0.3 * rng.standard_normal(rows.shape))


def train(world: World, folder: Path, out: Path, queries: int = 2_000) -> Path:
    index = load_folder(folder)
    vectors = index.contents.vectors
    depth = index.calibration.depth
    trained = train_termination(
        index.view, vectors, asked(world, queries, 1), (1, 10), TARGETS, 1, lambda *_: None, depth=depth
    )
    write_termination(out, trained, index.fingerprint, {})
    return out


@pytest.fixture(scope="module")
def model_folder(world: World, index_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(world, index_folder, tmp_path_factory.mktemp("model") / "termination")


@pytest.fixture(scope="module")
def index(index_folder: Path, model_folder: Path) -> LoadedIndex:
    """The index with its model."""
    plain = load_folder(index_folder)
    loaded = stop_model.load_stop_model(model_folder, plain.fingerprint, plain.lists, 0)
    return LoadedIndex(plain.contents, loaded)


@pytest.fixture(scope="module")
def snapshot(index: LoadedIndex, tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return Delta(index, tmp_path_factory.mktemp("delta"), 1_000).snapshot


def test_the_kind_is_the_one_that_training_writes() -> None:
    assert stop_model.KIND == KIND


@pytest.mark.parametrize("k", [1, 4, 10])
@pytest.mark.parametrize("target", [MeanRecall(0.9), MeanRecall(0.97), Coverage(0.9, 0.9)])
def test_targets_are_reached_by_a_rule_with_less_work(
    world: World, index: LoadedIndex, snapshot: Snapshot, k: int, target: MeanRecall | Coverage
) -> None:
    vectors = asked(world, 900, 3)
    answers = search(snapshot, query(vectors, k, target), 0, NEVER).rows
    assert index.stop_model is not None
    recall, share = target.recall, target.share if isinstance(target, Coverage) else 0.0
    chosen = index.stop_model.choose(k, recall, share)
    assert chosen is not None
    budget = Budget(chosen.point.lists)
    fixed = search(snapshot, query(vectors, chosen.point.k, budget), 0, NEVER).rows
    recalls = []
    for vector, answer in zip(vectors, answers, strict=True):
        _, exact = world.nearest(vector, k)
        recalls.append((answer.similarities >= exact[-1] - 1e-5).sum() / k)
        assert answer.stopped in (RULE, BUDGET, EXHAUSTED)
        assert not answer.fixed_budget
        assert answer.lists_visited <= answer.lists_planned
    assert sum(answer.stopped == RULE for answer in answers) > 300
    if isinstance(target, MeanRecall):
        assert np.mean(recalls) > target.recall - 0.03
        assert all(answer.recall >= target.recall - 1e-9 for answer in answers)
    else:
        assert np.mean(np.array(recalls) >= target.recall - 1e-9) > target.share - 0.04
    assert sum(a.codes_scanned for a in answers) < 0.9 * sum(a.codes_scanned for a in fixed)


def test_targets_and_filters_that_no_point_covers_get_the_fixed_budget(
    world: World, index: LoadedIndex, snapshot: Snapshot
) -> None:
    some = [Membership("category", ("c1", "c2"), False)]
    vector = world.queries[0]
    for target, k, conditions in (
        (MeanRecall(0.9), 10, some),
        (MeanRecall(0.98), 10, []),
        (MeanRecall(0.9), 11, []),
        (Coverage(0.95, 0.99), 10, []),
    ):
        answer = search(snapshot, query(vector, k, target, conditions), 0, NEVER).rows[0]
        assert answer.fixed_budget or answer.stopped == EXHAUSTED
    assert plan(index, MeanRecall(0.9), 10, index.size).policy.rule != plan(index, Exact(), 10, 9).policy.rule


def test_a_few_deleted_ads_do_not_turn_the_rule_off(world: World, index: LoadedIndex, tmp_path: Path) -> None:
    delta = Delta(index, tmp_path, 1_000)
    delta.delete(world.ad_ids[:100])
    rows = search(delta.snapshot, query(asked(world, 50, 4), 10, MeanRecall(0.9)), 0, NEVER).rows
    assert not any(answer.fixed_budget for answer in rows)
    assert not {ad for answer in rows for ad in answer.ad_ids} & set(world.ad_ids[:100].tolist())
    delta.delete(world.ad_ids[:900])
    rows = search(delta.snapshot, query(asked(world, 50, 4), 10, MeanRecall(0.9)), 0, NEVER).rows
    assert all(answer.fixed_budget or answer.stopped == EXHAUSTED for answer in rows)
    delta.close()


@pytest.mark.parametrize("target", [MeanRecall(0.97), MeanRecall(0.9), Exact()])
def test_the_remaining_time_caps_the_plan_and_the_answer_says_what_it_costs(
    world: World, index: LoadedIndex, tmp_path: Path, target: MeanRecall | Exact
) -> None:
    slow = LoadedIndex(index.contents, index.stop_model)
    codes = int(slow.list_sizes.mean()) * 4
    for cost in (slow.cost, slow.exact_cost):
        cost.add(60 * 10**9, codes)  # a minute for four lists
    delta = Delta(slow, tmp_path, 10)
    vectors = asked(world, 20, 5)
    free = search(delta.snapshot, query(vectors, 10, target), 0, NEVER).rows
    for cost in (slow.cost, slow.exact_cost):
        cost.add(10**15, codes)
    hurried = search(delta.snapshot, query(vectors, 10, target), 0, Deadline.after(30)).rows
    capped = [i for i, answer in enumerate(hurried) if answer.stopped == DEADLINE]
    assert len(capped) > 10
    for i in capped:
        assert hurried[i].lists_visited == 1 < hurried[i].lists_planned == free[i].lists_planned
        assert hurried[i].recall < free[i].recall or target == MeanRecall(0.9)
        assert len(hurried[i].ad_ids)
    assert not any(answer.stopped == DEADLINE for answer in free)
    delta.close()


def ask(world: World, live: Served, k: int = 10) -> Any:
    target = pb.Target(mean_recall=0.9)
    return live.api.Search(pb.SearchRequest(vector=world.queries[0], k=k, target=target))


def test_a_server_serves_its_model_and_says_so(
    world: World, index_folder: Path, model_folder: Path, tmp_path: Path
) -> None:
    async def body(live: Served) -> None:
        info = await live.api.GetInfo(pb.GetInfoRequest())
        assert len(info.versions.model) == 32
        assert info.stop_model_fault == ""
        answers = []
        for vector in asked(world, 40, 6):
            request = pb.SearchRequest(vector=vector, k=10, target=pb.Target(mean_recall=0.97))
            answers.append(await live.api.Search(request))
        assert sum(answer.stop_reason == pb.STOP_REASON_RULE for answer in answers) > 20
        for answer in answers:
            assert list(answer.degraded_reasons) == []
            assert answer.versions.model == info.versions.model
            assert answer.predicted_recall >= 0.97

    on_server(index_folder, tmp_path, body, stop_model=model_folder)


async def counted(live: Served) -> dict[str, float]:
    """What the server's metrics say, by name and labels."""
    address = f"http://127.0.0.1:{live.metrics_port}/metrics"
    text = await asyncio.to_thread(lambda: urllib.request.urlopen(address).read().decode())
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name.removeprefix("frugalads_retrieval_"): float(value) for name, value in lines}


def test_decisions_are_counted(world: World, index_folder: Path, model_folder: Path, tmp_path: Path) -> None:
    async def body(live: Served) -> None:
        index = live.server._current().snapshot.index
        answers = []
        for vector in asked(world, 30, 7):
            request = pb.SearchRequest(vector=vector, k=10, target=pb.Target(mean_recall=0.97))
            answers.append(await live.api.Search(request))
        index.cost.add(10**15, 1)
        request = pb.SearchRequest(vector=world.queries[0], k=10, target=pb.Target(mean_recall=0.97))
        hurried = await live.api.Search(request, timeout=20)
        assert hurried.stop_reason == pb.STOP_REASON_DEADLINE
        assert list(hurried.degraded_reasons) == [pb.DEGRADED_REASON_DEADLINE]
        assert hurried.work.lists_visited == 1 < hurried.work.lists_planned
        assert hurried.predicted_recall < answers[0].predicted_recall
        seen = await counted(live)
        stopped = sum(answer.stop_reason == pb.STOP_REASON_RULE for answer in answers)
        assert seen['searches_total{stop_reason="rule"}'] == stopped > 0
        assert seen['searches_total{stop_reason="deadline"}'] == 1
        assert seen['degraded_searches_total{reason="deadline"}'] == 1
        assert seen['degraded_searches_total{reason="fixed_budget"}'] == 0
        work = [answer.work for answer in (*answers, hurried)]
        assert seen["stop_model_calls_total"] == sum(one.model_calls for one in work)
        assert seen["codes_scanned_total"] == sum(one.codes_scanned for one in work)
        assert seen["search_lists_sum"] == sum(one.lists_visited for one in work)
        assert seen["search_batch_rows_sum"] == 31
        assert seen["stop_model_ready"] == 1
        await live.admin.SwapIndex(pb.SwapIndexRequest(path=str(index_folder), stop_model="nowhere"))
        await live.api.Search(request)
        seen = await counted(live)
        assert seen["stop_model_ready"] == 0
        assert seen['degraded_searches_total{reason="fixed_budget"}'] == 1

    on_server(index_folder, tmp_path, body, stop_model=model_folder, metrics_port=0)


def altered(folder: Path) -> None:
    model = bytearray((folder / "model").read_bytes())
    model[len(model) // 2] ^= 1
    (folder / "model").write_bytes(model)


def altered_with_a_fitting_manifest(folder: Path) -> None:
    """Another leaf value: a sound model file, which golden rows tell from ours."""
    digit = re.compile(r"(?<=leaf_value=)(-?\d\.\d)(\d)")
    text = (folder / "model").read_text()
    (folder / "model").write_text(digit.sub(lambda m: m[1] + str((int(m[2]) + 1) % 10), text, count=1))
    rewritten(folder, folder, {})


def of_another_index(folder: Path) -> None:
    rewritten(folder, folder, {"index": "f" * 32})


def of_more_lists(folder: Path) -> None:
    table = json.loads((folder / "manifest.json").read_text())["meta"]["table"]
    table["points"][0]["cap"] = 52
    rewritten(folder, folder, {"table": table})


def rewritten(folder: Path, out: Path, meta: dict[str, Any]) -> Path:
    """The bundle with other metadata and a manifest that fits."""
    manifest = json.loads((folder / "manifest.json").read_text())
    files = {name: (folder / name).read_bytes() for name in manifest["files"]}
    with write_bundle(out, KIND, {**manifest["meta"], **meta}) as staging:
        for name, data in files.items():
            (staging / name).write_bytes(data)
    return out


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (shutil.rmtree, "no such bundle"),
        (altered, "its SHA-256 differs"),
        (altered_with_a_fitting_manifest, "golden row"),
        (of_another_index, "trained for 'ffff"),
        (of_more_lists, "lists and cap must be 1..51"),
    ],
)
def test_a_model_that_does_not_fit_never_serves_and_it_is_said(
    world: World,
    index_folder: Path,
    model_folder: Path,
    tmp_path: Path,
    fault: Callable[[Path], None],
    said: str,
) -> None:
    folder = tmp_path / "termination"
    shutil.copytree(model_folder, folder)
    fault(folder)

    async def body(live: Served) -> None:
        info = await live.api.GetInfo(pb.GetInfoRequest())
        assert info.versions.model == ""
        assert said in info.stop_model_fault
        answer = await ask(world, live)
        assert list(answer.degraded_reasons) == [pb.DEGRADED_REASON_FIXED_BUDGET]
        assert answer.stop_reason == pb.STOP_REASON_BUDGET
        assert (answer.versions.model, answer.work.model_calls) == ("", 0)

    on_server(index_folder, tmp_path / "delta", body, stop_model=folder)


def test_models_are_swapped_with_their_index_and_alone(
    world: World, index_folder: Path, model_folder: Path, tmp_path: Path
) -> None:
    other = make_world(1500, seed=9)
    other_index = other.build(tmp_path / "other")
    other_model = train(other, other_index, tmp_path / "other-model", queries=400)
    again = rewritten(model_folder, tmp_path / "again", {"trained": "again"})

    async def body(live: Served) -> None:
        async def swap(index: Path, model: Path | str) -> pb.GetInfoResponse:
            await live.admin.SwapIndex(pb.SwapIndexRequest(path=str(index), stop_model=str(model)))
            info = await live.api.GetInfo(pb.GetInfoRequest())
            answer = await ask(world, live)
            assert answer.versions == info.versions
            assert bool(answer.degraded_reasons) == (info.versions.model == "")
            return info

        first = await live.api.GetInfo(pb.GetInfoRequest())
        await live.api.Upsert(pb.UpsertRequest(ads=[pb.IndexedAd(ad_id=9_000, vector=world.queries[0])]))
        retrained = await swap(index_folder, again)
        assert retrained.versions.index == first.versions.index
        assert retrained.versions.model not in ("", first.versions.model)
        assert (await ask(world, live)).ad_ids[0] == 9_000, "changes stay when the model alone is swapped"
        configured = await swap(other_index, "")
        assert "trained for" in configured.stop_model_fault
        assert configured.versions.model == ""
        swapped = await swap(other_index, other_model)
        assert swapped.versions.model not in ("", first.versions.model)
        assert swapped.stop_model_fault == ""
        assert (await swap(index_folder, "")).versions.model == first.versions.model

    on_server(index_folder, tmp_path / "delta", body, stop_model=model_folder)


def test_a_model_of_another_depth_is_refused(index: LoadedIndex, model_folder: Path) -> None:
    with pytest.raises(BundleError, match="calibrated with 0 candidates, the index re-ranks 200"):
        stop_model.load_stop_model(model_folder, index.fingerprint, index.lists, 200)
