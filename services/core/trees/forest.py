"""A boosted forest as a value: parse it once, then predict from any thread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .evaluator import FloatArray, ForestArrays, raw_rows, score_row, score_rows
from .layout import Output, Tree, flatten
from .limits import MAX_FEATURES, ForestError


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """Trees with one output, as LightGBM or XGBoost trained them. Immutable, safe from many threads.

    feature_names: in the order of a row's values. objective: as the model file names it. arrays: for
    `score_row` inside other kernels. leaf_count: leaves of all trees.
    """

    feature_names: tuple[str, ...]
    objective: str
    arrays: ForestArrays
    tree_count: int
    leaf_count: int

    @classmethod
    def of(cls, trees: list[Tree], feature_names: list[str], objective: str, output: Output) -> Forest:
        """The forest of parsed trees.

        Raises:
            ForestError: names repeat, a limit is exceeded, or a tree is none.
        """
        count = len(feature_names)
        if not 0 < count <= MAX_FEATURES:
            raise ForestError(f"features: {count} is outside 1..{MAX_FEATURES}")
        if len(set(feature_names)) != count:
            raise ForestError("feature_names: a name repeats")
        arrays = flatten(trees, count, output)
        leaves = sum(column is None for tree in trees for column in tree.columns)
        return cls(tuple(feature_names), objective, arrays, len(trees), leaves)

    @property
    def feature_count(self) -> int:
        """Values in a row."""
        return len(self.feature_names)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays)

    def predict(self, rows: FloatArray) -> FloatArray:
        """Predictions of float64[n, feature_count], as the library's `predict`; NaN is missing.

        Raises:
            ForestError: wrong dtype or shape.
        """
        rows = self._checked(rows, 2)
        out = np.empty(len(rows))
        score_rows(self.arrays, rows, out)
        return out

    def predict_raw(self, rows: FloatArray) -> FloatArray:
        """Scores before link and averaging: LightGBM's `raw_score`, XGBoost's `output_margin`.

        Raises:
            ForestError: wrong dtype or shape.
        """
        rows = self._checked(rows, 2)
        out = np.empty(len(rows))
        raw_rows(self.arrays, rows, out)
        return out

    def predict_one(self, row: FloatArray) -> float:
        """`predict` of one float64[feature_count], bit for bit, at the least cost from Python.

        Raises:
            ForestError: wrong dtype or shape.
        """
        return float(score_row(self.arrays, self._checked(row, 1)))

    def _checked(self, rows: FloatArray, dimensions: int) -> FloatArray:
        if not isinstance(rows, np.ndarray) or rows.dtype != np.float64:
            raise ForestError(f"rows: {getattr(rows, 'dtype', type(rows).__name__)} is not a float64 array")
        if rows.ndim != dimensions or rows.shape[-1] != self.feature_count:
            expected = f"({'n, ' * (dimensions - 1)}{self.feature_count})"
            raise ForestError(f"rows: shape {rows.shape} instead of {expected}")
        return rows if rows.flags.carray else rows.copy()
