"""faiss #3321, #2204, #3090; knowhere #402; go-faiss PR #32: search parameters under threads.

When nprobe is a field of the index, or a parameters object or selector is shared, threads get each other's
budgets and filters, and sometimes a crash. Here every call has its own.
"""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
from retrieval.small_world import NEVER, World, load_folder, make_world, query

from services.retrieval.attributes import Membership, Range
from services.retrieval.delta import Delta, Snapshot
from services.retrieval.kernels import faiss, use_one_thread
from services.retrieval.plan import Budget, Exact
from services.retrieval.search import Answer, search

FILTERS = [
    (),
    (Membership("category", ("c1", "c2"), False),),
    (Membership("category", ("c1",), True), Range("product_price_usd", 20, 200)),
]


@pytest.fixture(scope="module")
def world() -> World:
    use_one_thread()
    return make_world(3000, d=24, seed=11)


@pytest.fixture(scope="module")
def snapshot(world: World, tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    folder = tmp_path_factory.mktemp("faiss")
    return Delta(load_folder(world.build(folder / "index")), folder / "delta", 10).snapshot


def same(one: Answer, other: Answer) -> bool:
    return (
        np.array_equal(one.ad_ids, other.ad_ids)
        and np.array_equal(one.similarities, other.similarities)
        and (one.lists_visited, one.codes_scanned) == (other.lists_visited, other.codes_scanned)
    )


def test_mixed_budgets_and_filters_from_threads_equal_serial_answers(
    world: World, snapshot: Snapshot
) -> None:
    jobs = [
        (world.queries[i % 200], 1 + i % 30, Exact() if i % 7 == 0 else Budget(1 + i % 50), FILTERS[i % 3])
        for i in range(600)
    ]

    def answer(job: tuple) -> Answer:
        vector, k, target, conditions = job
        return search(snapshot, query(vector, k, target, conditions), 0, NEVER).rows[0]

    serial = [answer(job) for job in jobs]
    stop = threading.Event()
    collector = threading.Thread(target=lambda: [gc.collect() for _ in iter(stop.is_set, True)])
    collector.start()
    with ThreadPoolExecutor(8, initializer=use_one_thread) as pool:
        threaded = list(pool.map(answer, jobs))
    stop.set()
    collector.join()
    wrong = [i for i, pair in enumerate(zip(serial, threaded, strict=True)) if not same(*pair)]
    assert wrong == []


def test_an_all_pass_filter_changes_nothing(world: World, snapshot: Snapshot) -> None:
    """go-faiss PR #32: parameters made for the selector alone reset nprobe to 1."""
    everyone = (Membership("advertiser", ("nobody",), True),)
    for lists in (1, 5, 32):
        for k in (1, 10):
            target = Budget(lists)
            plain = search(snapshot, query(world.queries, k, target), 0, NEVER).rows
            filtered = search(snapshot, query(world.queries, k, target, everyone), 0, NEVER).rows
            assert all(
                same(one, other)
                for one, other in zip(plain, filtered, strict=True)
                if one.lists_visited == lists
            )
            assert sum(one.lists_visited == lists for one in plain) > 100


def test_a_search_starts_no_thread(world: World, snapshot: Snapshot) -> None:
    """faiss #1066, #458, #2170: an OpenMP team for each calling thread, more threads than cores."""
    process = psutil.Process()
    job = query(world.queries[:64], 10, Exact())
    with ThreadPoolExecutor(4, initializer=use_one_thread) as pool:
        barrier = threading.Barrier(4)
        list(pool.map(lambda _: barrier.wait(), range(4)))
        before = process.num_threads()
        for _ in pool.map(lambda _: search(snapshot, job, 0, NEVER), range(40)):
            assert process.num_threads() <= before
        assert pool.submit(faiss.omp_get_max_threads).result() == 1


def test_missing_labels_never_leave_the_index(tmp_path: Path) -> None:
    """faiss #1309, #2657; faiss-serving #4: label -1 of a short answer crashed the id map."""
    world = make_world(90, d=5, copies=0)
    delta = Delta(load_folder(world.build(tmp_path / "index")), tmp_path / "delta", 10)
    for k in (89, 90, 91, 1000):
        for target in (Exact(), Budget(1)):
            answer = search(delta.snapshot, query(world.queries[0], k, target), 0, NEVER).rows[0]
            assert (answer.ad_ids > 0).all()
            assert len(answer.ad_ids) == min(k, 90)
            assert answer.truncated == (k > 90)
    delta.close()
