"""Training and calibration of the stop rules, end to end on a small index."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from small_ivf import LISTS, Small, exact, flat, quantized

from models.termination.calibration import Family, Target, cap_of, fixed_lists, points, served
from models.termination.gain import design, examples, fit_start, rungs_of, train
from models.termination.labels import nearest_distances
from models.termination.training import KIND, Trained, split, train_termination, write_termination
from services.core.ivf.scan import ROW_CODES, ROW_LISTS
from services.core.ivf.search import search
from services.core.stopping import marginal
from services.core.stopping.replay import Trace
from services.core.stopping.rules import FIXED
from services.core.stopping.state import AHEAD, SLOTS, next_rung
from services.core.stopping.table import Point, Table
from services.runtime.bundles import open_bundle
from services.runtime.errors import BundleError, UserError
from services.runtime.forests import open_forest

TARGETS = (Target(0.9), Target(0.97), Target(0.9, 0.8))


def asked(small: Small, count: int, seed: int) -> np.ndarray:
    """Queries distributed as those of the small index."""
    rng = np.random.default_rng(seed)
    rows = small.vectors[rng.integers(0, len(small.vectors), count)]
    noisy: np.ndarray = (rows + 0.5 * rng.standard_normal(rows.shape)).astype(np.float32)
    return noisy


@cache
def trained(kind: str) -> Trained:
    small, depth = (flat(), 0) if kind == "flat" else (quantized(), 40)
    return train_termination(
        small.lists,
        small.vectors,
        asked(small, 1500, 1),
        (1, 10),
        TARGETS,
        3,
        lambda *_: None,
        depth=depth,
        width=LISTS,
    )


def test_labels_are_the_exact_distances_and_count_ties() -> None:
    small = flat()
    queries = asked(small, 300, 2)
    limits = nearest_distances(queries, small.vectors, (1, 10))
    squares = np.sort(exact(small, queries), axis=1)
    for row, k in enumerate((1, 10)):
        assert (squares[:, k - 1] <= limits[row]).all()
        assert ((squares <= limits[row][:, None]).sum(axis=1) == k).mean() > 0.99
    twice = np.concatenate([small.vectors, small.vectors])
    limits = nearest_distances(queries, twice, (1,))
    assert (((twice[None] - queries[:, None]) ** 2).sum(axis=2) <= limits[0][:, None]).sum(axis=1).min() >= 2
    with pytest.raises(ValueError, match="k = 7000"):
        nearest_distances(queries, small.vectors, (7000,))


def test_the_start_finds_the_terms_that_made_the_counts() -> None:
    rng = np.random.default_rng(0)
    rows = 0.5 * rng.standard_normal((40_000, len(marginal.FEATURES)))
    terms = 0.1 * rng.standard_normal(marginal.TERMS)
    terms[0] = -1.0
    gains = rng.poisson(np.exp(design(rows) @ terms)).astype(float)
    fitted = fit_start(rows, gains)
    np.testing.assert_allclose(fitted, terms, atol=0.12)
    for row in rows[:20]:
        assert marginal.start(row, fitted) == pytest.approx(float((design(row[None]) @ fitted)[0]))


def test_examples_hold_the_gain_up_to_the_next_rung() -> None:
    model_trace = _trace()
    rows, gains = examples(model_trace, 10)
    rungs = rungs_of(model_trace.seen.shape[1])
    assert rungs.tolist()[:6] == [1, 2, 3, 4, 5, 7]
    expected = []
    seen = np.empty(SLOTS)
    for q in range(len(model_trace.seen)):
        for lists in rungs.tolist():
            following = min(next_rung(lists), model_trace.seen.shape[1])
            seen[:] = model_trace.seen[q, lists - 1]
            seen[AHEAD] = model_trace.seen[q, following - 1, 1] - seen[1]
            row = np.empty(len(marginal.FEATURES))
            marginal.features(seen, model_trace.coarse[q], 10.0, row)
            if np.isfinite(row).all():
                gain = model_trace.found[q, following - 1] - model_trace.found[q, lists - 1]
                expected.append([*row, gain])
    np.testing.assert_allclose(np.column_stack([rows, gains]), expected)


def _trace() -> Trace:
    from small_ivf import traced

    return traced(flat(), 10)


def test_the_least_knob_is_where_the_target_is_reached() -> None:
    trace = _trace()
    family = Family("fixed", FIXED, lambda knob: np.array([np.ceil(knob)]), 1.0, float(LISTS))
    for target in TARGETS:
        lists = fixed_lists(trace, 10, target)
        knob = family.least_knob(trace, 10, target, LISTS)
        assert lists is not None
        assert knob is not None
        assert np.ceil(knob) == lists
        assert target.reached(trace.found[:, lists - 1].astype(float) / 10) >= -1e-9
        assert target.reached(trace.found[:, lists - 2].astype(float) / 10) < 0
    assert family.least_knob(trace, 10, Target(0.97), 3) is None


def test_points_save_work_and_keep_their_caps() -> None:
    trace = _trace()
    model = train({10: trace}, 0)
    chosen = points(trace, 10, TARGETS, model)
    assert [(point.recall, point.share) for point in chosen] == [(t.recall, t.share) for t in TARGETS]
    for point, target in zip(chosen, TARGETS, strict=True):
        assert point.rule in ("fixed", "density", "marginal")
        assert point.cap == (point.lists if point.rule == "fixed" else cap_of(point.lists, LISTS))
        codes = trace.seen[:, point.lists - 1, 1].mean()
        assert point.codes <= codes
        if target.share == 0:
            assert point.reached >= target.recall - 1e-9
    assert min(point.codes / trace.seen[:, point.lists - 1, 1].mean() for point in chosen) < 0.97


@pytest.mark.parametrize(
    ("closed", "saved", "spread", "name"),
    [
        ("density", 1.0, 0.0, "marginal"),
        ("ratio", 4.0, 0.0, "ratio"),  # a walk's model costs 5 of 100 besides
        ("ratio", 6.0, 0.0, "marginal"),
        ("ratio", 6.0, 30.0, "ratio"),  # within chance
        ("ratio", -6.0, 0.0, "ratio"),
    ],
)
def test_the_cheapest_rule_serves_and_in_walks_a_model_must_earn_its_cost(
    closed: str, saved: float, spread: float, name: str
) -> None:
    other = np.full(400, 100.0)
    learned = other - saved + spread * np.where(np.arange(400) % 2, 1.0, -1.0)
    reached = [("fixed", np.full(400, 150.0)), (closed, other), ("marginal", learned)]
    assert reached[served(reached)][0] == name


@pytest.mark.parametrize("kind", ["flat", "quantized"])
def test_a_trained_bundle_serves_its_targets(kind: str, tmp_path: Path) -> None:
    small, result = (flat() if kind == "flat" else quantized()), trained(kind)
    write_termination(tmp_path / "model", result, "f00d", {"seed": 3})
    loaded = open_forest(tmp_path / "model", KIND, feature_names=marginal.FEATURES)
    table = Table.of_bundle(loaded.meta, "f00d", LISTS)
    assert table == result.table
    queries = asked(small, 1000, 9)
    squares = np.sort(exact(small, queries), axis=1)
    for k in (1, 10):
        point = table.point(k, 0.9)
        assert point is not None
        found = search(small.lists, queries, k, table.policy(point, loaded.forest.arrays))
        limit = squares[:, k - 1] * (1 + 1e-5)
        recall = (found.distances <= limit[:, None]).sum(axis=1).mean() / k
        assert recall == pytest.approx(0.9, abs=0.03)
        assert found.work[:, ROW_LISTS].max() <= point.cap
        assert found.work[:, ROW_CODES].mean() == pytest.approx(point.codes, rel=0.1)
    for reached in result.achieved:
        assert reached.low <= reached.recall <= reached.high
        if reached.point.share:
            assert reached.coverage == pytest.approx(reached.point.share, abs=0.07)
        else:
            assert reached.recall == pytest.approx(reached.point.recall, abs=0.03)


def test_training_is_repeatable() -> None:
    small = flat()
    again = train_termination(
        small.lists, small.vectors, asked(small, 1500, 1), (1, 10), TARGETS, 3, lambda *_: None, width=LISTS
    )
    assert again.table == trained("flat").table
    assert again.model.model == trained("flat").model.model


def test_a_model_for_another_index_is_refused(tmp_path: Path) -> None:
    write_termination(tmp_path / "model", trained("flat"), "f00d", {})
    meta = open_bundle(tmp_path / "model", KIND, max_bytes=1 << 24).meta
    with pytest.raises(ValueError, match="trained for 'f00d', this one is 'beef'"):
        Table.of_bundle(meta, "beef", LISTS)
    with pytest.raises(ValueError, match=r"lists and cap must be 1\.\.2"):
        Table.of_bundle(meta, "f00d", 2)
    with pytest.raises(BundleError, match="feature 0"):
        open_forest(tmp_path / "model", KIND, feature_names=("x", *marginal.FEATURES[1:]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"points": 3}, "table of stop policies"),
        ({"starts": {"1": [0.0], "10": [0.0]}}, "terms"),
        ({"band": -1.0}, "band"),
        ({"depth": -1}, "depth"),
    ],
)
def test_a_table_that_is_not_one_is_refused(change: dict[str, object], message: str) -> None:
    document = trained("flat").table.to_json()
    with pytest.raises(ValueError, match=message):
        Table.from_json({**document, **change}, LISTS)


@pytest.mark.parametrize(
    "change",
    [
        {"cap": 0},
        {"cap": LISTS + 1},
        {"lists": 1.5},
        {"k": 0},
        {"recall": 1.2},
        {"share": 1.0},
        {"rule": "laet"},
        {"log_threshold": float("nan")},
        {"reached": 2.0},
        {"colour": 1},
    ],
)
def test_a_point_that_is_not_one_is_refused(change: dict[str, object]) -> None:
    document = trained("flat").table.to_json()
    document["points"][0] = {**document["points"][0], **change}
    with pytest.raises(ValueError, match=r"table of stop policies|must be|out of range|integers|finite"):
        Table.from_json(document, LISTS)


def test_the_point_of_a_request_promises_no_less() -> None:
    def point(k: int, recall: float, share: float = 0.0) -> Point:
        return Point(k, recall, share, 5, "fixed", 0.0, 0.0, 0.0, 5, recall, 1.0)

    table = Table((point(1, 0.9), point(10, 0.9), point(10, 0.99), point(10, 0.9, 0.8)), {}, 0.0, 0)
    assert table.point(1, 0.9) == point(1, 0.9)
    assert table.point(1, 0.95) == point(10, 0.99)
    assert table.point(7, 0.85) == point(10, 0.9)
    assert table.point(10, 0.9, 0.7) == point(10, 0.9, 0.8)
    assert table.point(10, 0.9, 0.9) is None
    assert table.point(11, 0.9) is None
    assert table.point(10, 0.995) is None


def test_too_few_queries_are_refused() -> None:
    small = flat()
    with pytest.raises(UserError, match="at least 300"):
        train_termination(small.lists, small.vectors, small.queries, (1,), TARGETS, 0, lambda *_: None)


def test_the_parts_of_a_split_are_disjoint() -> None:
    parts = split(1001, 4)
    assert sorted(np.concatenate(parts).tolist()) == list(range(1001))
    assert [len(part) for part in parts] == [400, 300, 301]
