"""IVF-PQ with exact re-ranking: recall ceiling, targets, exactness, and the same guarantees as flat lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from grpc import StatusCode
from retrieval.small_world import NEVER, Served, World, load_folder, make_world, on_server, query, refused
from retrieval.test_stop_model import asked, train

from frugalads.retrieval.v1 import retrieval_pb2 as pb
from services.commands.index import describe
from services.retrieval.attributes import Membership
from services.retrieval.build import Built
from services.retrieval.delta import Delta, Snapshot
from services.retrieval.index import LoadedIndex
from services.retrieval.plan import Budget, Coverage, Exact, MeanRecall, plan
from services.retrieval.quantization import CEILING, code_sizes
from services.retrieval.search import EXHAUSTED, RULE, Answer, search
from services.retrieval.stop_model import load_stop_model
from services.runtime.errors import FailedPrecondition, UserError


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(2500, d=16, seed=4)


@pytest.fixture(scope="module")
def folder(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return world.build(tmp_path_factory.mktemp("quantized") / "index", kind="ivf_pq")


@pytest.fixture(scope="module")
def snapshot(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return Delta(load_folder(folder), tmp_path_factory.mktemp("delta"), 1_000).snapshot


def recall(world: World, answer: Answer, vector: np.ndarray, k: int) -> float:
    _, exact = world.nearest(vector, k)
    return float((answer.similarities >= exact[-1] - 1e-5).sum() / k)


def test_the_ceiling_is_reached_by_the_shortest_code_that_can(snapshot: Snapshot) -> None:
    index = snapshot.index
    assert index.kind == "ivf_pq"
    assert int(index.contents.ivf.code_size) in code_sizes(index.dimension)
    for k in (1, 10, 100):
        assert CEILING <= index.calibration.ceiling(k) <= 1
    assert index.calibration.depth_of(10) == index.calibration.depth >= 100
    assert index.calibration.depth_of(1000) == 10 * index.calibration.depth


def test_an_exact_search_compares_vectors_and_not_codes(world: World, snapshot: Snapshot) -> None:
    for conditions in ([], [Membership("category", ("c1",), True)]):
        mask = np.array([not conditions or value != "c1" for value in world.strings["category"]])
        for vector in world.queries[:30]:
            answer = search(snapshot, query(vector, 10, Exact(), conditions), 0, NEVER).rows[0]
            ids, similarities = world.nearest(vector, 10, mask)
            assert np.allclose(answer.similarities, similarities, atol=1e-5)
            assert (answer.stopped, answer.recall, answer.codes_scanned) == (EXHAUSTED, 1.0, mask.sum())
            assert len(set(ids) & set(answer.ad_ids.tolist())) >= 9  # copies tie


@pytest.mark.parametrize("k", [1, 10, 100])
@pytest.mark.parametrize("share", [0.8, 0.95, 0.99])
def test_recall_targets_are_reached_and_similarities_are_exact(
    world: World, snapshot: Snapshot, k: int, share: float
) -> None:
    answers = search(snapshot, query(world.queries, k, MeanRecall(share)), 0, NEVER).rows
    row_of = {int(ad_id): row for row, ad_id in enumerate(world.ad_ids)}
    for vector, answer in zip(world.queries, answers, strict=True):
        rows = [row_of[ad] for ad in answer.ad_ids.tolist()]
        assert np.allclose(answer.similarities, world.vectors[rows] @ vector, atol=1e-5)
    recalls = [recall(world, a, v, k) for a, v in zip(answers, world.queries, strict=True)]
    assert np.mean(recalls) >= share - 1e-9


def test_a_target_above_the_ceiling_is_refused_with_the_ceiling(world: World, snapshot: Snapshot) -> None:
    index = snapshot.index
    table = index.calibration
    table.mean_recall[:, -1] = np.minimum(table.mean_recall[:, -1], 0.998)
    table.mean_recall[:] = np.minimum(table.mean_recall, 0.998)
    with pytest.raises(FailedPrecondition, match=r"mean_recall: 0.999 is above 0.9980") as caught:
        plan(index, MeanRecall(0.999), 10, index.size)
    assert caught.value.metadata["ceiling"] == "0.998000"
    table.coverage[:, :, -1] = np.minimum(table.coverage[:, :, -1], 0.9)
    with pytest.raises(FailedPrecondition, match=r"coverage.share: 0.95 is above 0.9000"):
        plan(index, Coverage(1.0, 0.95), 10, index.size)
    assert not plan(index, MeanRecall(0.99), 10, index.size).exact
    few = [Membership("category", ("c1",), False)]
    answer = search(snapshot, query(world.queries[0], 5, MeanRecall(1.0), few), 5_000, NEVER).rows[0]
    assert answer.recall == 1, "few ads are compared exactly, whatever the ceiling"


def test_a_server_refuses_what_the_codes_cannot_reach(world: World, folder: Path, tmp_path: Path) -> None:
    async def body(live: Served) -> None:
        index = live.server._current().snapshot.index
        ceiling = index.calibration.ceiling(100)
        index.calibration.mean_recall[:] = np.minimum(index.calibration.mean_recall, 0.9985)
        request = pb.SearchRequest(vector=world.queries[0], k=100, target=pb.Target(mean_recall=1.0))
        code, message, reason = await refused(live.api.Search(request))
        assert (code, reason) == (StatusCode.FAILED_PRECONDITION, "TARGET_ABOVE_CEILING")
        assert f"above {min(ceiling, 0.9985):.4f}" in message
        info = await live.api.GetInfo(pb.GetInfoRequest())
        assert info.index_kind == "ivf_pq"
        ceilings = [point.mean_recall for point in info.calibration if point.lists == info.lists]
        assert min(ceilings) >= CEILING

    on_server(folder, tmp_path, body)


@pytest.mark.parametrize("target", [Exact(), Budget(4), MeanRecall(0.9)])
@pytest.mark.parametrize("conditions", [[], [Membership("category", ("c1", "c2"), False)]])
def test_a_row_of_a_batch_gets_the_answer_it_gets_alone(
    world: World, snapshot: Snapshot, target: Exact | Budget | MeanRecall, conditions: list[Membership]
) -> None:
    together = search(snapshot, query(world.queries[:40], 20, target, conditions), 0, NEVER).rows
    for vector, answer in zip(world.queries[:40], together, strict=True):
        alone = search(snapshot, query(vector, 20, target, conditions), 0, NEVER).rows[0]
        assert np.array_equal(answer.ad_ids, alone.ad_ids)
        assert np.array_equal(answer.similarities, alone.similarities)


def test_changes_are_seen(world: World, snapshot: Snapshot, tmp_path: Path) -> None:
    delta = Delta(snapshot.index, tmp_path, 100)
    vector = world.queries[0]
    best = search(delta.snapshot, query(vector, 3, MeanRecall(0.95)), 0, NEVER).rows[0].ad_ids
    delta.delete(best[:1])
    after = search(delta.snapshot, query(vector, 3, MeanRecall(0.95)), 0, NEVER).rows[0].ad_ids
    assert best[0] not in after
    assert after[:2].tolist() == best[1:].tolist()
    delta.close()


def test_a_stop_model_serves_codes_too(
    world: World, folder: Path, snapshot: Snapshot, tmp_path: Path
) -> None:
    index = snapshot.index
    depth = index.calibration.depth
    model = load_stop_model(train(world, folder, tmp_path / "model"), index.fingerprint, index.lists, depth)
    served = Delta(LoadedIndex(index.contents, model), tmp_path / "delta", 10)
    vectors = asked(world, 900, 3)
    answers = search(served.snapshot, query(vectors, 10, MeanRecall(0.9)), 0, NEVER).rows
    assert sum(answer.stopped == RULE for answer in answers) > 300
    assert np.mean([recall(world, a, v, 10) for a, v in zip(answers, vectors, strict=True)]) > 0.87
    chosen = model.choose(10, 0.9)
    assert chosen is not None
    fixed = search(served.snapshot, query(vectors, 10, Budget(chosen.point.lists)), 0, NEVER).rows
    assert sum(a.codes_scanned for a in answers) < 0.9 * sum(a.codes_scanned for a in fixed)
    served.close()


def test_the_summary_tells_the_ceiling(folder: Path) -> None:
    index = load_folder(folder)
    table = index.calibration
    shown = describe(Built(index.kind, 8, index.size, 16, index.lists, table, 1.0, 2.0), 0.5)
    assert "ivf_pq, 8 bytes an ad" in shown
    assert f"{table.ceiling(10):.4f}" in shown
    table.mean_recall[:] = np.minimum(table.mean_recall, 0.998)
    assert "above ceiling" in describe(Built(index.kind, 8, 1, 16, index.lists, table, 1.0, 2.0), 0.5)


def test_too_few_ads_for_codes_are_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="200 ads: a quantized index needs at least 1024; build ivf_flat"):
        make_world(200).build(tmp_path / "index", kind="ivf_pq")
    assert list(tmp_path.iterdir()) == []
