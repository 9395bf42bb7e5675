"""Evaluation of gradient-boosted trees that LightGBM or XGBoost trained, without either library."""

from __future__ import annotations

from .evaluator import score_row
from .forest import Forest
from .lightgbm_text import parse_lightgbm
from .limits import ForestError
from .xgboost_model import parse_xgboost

__all__ = ["Forest", "ForestError", "parse_forest", "parse_lightgbm", "parse_xgboost", "score_row"]


def parse_forest(data: bytes) -> Forest:
    """The forest of a model file: LightGBM's text, or XGBoost's JSON or UBJSON.

    Raises:
        ForestError: none of these, or a model of a kind that is not supported.
    """
    if data.startswith(b"tree"):
        return parse_lightgbm(data)
    if data.startswith(b"{"):
        return parse_xgboost(data)
    raise ForestError("model: neither LightGBM's text nor XGBoost's JSON or UBJSON")
