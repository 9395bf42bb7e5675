"""The evaluator against `predict` of the libraries that trained the models: bit for bit.

Rows are made from what can go wrong: thresholds met exactly and one unit in the last place beside (of float64
and of float32), NaN, infinities, zeros of both signs, denormals, the edges of LightGBM's zero band and of
float32.
"""

from __future__ import annotations

import functools
import json
import math
import sys
from typing import Any

import lightgbm
import numpy as np
import numpy.typing as npt
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st

from services.core.trees import Forest, parse_forest

Floats = npt.NDArray[np.float64]

ZERO_BAND = float(np.float32(1e-35))
FLOAT32_MAX = float(np.finfo(np.float32).max)
SPECIAL = [
    *(math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 5e-324, -5e-324, 1e-40, -1e-40, 1e-36, -1e-36),
    *(ZERO_BAND, -ZERO_BAND, math.nextafter(ZERO_BAND, 1), math.nextafter(-ZERO_BAND, -1), 1.2e-38, 1e-45),
    *(FLOAT32_MAX, -FLOAT32_MAX, FLOAT32_MAX * (1 + 2**-25), 3.5e38, sys.float_info.max, -sys.float_info.max),
]
POSITIVE = {"poisson", "gamma", "tweedie", "reg:gamma", "reg:tweedie", "count:poisson", "reg:squaredlogerror"}
POSITIVE |= {"survival:cox"}
BINARY = {"binary", "cross_entropy", "cross_entropy_lambda", "lambdarank", "reg:logistic", "rank:pairwise"}
BINARY |= {"binary:logistic", "binary:logitraw", "binary:hinge"}
LIGHTGBM_OBJECTIVES = [
    *("regression", "sqrt", "regression_l1", "huber", "fair", "quantile", "mape", "lambdarank"),
    *("binary", "cross_entropy", "cross_entropy_lambda", "poisson", "gamma", "tweedie"),
]
XGBOOST_OBJECTIVES = [
    *("reg:squarederror", "reg:squaredlogerror", "reg:pseudohubererror", "reg:absoluteerror"),
    *("reg:quantileerror", "reg:logistic", "reg:gamma", "reg:tweedie", "count:poisson", "survival:cox"),
    *("binary:logistic", "binary:logitraw", "binary:hinge", "rank:pairwise"),
]


def training_data(rng: np.random.Generator, objective: str) -> tuple[Floats, Floats]:
    features = rng.normal(size=(300, rng.integers(1, 8)))
    features[rng.random(features.shape) < rng.choice([0, 0.2])] = np.nan
    features[rng.random(features.shape) < rng.choice([0, 0.3])] = 0
    if rng.random() < 0.3:
        features = features.round(1)
    label = 2 * np.nan_to_num(features[:, 0]) + rng.normal(size=len(features))
    if objective in BINARY:
        label = (label > 0).astype(float)
    return features, np.abs(label) + 0.01 if objective in POSITIVE else label


def neighbours(value: float) -> list[float]:
    single = np.float32(value)
    beside = (np.nextafter(single, np.float32(sign * np.inf)) for sign in (-1, 1))
    return [
        *(value, math.nextafter(value, math.inf), math.nextafter(value, -math.inf)),
        *map(float, (single, *beside)),
    ]


@functools.cache
def interesting(forest: Forest) -> list[list[float]]:
    """Per feature, what its values should be tried at."""
    nodes, _, columns, _ = forest.arrays
    splits = nodes[nodes["column"] > 0]
    features = columns["feature"][splits["column"]]
    with np.errstate(over="ignore"):
        return [
            [*SPECIAL, *(x for t in set(splits["threshold"][features == f].tolist()) for x in neighbours(t))]
            for f in range(forest.feature_count)
        ]


def trying_rows(forest: Forest, rng: np.random.Generator, count: int) -> Floats:
    rows = np.column_stack([rng.choice(values, count) for values in interesting(forest)])
    ordinary = rng.random(rows.shape) < 0.3
    rows[ordinary] = rng.normal(size=ordinary.sum())
    return np.ascontiguousarray(rows)


def check_equal(forest: Forest, rows: Floats, predictions: npt.ArrayLike, raw: npt.ArrayLike) -> None:
    np.testing.assert_array_equal(forest.predict_raw(rows), np.asarray(raw, np.float64))
    np.testing.assert_array_equal(forest.predict(rows), np.asarray(predictions, np.float64))
    np.testing.assert_array_equal([forest.predict_one(row) for row in rows], forest.predict(rows))


def check_lightgbm(booster: lightgbm.Booster, rows: Floats, *forests: Forest) -> None:
    predictions = booster.predict(rows, num_threads=1)
    for forest in forests:
        check_equal(forest, rows, predictions, booster.predict(rows, raw_score=True, num_threads=1))


def check_xgboost(booster: xgboost.Booster, rows: Floats, *forests: Forest) -> None:
    raw = booster.inplace_predict(rows, predict_type="margin")
    for forest in forests:
        check_equal(forest, rows, booster.inplace_predict(rows), raw)


def train_lightgbm(seed: int) -> tuple[lightgbm.Booster, tuple[Forest, ...]]:
    rng = np.random.default_rng(seed)
    objective = LIGHTGBM_OBJECTIVES[seed % len(LIGHTGBM_OBJECTIVES)]
    features, label = training_data(rng, objective)
    options: dict[str, Any] = {
        "objective": "regression" if objective == "sqrt" else objective,
        "reg_sqrt": objective == "sqrt",
        "num_leaves": rng.integers(2, 32),
        "learning_rate": rng.choice([0.05, 0.3]),
        "use_missing": rng.random() < 0.8,
        "zero_as_missing": rng.random() < 0.4,
        "min_data_in_leaf": rng.choice([1, 20]),
        "boost_from_average": rng.random() < 0.5,
        "sigmoid": rng.choice([1.0, 2.5]) if objective == "binary" else 1.0,
    }
    if rng.random() < 0.2:
        options |= {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.6}
    group = [len(label)] if objective == "lambdarank" else None
    booster = lightgbm.train(
        options | {"verbosity": -1, "num_threads": 1, "seed": seed},
        lightgbm.Dataset(features, label, group=group),
        int(rng.integers(1, 20)),
    )
    return booster, (parse_forest(booster.model_to_string().encode()),)


def train_xgboost(seed: int) -> tuple[xgboost.Booster, tuple[Forest, ...]]:
    rng = np.random.default_rng(seed)
    objective = XGBOOST_OBJECTIVES[seed % len(XGBOOST_OBJECTIVES)]
    features, label = training_data(rng, objective)
    options: dict[str, Any] = {
        "objective": objective,
        "max_depth": rng.integers(1, 7),
        "eta": rng.choice([0.05, 0.3]),
        "gamma": rng.choice([0.0, 1.0]),  # exact and approx prune: deleted nodes
        "tree_method": rng.choice(["hist", "exact", "approx"]),
    }
    if objective == "reg:absoluteerror":
        options["tree_method"] = "hist"  # the others cannot
    if objective == "reg:quantileerror":
        options["quantile_alpha"] = 0.3
    if rng.random() < 0.2:
        options |= {"num_parallel_tree": 3, "subsample": 0.6}
    if rng.random() < 0.3 and objective != "survival:cox":
        options["base_score"] = 0.3
    data = xgboost.DMatrix(features, label, nthread=1)
    if objective.startswith("rank"):
        data.set_group([len(label)])
    booster = xgboost.train(options | {"nthread": 1, "seed": seed}, data, int(rng.integers(1, 20)))
    return booster, tuple(parse_forest(bytes(booster.save_raw(encoding))) for encoding in ("json", "ubj"))


@pytest.mark.parametrize("seed", range(100))
def test_random_lightgbm_models(seed: int) -> None:
    booster, forests = train_lightgbm(seed)
    check_lightgbm(booster, trying_rows(forests[0], np.random.default_rng(seed), 70), *forests)


@pytest.mark.parametrize("seed", range(100))
def test_random_xgboost_models(seed: int) -> None:
    booster, forests = train_xgboost(seed)
    check_xgboost(booster, trying_rows(forests[0], np.random.default_rng(seed), 70), *forests)


@functools.cache
def trained(library: str, seed: int) -> Any:
    return (train_lightgbm if library == "lightgbm" else train_xgboost)(seed)


@settings(max_examples=150)
@given(st.data(), st.sampled_from([(library, s) for library in ("lightgbm", "xgboost") for s in range(1, 9)]))
def test_any_row(data: st.DataObject, model: tuple[str, int]) -> None:
    booster, forests = trained(*model)
    one = [st.sampled_from(values) | st.floats(allow_subnormal=True) for values in interesting(forests[0])]
    rows = np.array(data.draw(st.lists(st.tuples(*one), min_size=1, max_size=12)), np.float64)
    (check_lightgbm if model[0] == "lightgbm" else check_xgboost)(booster, rows, *forests)


def one_split_text(threshold: float, decision_type: int, leaves: str = "-1 1") -> str:
    booster, _ = trained("lightgbm", 0)
    text = booster.model_to_string()
    tree = f"""Tree=0
num_leaves=2
num_cat=0
split_feature=0
split_gain=1
threshold={threshold!r}
decision_type={decision_type}
left_child=-1
right_child=-2
leaf_value={leaves}
leaf_weight=1 1
leaf_count=1 1
internal_value=0
internal_weight=2
internal_count=2
is_linear=0
shrinkage=1


"""
    header = text[: text.index("tree_sizes=")]
    return f"{header}tree_sizes={len(tree)}\n\n{tree}end of trees\n"


@pytest.mark.parametrize("decision_type", [0, 2, 4, 6, 8, 10])
def test_lightgbm_thresholds_at_the_edges(decision_type: int) -> None:
    """Each missing type and default with thresholds that training writes rarely or never."""
    for threshold in (x for x in SPECIAL if not math.isnan(x)):
        text = one_split_text(threshold, decision_type)
        booster = lightgbm.Booster(model_str=text)
        rows = np.zeros((len(SPECIAL), booster.num_feature()))
        rows[:, 0] = SPECIAL
        check_lightgbm(booster, rows, parse_forest(text.encode()))


def test_xgboost_thresholds_at_the_edges() -> None:
    booster, _ = trained("xgboost", 0)
    document = json.loads(booster.save_raw("json"))
    model = document["learner"]["gradient_booster"]["model"]
    tree = next(tree for tree in model["trees"] if tree["left_children"][0] != -1)
    tree["split_indices"][0] = 0
    for threshold in (0.0, 1e-45, -1e-45, 2e-45, 1.2e-38, 1.0, -1.0, FLOAT32_MAX, -FLOAT32_MAX):
        tree["split_conditions"][0] = threshold
        encoded = json.dumps(document).encode()
        edges = [x for t in neighbours(threshold) for x in neighbours(t)] if abs(threshold) < 2 else []
        middle = (np.float64(np.nextafter(np.float32(threshold), np.float32(-1))) + threshold) / 2
        values = [*SPECIAL, *edges, *neighbours(middle), FLOAT32_MAX * (1 + 2**-25 - 2**-50)]
        rows = np.zeros((len(values), booster.num_features()))
        rows[:, 0] = values
        check_xgboost(xgboost.Booster(model_file=bytearray(encoded)), rows, parse_forest(encoded))


EXTREME_SCORES = [0.0, 1e-30, 20.0, 87.0, 89.0, 400.0, 800.0, 1e30]  # exp overflows in float32, in float64


@pytest.mark.parametrize("score", EXTREME_SCORES)
@pytest.mark.parametrize(
    "objective", ["binary sigmoid:2.5", "cross_entropy", "cross_entropy_lambda", "poisson", "regression sqrt"]
)
def test_lightgbm_links_far_out(objective: str, score: float) -> None:
    text = one_split_text(0.0, 2, f"{-score!r} {score!r}")
    text = text.replace("objective=regression", f"objective={objective}")
    booster = lightgbm.Booster(model_str=text)
    rows = np.zeros((2, booster.num_feature()))
    rows[:, 0] = (-1.0, 1.0)
    check_lightgbm(booster, rows, parse_forest(text.encode()))


@pytest.mark.parametrize("score", EXTREME_SCORES)
@pytest.mark.parametrize("objective", ["binary:logistic", "reg:gamma", "binary:hinge", "reg:squarederror"])
def test_xgboost_links_far_out(objective: str, score: float) -> None:
    document = json.loads(trained("xgboost", 0)[0].save_raw("json"))
    document["learner"]["objective"]["name"] = objective
    document["learner"]["learner_model_param"]["base_score"] = "[5E-1]"
    for sign in (-1, 1):
        for tree in document["learner"]["gradient_booster"]["model"]["trees"]:
            tree["split_conditions"] = [sign * score] * len(tree["split_conditions"])
        encoded = json.dumps(document).encode()
        booster = xgboost.Booster(model_file=bytearray(encoded))
        check_xgboost(booster, np.zeros((1, booster.num_features())), parse_forest(encoded))


def test_early_stopping() -> None:
    """LightGBM writes the best iterations; XGBoost writes all, and `Booster.predict` uses all."""
    rng = np.random.default_rng(5)
    features, label = training_data(rng, "regression")
    options = {"learning_rate": 0.5, "verbosity": -1, "num_threads": 1}
    train, valid = (lightgbm.Dataset(features[half::2], label[half::2]) for half in (0, 1))
    light = lightgbm.train(options, train, 50, [valid], callbacks=[lightgbm.early_stopping(2, verbose=False)])
    forest = parse_forest(light.model_to_string().encode())
    assert forest.tree_count == light.best_iteration < 50
    check_lightgbm(light, features, forest)

    half = [xgboost.DMatrix(features[h::2], label[h::2], nthread=1) for h in (0, 1)]
    boost = xgboost.train(
        {"eta": 0.9, "nthread": 1},
        half[0],
        50,
        evals=[(half[1], "valid")],
        early_stopping_rounds=2,
        verbose_eval=False,
    )
    best = boost[: boost.best_iteration + 1]
    for booster in (boost, best):
        check_xgboost(booster, features, parse_forest(bytes(booster.save_raw("ubj"))))
    assert parse_forest(bytes(best.save_raw("ubj"))).tree_count < boost.num_boosted_rounds()


def test_constant_trees() -> None:
    features = np.random.default_rng(0).normal(size=(100, 3))
    light = lightgbm.train(
        {"verbosity": -1, "num_threads": 1}, lightgbm.Dataset(features, np.full(100, 0.3)), 3
    )
    check_lightgbm(light, features, parse_forest(light.model_to_string().encode()))
    options = {"nthread": 1, "gamma": 1e9}
    boost = xgboost.train(options, xgboost.DMatrix(features, features[:, 0], nthread=1), 3)
    forest = parse_forest(bytes(boost.save_raw("ubj")))
    assert forest.leaf_count == forest.tree_count == 3
    check_xgboost(boost, features, forest)
