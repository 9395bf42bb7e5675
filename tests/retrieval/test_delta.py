"""Live changes: a state machine against a dictionary, durability, bounds, isolation of snapshots."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from retrieval.small_world import NEVER, World, load_folder, make_world, query, unit

from services.retrieval.attributes import Membership, Range
from services.retrieval.delta import Ad, Delta
from services.retrieval.index import LoadedIndex
from services.retrieval.plan import Budget, Exact
from services.retrieval.search import EXHAUSTED, search
from services.runtime.errors import ResourceExhausted, UserError

MAX_CHANGES = 40


def ad(world: World, ad_id: int, seed: int, category: str | None = "c1", price: float | None = 9.5) -> Ad:
    rng = np.random.default_rng(seed)
    vector = unit(rng.standard_normal((1, world.vectors.shape[1])))[0]
    strings = {} if category is None else {"category": category}
    return Ad(ad_id, vector, strings, {} if price is None else {"product_price_usd": price})


class DeltaMachine(RuleBasedStateMachine):
    """Upserts, deletes, reopening; after each step every search agrees with a plain dictionary."""

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.world = make_world(120, d=6, copies=5)
        root = Path(self.folder.name)
        self.index = load_folder(self.world.build(root / "index"))
        self.delta_dir = root / "delta"
        self.delta = Delta(self.index, self.delta_dir, MAX_CHANGES)
        self.changes = 0
        self.model = {
            int(ad_id): (
                self.world.vectors[row],
                self.world.strings["category"][row],
                self.world.numbers["product_price_usd"][row],
            )
            for row, ad_id in enumerate(self.world.ad_ids)
        }
        self.step = 0
        self.old: list[tuple[object, list[int]]] = []

    @rule(
        ids=st.lists(st.integers(1, 140), min_size=1, max_size=4, unique=True),
        category=st.sampled_from([None, "c1", "c2", "new"]),
        price=st.sampled_from([None, 1.0, 100.0]),
    )
    def upsert(self, ids: list[int], category: str | None, price: float | None) -> None:
        self.step += 1
        ads = [ad(self.world, ad_id, 1000 * self.step + ad_id, category, price) for ad_id in ids]
        before = self.delta.snapshot
        if self.changes + len(ads) > MAX_CHANGES:
            with pytest.raises(ResourceExhausted, match="rebuild the index"):
                self.delta.upsert(ads)
            assert self.delta.snapshot is before
            return
        assert self.delta.upsert(ads) == before.sequence + 1
        self.changes += len(ads)
        for one in ads:
            self.model[one.ad_id] = (one.vector, category, np.nan if price is None else price)

    @rule(ids=st.lists(st.integers(1, 140), min_size=1, max_size=6))
    def delete(self, ids: list[int]) -> None:
        known = {ad_id for ad_id in ids if ad_id in self.model}
        before = self.delta.snapshot
        if known and self.changes + len(known) > MAX_CHANGES:
            with pytest.raises(ResourceExhausted):
                self.delta.delete(np.array(ids))
            return
        sequence, deleted = self.delta.delete(np.array(ids))
        assert (sequence, deleted) == (before.sequence + bool(known), len(known))
        self.changes += len(known)
        for ad_id in known:
            del self.model[ad_id]

    @rule()
    def reopen(self) -> None:
        sequence = self.delta.snapshot.sequence
        self.delta.close()
        self.delta = Delta(self.index, self.delta_dir, MAX_CHANGES)
        assert (self.delta.snapshot.sequence, self.delta.torn_bytes) == (sequence, 0)

    @rule()
    def keep_a_snapshot(self) -> None:
        self.old.append((self.delta.snapshot, sorted(self.model)))
        del self.old[:-3]

    @invariant()
    def searches_agree_with_the_model(self) -> None:
        snapshot = self.delta.snapshot
        assert (snapshot.ads, snapshot.changes) == (len(self.model), self.changes)
        vector = self.world.queries[self.step % 50]
        admits = {
            (): lambda category, price: True,
            (Membership("category", ("c1", "new"), False),): lambda c, p: c in ("c1", "new"),
            (Membership("category", ("c1",), True), Range("product_price_usd", 5, 200)): (
                lambda c, p: c != "c1" and 5 <= p <= 200
            ),
        }
        for conditions, admit in admits.items():
            model = {i: v for i, (v, c, p) in self.model.items() if admit(c, p)}
            exact = sorted(model, key=lambda i: (-float(model[i].astype(float) @ vector), i))
            for target in (Exact(), Budget(1)):
                answer = search(snapshot, query(vector, 7, target, conditions), 0, NEVER).rows[0]
                assert set(answer.ad_ids.tolist()) <= model.keys()
                assert len(answer.ad_ids) == min(7, len(model))
                for ad_id, similarity in zip(answer.ad_ids.tolist(), answer.similarities, strict=True):
                    assert similarity == pytest.approx(float(model[ad_id] @ vector), abs=1e-5)
                if answer.stopped == EXHAUSTED:
                    floor = float(model[exact[: len(answer.ad_ids)][-1]] @ vector) if model else 0
                    assert (answer.similarities >= floor - 1e-5).all()

    @invariant()
    def old_snapshots_never_change(self) -> None:
        for snapshot, ids in self.old:
            answer = search(snapshot, query(self.world.queries[0], 200, Exact()), 0, NEVER).rows[0]
            assert sorted(answer.ad_ids.tolist()) == ids

    def teardown(self) -> None:
        if hasattr(self, "delta"):
            self.delta.close()
            self.folder.cleanup()


TestDeltaMachine = DeltaMachine.TestCase
TestDeltaMachine.settings = settings(max_examples=15, stateful_step_count=15)


def test_an_upsert_is_in_the_log_before_it_is_answered(
    world: World, index: LoadedIndex, tmp_path: Path
) -> None:
    delta = Delta(index, tmp_path, 10)
    delta.upsert([ad(world, 5_000, 1, "brand new", None)])
    copy = tmp_path / "copy"
    copy.mkdir()
    (log,) = tmp_path.glob("*.log")
    (copy / log.name).write_bytes(log.read_bytes())
    again = Delta(index, copy, 10)
    conditions = [Membership("category", ("brand new",), False)]
    for snapshot in (delta.snapshot, again.snapshot):
        answer = search(snapshot, query(world.queries[0], 3, Exact(), conditions), 0, NEVER).rows[0]
        assert answer.ad_ids.tolist() == [5_000]
    assert np.array_equal(delta.snapshot.vectors, again.snapshot.vectors)
    delta.close()
    again.close()


def test_a_lowered_limit_keeps_what_is_stored_and_refuses_more(
    world: World, index: LoadedIndex, tmp_path: Path
) -> None:
    delta = Delta(index, tmp_path, 10)
    delta.upsert([ad(world, 5_000 + i, i) for i in range(8)])
    delta.close()
    delta = Delta(index, tmp_path, 4)
    assert (delta.snapshot.ads, delta.snapshot.changes) == (index.size + 8, 8)
    with pytest.raises(ResourceExhausted, match="holds 8 of 4 changes"):
        delta.upsert([ad(world, 6_000, 1)])
    delta.close()


def test_a_log_whose_changes_do_not_fit_the_index_is_refused(
    world: World, index: LoadedIndex, tmp_path: Path
) -> None:
    delta = Delta(index, tmp_path, 10)
    bad = ad(world, 5_000, 1)
    delta._journal.append(b"U" + b"\xff\xff\xff")
    delta.close()
    with pytest.raises(UserError, match="a record cannot be read"):
        Delta(index, tmp_path, 10)
    other = tmp_path / "other"
    delta = Delta(index, other, 10)
    with pytest.raises(KeyError):
        delta.upsert([Ad(bad.ad_id, bad.vector, {"colour": "red"}, {})])
    delta.close()
    with pytest.raises(UserError, match="does not fit its index"):
        Delta(index, other, 10)
