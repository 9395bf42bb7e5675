"""The retrieval service over real sockets."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from grpc import StatusCode
from retrieval.small_world import Served, World, exact, make_world, on_server, refused, refused_with_info

from frugalads.retrieval.v1 import retrieval_pb2 as pb

INVALID = StatusCode.INVALID_ARGUMENT
NAN, INF = float("nan"), float("inf")


def search(vector: np.ndarray, k: int = 5, **fields: Any) -> pb.SearchRequest:
    return pb.SearchRequest(vector=vector, k=k, **fields)


def condition(field: str, **test: Any) -> pb.Filter:
    return pb.Filter(conditions=[pb.Condition(field=field, **test)])


def strings(*values: str) -> pb.StringSet:
    return pb.StringSet(values=values)


def test_exact_answers_equal_brute_force(world: World, index_folder: Path, tmp_path: Path) -> None:
    async def body(live: Served) -> None:
        for vector in world.queries[:20]:
            answer = await live.api.Search(search(3 * vector, 10, target=exact()))
            ids, similarities = world.nearest(vector, 10)
            assert list(answer.ad_ids) == ids
            assert np.allclose(answer.similarities, similarities, atol=1e-5)
            assert answer.stop_reason == pb.STOP_REASON_EXHAUSTED
            assert (answer.predicted_recall, answer.truncated, list(answer.degraded_reasons)) == (
                1,
                False,
                [],
            )
            assert answer.work.codes_scanned == len(world.ad_ids)
            timings = answer.timings
            assert timings.total_us >= timings.queue_us + timings.filter_us + timings.scan_us
            assert timings.scan_us > 0

    on_server(index_folder, tmp_path, body)


def test_targets_choose_the_work_and_say_so(world: World, index_folder: Path, tmp_path: Path) -> None:
    async def body(live: Served) -> None:
        vector = world.queries[0]
        default = await live.api.Search(search(vector, 100))
        low = await live.api.Search(search(vector, 100, target=pb.Target(mean_recall=0.75)))
        one = await live.api.Search(search(vector, 5, target=pb.Target(budget=pb.Budget(lists=1))))
        share = pb.Target(coverage=pb.Coverage(recall=0.99, share=0.9))
        covered = await live.api.Search(search(vector, 100, target=share))
        for answer, floor in ((default, 0.9), (low, 0.75)):
            assert list(answer.degraded_reasons) == [pb.DEGRADED_REASON_FIXED_BUDGET]
            assert answer.stop_reason == pb.STOP_REASON_BUDGET
            assert answer.predicted_recall >= floor
            assert answer.work.lists_visited >= answer.work.lists_planned
        assert low.work.lists_visited < default.work.lists_visited <= covered.work.lists_visited
        assert (one.work.lists_visited, list(one.degraded_reasons)) == (1, [])
        assert 0 < one.predicted_recall < 1

    on_server(index_folder, tmp_path, body, default_recall=0.9)


def test_filters_admit_only_what_they_say(world: World, index_folder: Path, tmp_path: Path) -> None:
    async def body(live: Served) -> None:
        row_of = {int(ad_id): row for row, ad_id in enumerate(world.ad_ids)}
        for filter_, holds in (
            (condition("category", any_of=strings("c1", "c2")), lambda c, p: c in ("c1", "c2")),
            (condition("category", none_of=strings("c1")), lambda c, p: c != "c1"),
            (
                condition("product_price_usd", range=pb.NumericRange(min=10, max=50)),
                lambda c, p: 10 <= p <= 50,
            ),
            (condition("product_price_usd", range=pb.NumericRange(max=50)), lambda c, p: p <= 50),
            (condition("product_price_usd", range=pb.NumericRange()), lambda c, p: p == p),
        ):
            answer = await live.api.Search(search(world.queries[0], 1000, filter=filter_))
            assert len(answer.ad_ids)
            for ad_id in answer.ad_ids:
                row = row_of[ad_id]
                assert holds(world.strings["category"][row], world.numbers["product_price_usd"][row])

    on_server(index_folder, tmp_path, body, exact_below=0)


def test_a_batch_answers_each_row_as_alone(world: World, index_folder: Path, tmp_path: Path) -> None:
    async def body(live: Served) -> None:
        target = pb.Target(budget=pb.Budget(lists=3))
        request = pb.SearchBatchRequest(vectors=world.queries[:9].ravel(), count=9, k=4, target=target)
        batch = await live.api.SearchBatch(request)
        alone = [await live.api.Search(search(vector, 4, target=target)) for vector in world.queries[:9]]
        assert [list(r.ad_ids) for r in batch.results] == [list(r.ad_ids) for r in alone]
        assert [list(r.similarities) for r in batch.results] == [list(r.similarities) for r in alone]
        assert [r.work for r in batch.results] == [r.work for r in alone]

    on_server(index_folder, tmp_path, body)


def test_bad_input_names_field_value_and_limit(world: World, index_folder: Path, tmp_path: Path) -> None:
    good = world.queries[0]
    price, category = "product_price_usd", "category"
    bad_float = good.copy()
    bad_float[3] = np.nan
    big = np.full(16, 3e38, dtype=np.float32)
    searches = [
        (search(good[:-1]), "vector: 15 is not 16 numbers"),
        (search([]), "vector: 0 is not 16 numbers"),
        (search(bad_float), "vector[3]: nan is not a finite number"),
        (search(np.full(16, np.inf)), "vector[0]: inf is not a finite number"),
        (search(np.zeros(16)), "vector: 'zeros' is not a vector of non-zero length"),
        (search(good, 0), "k: 0 is not in 1..1000"),
        (search(good, -1), "k: -1 is not in 1..1000"),
        (search(good, 1001), "k: 1001 is not in 1..1000"),
        (search(good, target=pb.Target()), "target.kind: None is not one of"),
        (search(good, target=pb.Target(mean_recall=0)), "target.mean_recall: 0.0 is not above 0"),
        (search(good, target=pb.Target(mean_recall=NAN)), "target.mean_recall: nan is not above 0"),
        (search(good, target=pb.Target(mean_recall=1.01)), "target.mean_recall: 1.01 is not above 0"),
        (search(good, target=pb.Target(budget=pb.Budget())), "target.budget.lists: 0 is not in 1..51"),
        (
            search(good, target=pb.Target(budget=pb.Budget(lists=52))),
            "target.budget.lists: 52 is not in 1..51",
        ),
        (
            search(good, target=pb.Target(coverage=pb.Coverage(recall=0.9, share=1))),
            "target.coverage.share: 1.0 is not above 0 and below 1",
        ),
        (
            search(good, target=pb.Target(coverage=pb.Coverage(share=0.9))),
            "target.coverage.recall: 0.0 is not above 0",
        ),
        (
            search(good, filter=condition("colour", any_of=strings("red"))),
            "filter.conditions[0].field: 'colour' is not one of advertiser, category, product_price_usd",
        ),
        (search(good, filter=condition(category)), "filter.conditions[0].test: None is not one of"),
        (
            search(good, filter=condition(category, range=pb.NumericRange(min=1))),
            "filter.conditions[0].range: 'category' is not a numeric field",
        ),
        (
            search(good, filter=condition(price, any_of=strings("1"))),
            "filter.conditions[0].any_of: 'product_price_usd' is not a string field",
        ),
        (
            search(good, filter=condition(category, none_of=strings())),
            "filter.conditions[0].none_of.values: 0 is not 1..1000 values",
        ),
        (
            search(good, filter=condition(category, any_of=strings(*map(str, range(1001))))),
            "filter.conditions[0].any_of.values: 1001 is not 1..1000 values",
        ),
        (
            search(good, filter=condition(price, range=pb.NumericRange(min=NAN))),
            "filter.conditions[0].range.min: nan is not a number",
        ),
        (
            search(good, filter=condition(price, range=pb.NumericRange(min=2, max=1))),
            "filter.conditions[0].range.min: 2.0 is not at most max, 1.0",
        ),
        (
            search(good, filter=pb.Filter(conditions=[pb.Condition(field=category)] * 17)),
            "filter.conditions: 17 is not 0..16 conditions",
        ),
    ]
    two = np.concatenate((good, bad_float))
    batches = [
        (pb.SearchBatchRequest(vectors=good, count=0, k=1), "count: 0 is not in 1..64"),
        (pb.SearchBatchRequest(vectors=good, count=65, k=1), "count: 65 is not in 1..64"),
        (
            pb.SearchBatchRequest(vectors=good, count=2, k=1),
            "vectors: 16 is not 2 x 16 = 32 numbers",
        ),
        (pb.SearchBatchRequest(vectors=two, count=2, k=1), "vectors[19]: nan is not a finite number"),
        (
            pb.SearchBatchRequest(vectors=[*good, *[0] * 16], count=2, k=1),
            "vectors[16:32]: 'zeros' is not a vector of non-zero length",
        ),
        (
            pb.SearchBatchRequest(vectors=two, count=20, k=1000),
            "count: 20000 is not at most 16384 results in all",
        ),
    ]

    def upsert(**fields: Any) -> pb.UpsertRequest:
        return pb.UpsertRequest(ads=[pb.IndexedAd(**{"ad_id": 1, "vector": good, **fields})])

    twice = pb.IndexedAd(ad_id=4, vector=good)
    upserts = [
        (pb.UpsertRequest(), "ads: 0 is not 1..64 ads"),
        (pb.UpsertRequest(ads=[twice] * 65), "ads: 65 is not 1..64 ads"),
        (pb.UpsertRequest(ads=[twice, twice]), "ads[1].ad_id: 4 is not distinct within the request"),
        (upsert(ad_id=0), "ads[0].ad_id: 0 is not a positive number"),
        (upsert(vector=good[:3]), "ads[0].vector: 3 is not 16 numbers"),
        (upsert(vector=bad_float), "ads[0].vector[3]: nan is not a finite number"),
        (
            upsert(attributes={"colour": "red"}),
            "ads[0].attributes: 'colour' is not a string field of the index",
        ),
        (upsert(attributes={price: "red"}), "ads[0].attributes: 'product_price_usd' is not a string field"),
        (
            upsert(attributes={category: "x" * 1025}),
            "ads[0].attributes[category]: 1025 is not at most 1024 characters",
        ),
        (upsert(numbers={category: 1.0}), "ads[0].numbers: 'category' is not a numeric field of the index"),
        (upsert(numbers={price: INF}), "ads[0].numbers[product_price_usd]: inf is not a finite number"),
    ]
    deletes = [
        (pb.DeleteRequest(), "ad_ids: 0 is not 1..1000 ids"),
        (pb.DeleteRequest(ad_ids=range(1001)), "ad_ids: 1001 is not 1..1000 ids"),
    ]

    async def body(live: Served) -> None:
        for method, cases in (
            (live.api.Search, searches),
            (live.api.SearchBatch, batches),
            (live.api.Upsert, upserts),
            (live.api.Delete, deletes),
            (
                live.admin.SwapIndex,
                [(pb.SwapIndexRequest(), "path: '' is not the folder of an index bundle")],
            ),
        ):
            for request, said in cases:
                code, _, info = await refused_with_info(method(request))
                assert (code, info.reason) == (INVALID, "INVALID_FIELD")
                field, rest = said.split(": ", 1)
                value, limit = rest.split(" is not ", 1)
                assert (info.metadata["field"], info.metadata["value"]) == (field, value)
                assert info.metadata["limit"].startswith(limit)
        assert (await live.api.Search(search(big))).ad_ids, "large finite numbers are fine"
        assert (await live.api.GetInfo(pb.GetInfoRequest())).versions.delta_sequence == 0

    on_server(index_folder, tmp_path, body)


def test_changes_are_seen_at_once_and_after_a_restart(
    world: World, index_folder: Path, tmp_path: Path
) -> None:
    vector = -world.queries[0]
    old, gone = int(world.ad_ids[0]), int(world.ad_ids[1])

    async def change(live: Served) -> None:
        ads = [
            pb.IndexedAd(ad_id=9_000, vector=5 * vector, attributes={"category": "fresh"}),
            pb.IndexedAd(ad_id=old, vector=vector, numbers={"product_price_usd": 3}),
        ]
        assert (await live.api.Upsert(pb.UpsertRequest(ads=ads))).delta_sequence == 1
        deleted = await live.api.Delete(pb.DeleteRequest(ad_ids=[gone, gone, 77_777]))
        assert (deleted.delta_sequence, deleted.deleted) == (2, 1)
        nothing = await live.api.Delete(pb.DeleteRequest(ad_ids=[77_777]))
        assert (nothing.delta_sequence, nothing.deleted) == (2, 0)
        await check(live)

    async def check(live: Served) -> None:
        top = await live.api.Search(search(vector, 3, target=pb.Target(budget=pb.Budget(lists=1))))
        assert list(top.ad_ids[:2]) == sorted([9_000, old])
        assert top.versions.delta_sequence == 2
        fresh = await live.api.Search(
            search(vector, 3, filter=condition("category", any_of=strings("fresh")))
        )
        assert (list(fresh.ad_ids), fresh.truncated) == ([9_000], True)
        everything = await live.api.Search(search(world.vectors[1], 1000, target=exact()))
        assert gone not in everything.ad_ids
        info = await live.api.GetInfo(pb.GetInfoRequest())
        assert info.ads == len(world.ad_ids)

    on_server(index_folder, tmp_path, change)
    on_server(index_folder, tmp_path, check)


def test_a_full_delta_says_what_to_do(world: World, index_folder: Path, tmp_path: Path) -> None:
    def upsert(first: int, count: int) -> pb.UpsertRequest:
        ads = [pb.IndexedAd(ad_id=first + i, vector=world.queries[i]) for i in range(count)]
        return pb.UpsertRequest(ads=ads)

    async def body(live: Served) -> None:
        await live.api.Upsert(upsert(5_000, 3))
        code, message, reason = await refused(live.api.Upsert(upsert(6_000, 3)))
        assert (code, reason) == (StatusCode.RESOURCE_EXHAUSTED, "DELTA_FULL")
        assert "3 of 5 changes" in message
        assert "rebuild the index" in message
        answer = await live.api.Search(search(world.queries[0], 1000, target=exact()))
        assert not {6_000, 6_001, 6_002} & set(answer.ad_ids), "all or nothing"
        assert (await live.api.Upsert(upsert(7_000, 2))).delta_sequence == 2

    on_server(index_folder, tmp_path, body, max_delta=5)


@pytest.mark.parametrize("target", [pb.Target(mean_recall=0.9), exact()])
def test_an_empty_index_answers_shortly_and_says_so(tmp_path: Path, target: pb.Target) -> None:
    world = make_world(60, d=4, copies=0)
    folder = world.build(tmp_path / "index")

    async def body(live: Served) -> None:
        request = search(world.queries[0], 7, target=target)
        await live.api.Delete(pb.DeleteRequest(ad_ids=world.ad_ids))
        for left in range(3):
            answer = await live.api.Search(request)
            assert (len(answer.ad_ids), answer.truncated) == (left, True)
            assert (await live.api.GetInfo(pb.GetInfoRequest())).ads == left
            ad = pb.IndexedAd(ad_id=int(world.ad_ids[left]), vector=world.vectors[left])
            await live.api.Upsert(pb.UpsertRequest(ads=[ad]))

    on_server(folder, tmp_path / "delta", body)


def test_info_tells_versions_fields_calibration_and_limits(
    world: World, index_folder: Path, tmp_path: Path
) -> None:
    async def body(live: Served) -> None:
        info = await live.api.GetInfo(pb.GetInfoRequest())
        assert (info.index_kind, info.encoder, info.dimension) == ("ivf_flat", "encoder-1", 16)
        assert (info.ads, info.lists) == (2000, 51)
        fields = {field.name: field.numeric for field in info.filter_fields}
        assert fields == {"advertiser": False, "category": False, "product_price_usd": True}
        full = [p for p in info.calibration if p.lists == info.lists]
        assert {p.k for p in full} == {1, 10, 50, 100, 200, 500, 1000}
        assert all(p.mean_recall == pytest.approx(1) for p in full)
        assert (info.limits.max_k, info.limits.max_batch, info.limits.max_delete) == (77, 64, 1000)
        assert len(info.versions.index) == 32
        assert info.versions.model == ""

    on_server(index_folder, tmp_path, body, max_k=77)


def test_a_passed_deadline_ends_the_call(world: World, index_folder: Path, tmp_path: Path) -> None:
    async def body(live: Served) -> None:
        gate = threading.Event()
        live.server._searchers.submit(gate.wait)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await live.api.Search(search(world.queries[0]), timeout=0.1)
        assert caught.value.code() is StatusCode.DEADLINE_EXCEEDED
        gate.set()
        assert (await live.api.Search(search(world.queries[0]))).ad_ids

    on_server(index_folder, tmp_path, body, threads=1)


def test_an_index_is_swapped_beside_searches_and_the_old_one_is_freed(
    world: World, index_folder: Path, tmp_path: Path
) -> None:
    bigger = make_world(2500, seed=9)
    other = bigger.build(tmp_path / "other")
    sizes = {}

    async def body(live: Served) -> None:
        before = weakref.ref(live.server._current().snapshot.index)
        await live.api.Upsert(pb.UpsertRequest(ads=[pb.IndexedAd(ad_id=9_999, vector=world.queries[0])]))
        stop = asyncio.Event()

        async def searching() -> int:
            count = 0
            while not stop.is_set():
                answer = await live.api.Search(search(world.queries[count % 200], 5, target=exact()))
                sizes.setdefault(answer.versions.index, answer.work.codes_scanned)
                assert answer.work.codes_scanned == sizes[answer.versions.index]
                count += 1
            return count

        searchers = [asyncio.create_task(searching()) for _ in range(4)]
        for path in (other, index_folder, other):
            swapped = await live.admin.SwapIndex(pb.SwapIndexRequest(path=str(path)))
            assert swapped.previous.index != swapped.current.index
            answer = await live.api.Search(search(world.queries[0], 5, target=exact()))
            assert answer.versions.index == swapped.current.index
            # The change of the first index is bound to it: there again when it is, and nowhere else.
            assert answer.versions.delta_sequence == (1 if path == index_folder else 0)
        stop.set()
        assert min(await asyncio.gather(*searchers)) > 0
        assert set(sizes.values()) == {2001, 2500}
        again = await live.admin.SwapIndex(pb.SwapIndexRequest(path=str(other)))
        assert again.previous == again.current
        gc.collect()
        assert before() is None, "the old index is still held"

    on_server(index_folder, tmp_path / "delta", body)


def test_a_bad_index_is_refused_and_the_current_one_stays(
    world: World, index_folder: Path, tmp_path: Path
) -> None:
    altered = tmp_path / "altered"
    shutil.copytree(index_folder, altered)
    with (altered / "vectors.faiss").open("r+b") as file:
        file.seek(100_000)
        file.write(b"\x00\x01\x02")
    stranger = make_world(200)
    stranger.encoder = "encoder-2"
    stranger.build(tmp_path / "stranger")

    async def body(live: Served) -> None:
        for path, expected, said in (
            (altered, "INDEX_REJECTED", "vectors.faiss: its SHA-256 differs"),
            (tmp_path / "nothing", "INDEX_REJECTED", "no such bundle"),
            (tmp_path / "stranger", "ENCODER_MISMATCH", "encoder encoder-2, not of encoder-1"),
        ):
            code, message, reason = await refused(live.admin.SwapIndex(pb.SwapIndexRequest(path=str(path))))
            assert (code, reason) == (StatusCode.FAILED_PRECONDITION, expected)
            assert said in message
        assert (await live.api.Search(search(world.queries[0], target=exact()))).work.codes_scanned == 2000

    on_server(index_folder, tmp_path / "delta", body)


def test_memory_stays_flat_over_many_searches(world: World, index_folder: Path, tmp_path: Path) -> None:
    rounds = 20 if os.environ.get("FRUGALADS_DRILL") else 1
    process = psutil.Process()

    async def body(live: Served) -> None:
        conditions = condition("category", none_of=strings("c1"))
        batch = pb.SearchBatchRequest(
            vectors=world.queries[:64].ravel(), count=64, k=50, filter=conditions, target=exact()
        )

        async def burst(count: int) -> None:
            for _ in range(count):
                await asyncio.gather(*(live.api.SearchBatch(batch) for _ in range(4)))

        await burst(10)
        gc.collect()
        before = process.memory_info().rss
        started = time.monotonic()
        await burst(40 * rounds)
        gc.collect()
        grown = process.memory_info().rss - before
        assert grown < 24 << 20, f"{grown} bytes after {time.monotonic() - started:.1f} s"

    on_server(index_folder, tmp_path, body, exact_below=0)
