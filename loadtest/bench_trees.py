"""Time of boosted-tree predictions: our evaluator beside the libraries that train the models, on one thread.

Each library evaluates the models it can read: LightGBM and XGBoost those they trained, ours and treelite
both. All run in one process over the same rows, whose values float32 holds exactly and of which none is
missing. One measurement passes over all rows, in calls of 1 or of all of them; with calls of 1 the next row
is always another, so that no branch predictor learns the answer by heart. A round measures every contender
once, in an order drawn anew; the first round warms up and does not count. Times are processor time of the
process: what a clock shows where nothing else wants the processor. Before any figure is given, all libraries
have to agree on all rows.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loadtest.files import written_whole
from loadtest.report import run_header
from services.core.compiled import compiled
from services.core.trees import Forest, parse_forest, score_row
from services.runtime.errors import UserError
from services.stack.tables import text_table

SEED = 0
ROWS = 1000
FEATURES = 40
LIBRARIES = ("lightgbm", "xgboost", "treelite")
_TRAINING_ROWS = 8000
_COPIES = 4  # loaded at once, to see what one of them holds in memory
_TOLERANCE = 1e-5  # XGBoost adds leaves in single precision

Floats = npt.NDArray[np.float64]


class Shape(NamedTuple):
    """The size of a model: each of its trees has this many leaves."""

    trees: int
    leaves: int


SHAPES = (Shape(100, 31), Shape(30, 16))


class Contender(NamedTuple):
    """One way to evaluate one model: `predict` takes what `load` returned and predicts all rows, in turn."""

    library: str
    trained_by: str
    batch: int
    load: Callable[[], Any]
    predict: Callable[[Any], Any]


@dataclass(frozen=True)
class Row:
    """A row of the report: times are medians over rounds, with the first and third quartile of `us_per_row`.

    bytes: what a loaded model holds on the C heap, None where the C library cannot tell.
    """

    library: str
    trained_by: str
    trees: int
    leaves: int
    batch: int
    us_per_row: float
    us_per_row_p25: float
    us_per_row_p75: float
    load_ms: float
    bytes: int | None


def main(rounds: int, json_file: str | None) -> int:
    """Trains the models, measures, prints a table and, on request, writes one JSON document."""
    rows = [row for shape in SHAPES for row in measure(shape, rounds)]
    cells = [
        (
            row.library,
            row.trained_by,
            str(row.trees),
            str(row.leaves),
            str(row.batch),
            f"{row.us_per_row:.2f}",
            f"{row.us_per_row_p25:.2f}-{row.us_per_row_p75:.2f}",
            f"{row.load_ms:.1f}",
            "-" if row.bytes is None else f"{row.bytes:,}",
        )
        for row in rows
    ]
    columns = ("library", "trained by", "trees", "leaves", "batch", "us/row", "quartiles", "load ms", "bytes")
    sys.stdout.write(text_table(columns, cells, left=(0, 1)) + "\n")
    sys.stdout.write(
        f"processor time, medians of {rounds} rounds over {ROWS} rows on one thread; all predictions agree\n"
    )
    if json_file is not None:
        header = run_header({"rounds": rounds, "rows": ROWS, "features": FEATURES}, SEED)
        header["libraries"] = {
            name: importlib.import_module(name).__version__ for name in (*LIBRARIES, "numba")
        }
        document = {"header": header, "rows": [asdict(row) for row in rows]}
        with written_whole(Path(json_file)) as stream:
            stream.write(json.dumps(document, indent=2) + "\n")
    return 0


def measure(shape: Shape, rounds: int) -> list[Row]:
    """Trains models of this shape and measures every contender on them.

    Raises UserError for too few rounds and where a library is not installed; RuntimeError when two libraries
    disagree on a row, or a model has another shape.
    """
    if rounds < 2:
        raise UserError(f"rounds {rounds} must be 2 or more")
    for name in LIBRARIES:
        if importlib.util.find_spec(name) is None:
            raise UserError(
                f"the bench compares with {name}, which is not installed: pip install 'frugalads-server[dev]'"
            )
    draw = np.random.default_rng(SEED)
    rows = draw.standard_normal((_TRAINING_ROWS + ROWS, FEATURES), dtype=np.float32).astype(np.float64)
    curves, products = np.sin(rows[:, :20]).sum(axis=1), rows[:, 20] * rows[:, 21]
    targets = curves + products + 0.5 * draw.standard_normal(len(rows))
    training, unseen = slice(_TRAINING_ROWS), rows[_TRAINING_ROWS:]
    with tempfile.TemporaryDirectory() as name:
        models = {
            "lightgbm": _train_lightgbm(shape, rows[training], targets[training], Path(name)),
            "xgboost": _train_xgboost(shape, rows[training], targets[training], Path(name)),
        }
        for file in models.values():
            forest = parse_forest(file.read_bytes())
            if (forest.tree_count, forest.leaf_count) != (shape.trees, shape.trees * shape.leaves):
                raise RuntimeError(f"{file.name}: {forest.leaf_count} leaves in {forest.tree_count} trees")
        contenders = [
            *_ours("lightgbm", models["lightgbm"], unseen),
            *_ours("xgboost", models["xgboost"], unseen),
            *_lightgbm(models["lightgbm"], unseen),
            *_xgboost(models["xgboost"], unseen),
            *_treelite(models, unseen),
        ]
        return _race(shape, contenders, rounds)


def _race(shape: Shape, contenders: Sequence[Contender], rounds: int) -> list[Row]:
    """Loads and passes of every contender once a round; each round's predictions are compared."""
    draw = random.Random(SEED)
    loaded = {one: one.load() for one in contenders}
    load_ms: dict[Contender, list[float]] = {one: [] for one in contenders}
    us_per_row: dict[Contender, list[float]] = {one: [] for one in contenders}
    for number in range(rounds + 1):
        answers: dict[str, Floats] = {}
        for one in draw.sample(contenders, len(contenders)):
            began_s = time.process_time()
            predictions = one.predict(loaded[one])
            predicted_s = time.process_time()
            one.load()
            ended_s = time.process_time()
            _agree(one, np.ravel(np.asarray(predictions, dtype=np.float64)), answers)
            if number:
                us_per_row[one].append((predicted_s - began_s) * 1e6 / ROWS)
                load_ms[one].append((ended_s - predicted_s) * 1e3)
    rows = []
    for one in contenders:
        low, middle, high = np.percentile(us_per_row[one], (25, 50, 75)).tolist()
        rows.append(
            Row(
                one.library,
                one.trained_by,
                *shape,
                one.batch,
                middle,
                low,
                high,
                statistics.median(load_ms[one]),
                _held_bytes(one),
            )
        )
    return rows


def _agree(one: Contender, predictions: Floats, answers: dict[str, Floats]) -> None:
    first = answers.setdefault(one.trained_by, predictions)
    if not np.allclose(predictions, first, rtol=_TOLERANCE, atol=_TOLERANCE):
        worst = np.abs(predictions - first).max()
        raise RuntimeError(f"{one.library} differs by {worst:g} on the model that {one.trained_by} trained")


class _Mallinfo2(ctypes.Structure):
    # uordblks and hblkhd of mallinfo(3) are `used` and `mapped` here.
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "mapped",
            "usmblks",
            "fsmblks",
            "used",
            "free",
            "top",
        )
    )


def _held_bytes(one: Contender) -> int | None:
    """Bytes that one loaded model holds on the C heap, by glibc's own count; None without glibc."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        return None
    mallinfo2.restype = _Mallinfo2
    before = mallinfo2()
    models = [one.load() for _ in range(_COPIES)]
    after = mallinfo2()
    grown = after.used + after.mapped - before.used - before.mapped
    return int(grown) // len(models)


def _train_lightgbm(shape: Shape, rows: Floats, targets: Floats, folder: Path) -> Path:
    import lightgbm

    options = {"num_leaves": shape.leaves, "num_threads": 1, "seed": SEED, "verbosity": -1}
    booster = lightgbm.train(options, lightgbm.Dataset(rows, targets), shape.trees)
    file = folder / "lightgbm.txt"
    booster.save_model(file)
    return file


def _train_xgboost(shape: Shape, rows: Floats, targets: Floats, folder: Path) -> Path:
    import xgboost

    options = {
        "tree_method": "hist",
        "grow_policy": "lossguide",  # leaf by leaf, as LightGBM grows
        "max_leaves": shape.leaves,
        "max_depth": 0,
        "min_child_weight": 20,
        "eta": 0.1,
        "nthread": 1,
        "seed": SEED,
    }
    booster = xgboost.train(options, xgboost.DMatrix(rows, targets), shape.trees)
    file = folder / "xgboost.ubj"
    booster.save_model(file)
    return file


def _ours(trained_by: str, file: Path, rows: Floats) -> list[Contender]:
    singles = list(rows)

    def load() -> Forest:
        return parse_forest(file.read_bytes())

    return [
        Contender("ours", trained_by, 1, load, lambda forest: [forest.predict_one(row) for row in singles]),
        Contender("ours-kernel", trained_by, 1, load, lambda forest: _each(forest.arrays, rows)),
        Contender("ours", trained_by, len(rows), load, lambda forest: forest.predict(rows)),
    ]


@compiled
def _each(arrays: Any, rows: Floats) -> Floats:
    """Row by row, each after the prediction before it is known, as in a search loop that decides by it."""
    predictions = np.empty(len(rows))
    unknown = np.int64(0)  # stays so, but the processor has to wait to see it
    for i in range(len(rows)):
        predictions[i] = score_row(arrays, rows[i + unknown])
        unknown = np.int64(np.isnan(predictions[i]))
    return predictions


def _lightgbm(file: Path, rows: Floats) -> list[Contender]:
    import lightgbm

    singles = [rows[i : i + 1] for i in range(len(rows))]

    def load() -> Any:
        return lightgbm.Booster(model_file=file)

    return [
        Contender(
            "lightgbm",
            "lightgbm",
            1,
            load,
            lambda booster: [booster.predict(row, num_threads=1) for row in singles],
        ),
        Contender(
            "lightgbm-fast", "lightgbm", 1, lambda: _SingleRowFast(load()), lambda fast: fast.each(rows)
        ),
        Contender(
            "lightgbm", "lightgbm", len(rows), load, lambda booster: booster.predict(rows, num_threads=1)
        ),
    ]


class _SingleRowFast:
    """LightGBM's quickest way to predict a row: LGBM_BoosterPredictForMatSingleRowFast of its C API."""

    def __init__(self, booster: Any) -> None:
        from lightgbm.libpath import _LIB

        self._booster = booster  # owns what the handle points to
        self._library = _LIB
        self._handle = ctypes.c_void_p()
        normal, first, every, float64 = 0, 0, -1, 1
        failed = _LIB.LGBM_BoosterPredictForMatSingleRowFastInit(
            booster._handle,
            normal,
            first,
            every,
            float64,
            FEATURES,
            b"num_threads=1",
            ctypes.byref(self._handle),
        )
        if failed:
            raise RuntimeError("LGBM_BoosterPredictForMatSingleRowFastInit failed")
        self._call = _LIB.LGBM_BoosterPredictForMatSingleRowFast
        self._call.argtypes = [ctypes.c_void_p] * 4

    def __del__(self) -> None:
        self._library.LGBM_FastConfigFree(self._handle)

    def each(self, rows: Floats) -> list[float]:
        """The predictions of contiguous rows, one call each."""
        count, prediction = ctypes.c_int64(), ctypes.c_double()
        count_at, prediction_at = ctypes.addressof(count), ctypes.addressof(prediction)
        predictions = []
        begin, step = rows.ctypes.data, rows.strides[0]
        for at in range(begin, begin + len(rows) * step, step):
            if self._call(self._handle, at, count_at, prediction_at):
                raise RuntimeError("LGBM_BoosterPredictForMatSingleRowFast failed")
            predictions.append(prediction.value)
        return predictions


def _xgboost(file: Path, rows: Floats) -> list[Contender]:
    import xgboost

    singles = rows.astype(np.float32)  # what it computes with
    parts = [singles[i : i + 1] for i in range(len(rows))]

    def load() -> Any:
        booster = xgboost.Booster(model_file=file)
        booster.set_param({"nthread": 1})
        return booster

    return [
        Contender(
            "xgboost", "xgboost", 1, load, lambda booster: [booster.inplace_predict(row) for row in parts]
        ),
        Contender("xgboost", "xgboost", len(rows), load, lambda booster: booster.inplace_predict(singles)),
    ]


def _treelite(models: dict[str, Path], rows: Floats) -> list[Contender]:
    from treelite import frontend, gtil

    contenders = []
    for trained_by, load, typed in (
        ("lightgbm", frontend.load_lightgbm_model, rows),
        ("xgboost", frontend.load_xgboost_model, rows.astype(np.float32)),
    ):
        for batch in (1, len(rows)):
            parts = [typed[i : i + batch] for i in range(0, len(rows), batch)]

            def predict(model: Any, parts: Any = parts) -> Any:
                return [gtil.predict(model, part, nthread=1) for part in parts]

            contenders.append(
                Contender("treelite", trained_by, batch, partial(load, models[trained_by]), predict)
            )
    return contenders
