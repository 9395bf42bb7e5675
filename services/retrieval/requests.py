"""Requests checked against the limits of the server and the fields of the index, and turned into values.

Everything that FAISS would assert, crash on or silently accept is refused here, with field, value and limit.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from frugalads.retrieval.v1 import retrieval_pb2 as pb
from services.retrieval.attributes import Condition, Membership, Range
from services.retrieval.config import RetrievalConfig
from services.retrieval.delta import Ad
from services.retrieval.index import LoadedIndex
from services.retrieval.plan import Budget, Coverage, Exact, MeanRecall, Query, Target
from services.runtime.errors import InvalidArgument

MAX_ATTRIBUTE_CHARS = 1_024
MAX_PATH_CHARS = 1_024  # it comes back in the metadata of an error, which gRPC limits to 8 KiB

Floats = npt.NDArray[np.float32]


def parse_search(request: pb.SearchRequest, index: LoadedIndex, config: RetrievalConfig) -> Query:
    """A query of one row; raises InvalidArgument."""
    if len(request.vector) != index.dimension:
        raise InvalidArgument("vector", len(request.vector), f"{index.dimension} numbers")
    return Query(
        _unit_rows(request.vector, 1, "vector"),
        _within("k", request.k, 1, config.max_k),
        _conditions(request.filter, index, config),
        _target(request, index, config),
    )


def parse_batch(request: pb.SearchBatchRequest, index: LoadedIndex, config: RetrievalConfig) -> Query:
    """A query of `count` rows; raises InvalidArgument."""
    count = _within("count", request.count, 1, config.max_batch)
    k = _within("k", request.k, 1, config.max_k)
    if count * k > config.max_batch_results:
        raise InvalidArgument("count", count * k, f"at most {config.max_batch_results} results in all")
    expected = count * index.dimension
    if len(request.vectors) != expected:
        limit = f"{count} x {index.dimension} = {expected} numbers"
        raise InvalidArgument("vectors", len(request.vectors), limit)
    return Query(
        _unit_rows(request.vectors, count, "vectors"),
        k,
        _conditions(request.filter, index, config),
        _target(request, index, config),
    )


def parse_upsert(request: pb.UpsertRequest, index: LoadedIndex, config: RetrievalConfig) -> list[Ad]:
    """The ads to add; raises InvalidArgument naming the first fault."""
    _within("ads", len(request.ads), 1, config.max_batch, "ads")
    seen: set[int] = set()
    ads = []
    for i, entry in enumerate(request.ads):
        at = f"ads[{i}]"
        if entry.ad_id < 1:
            raise InvalidArgument(f"{at}.ad_id", entry.ad_id, "a positive number")
        if entry.ad_id in seen:
            raise InvalidArgument(f"{at}.ad_id", entry.ad_id, "distinct within the request")
        seen.add(entry.ad_id)
        if len(entry.vector) != index.dimension:
            raise InvalidArgument(f"{at}.vector", len(entry.vector), f"{index.dimension} numbers")
        vector = _unit_rows(entry.vector, 1, at + ".vector")[0]
        for name, text in entry.attributes.items():
            _known(f"{at}.attributes", name, index.columns.strings, "a string field of the index")
            if len(text) > MAX_ATTRIBUTE_CHARS:
                limit = f"at most {MAX_ATTRIBUTE_CHARS} characters"
                raise InvalidArgument(f"{at}.attributes[{name}]", len(text), limit)
        for name, number in entry.numbers.items():
            _known(f"{at}.numbers", name, index.columns.numbers, "a numeric field of the index")
            if not math.isfinite(number):
                raise InvalidArgument(f"{at}.numbers[{name}]", number, "a finite number")
        ads.append(Ad(entry.ad_id, vector, dict(entry.attributes), dict(entry.numbers)))
    return ads


def parse_delete(request: pb.DeleteRequest, config: RetrievalConfig) -> npt.NDArray[np.int64]:
    """The ids to hide, int64; raises InvalidArgument."""
    _within("ad_ids", len(request.ad_ids), 1, config.max_delete, "ids")
    return np.array(request.ad_ids, dtype=np.int64)


def parse_swap(request: pb.SwapIndexRequest) -> tuple[str, str]:
    """The folders of the index and the stop model to serve, the second "" where none is named; raises
    InvalidArgument."""
    return _path("path", request.path, 1, "an index"), _path(
        "stop_model", request.stop_model, 0, "a stop model"
    )


def _path(field: str, path: str, least: int, what: str) -> str:
    if "\0" in path or not least <= len(path) <= MAX_PATH_CHARS:
        limit = f"the folder of {what} bundle, at most {MAX_PATH_CHARS} characters"
        raise InvalidArgument(field, path, limit)
    return path


def _within(field: str, value: int, low: int, high: int, what: str = "") -> int:
    if not low <= value <= high:
        raise InvalidArgument(field, value, f"{low}..{high} {what}" if what else f"in {low}..{high}")
    return value


def _unit_rows(numbers: Sequence[float], rows: int, field: str) -> Floats:
    """The vectors at unit length, float32 [rows, dimension]; norms in float64, which cannot overflow."""
    vectors = np.array(numbers, dtype=np.float64).reshape(rows, -1)
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        position = int(np.isfinite(vectors).argmin())
        raise InvalidArgument(f"{field}[{position}]", float(vectors.flat[position]), "a finite number")
    norms = np.sqrt((vectors * vectors).sum(axis=1))
    if not norms.all():
        start = int(norms.argmin()) * vectors.shape[1]
        zero = field if rows == 1 else f"{field}[{start}:{start + vectors.shape[1]}]"
        raise InvalidArgument(zero, "zeros", "a vector of non-zero length")
    return np.ascontiguousarray(vectors / norms[:, None], dtype=np.float32)


def _target(
    request: pb.SearchRequest | pb.SearchBatchRequest, index: LoadedIndex, config: RetrievalConfig
) -> Target:
    if not request.HasField("target"):
        return MeanRecall(config.default_recall)
    target = request.target
    match target.WhichOneof("kind"):
        case "mean_recall":
            return MeanRecall(_share("target.mean_recall", target.mean_recall))
        case "coverage":
            recall = _share("target.coverage.recall", target.coverage.recall)
            share = target.coverage.share
            if not 0 < share < 1:
                raise InvalidArgument("target.coverage.share", share, "above 0 and below 1")
            return Coverage(recall, share)
        case "budget":
            return Budget(_within("target.budget.lists", target.budget.lists, 1, index.lists))
        case "exact":
            return Exact()
        case _:
            raise InvalidArgument("target.kind", None, "one of mean_recall, coverage, budget, exact")


def _share(field: str, value: float) -> float:
    if not 0 < value <= 1:
        raise InvalidArgument(field, value, "above 0 and at most 1")
    return value


def _conditions(filter_: pb.Filter, index: LoadedIndex, config: RetrievalConfig) -> tuple[Condition, ...]:
    _within("filter.conditions", len(filter_.conditions), 0, config.max_filter_conditions, "conditions")
    return tuple(
        _condition(f"filter.conditions[{i}]", condition, index, config)
        for i, condition in enumerate(filter_.conditions)
    )


def _condition(at: str, condition: pb.Condition, index: LoadedIndex, config: RetrievalConfig) -> Condition:
    columns = index.columns
    fields = [*columns.strings, *columns.numbers]
    if condition.field not in fields:
        raise InvalidArgument(f"{at}.field", condition.field, f"one of {', '.join(sorted(fields)) or 'none'}")
    kind = condition.WhichOneof("test")
    if kind is None:
        raise InvalidArgument(f"{at}.test", None, "one of any_of, none_of, range")
    if kind == "range":
        if condition.field not in columns.numbers:
            raise InvalidArgument(f"{at}.range", condition.field, "a numeric field")
        return _range(f"{at}.range", condition)
    if condition.field not in columns.strings:
        raise InvalidArgument(f"{at}.{kind}", condition.field, "a string field")
    values = condition.any_of.values if kind == "any_of" else condition.none_of.values
    _within(f"{at}.{kind}.values", len(values), 1, config.max_filter_values, "values")
    return Membership(condition.field, tuple(values), kind == "none_of")


def _range(at: str, condition: pb.Condition) -> Range:
    bounds = condition.range
    low = bounds.min if bounds.HasField("min") else -math.inf
    high = bounds.max if bounds.HasField("max") else math.inf
    for name, value in (("min", low), ("max", high)):
        if math.isnan(value):
            raise InvalidArgument(f"{at}.{name}", value, "a number")
    if low > high:
        raise InvalidArgument(f"{at}.min", low, f"at most max, {high}")
    return Range(condition.field, low, high)


def _known(field: str, name: str, fields: Collection[str], what: str) -> None:
    if name not in fields:
        raise InvalidArgument(field, name, f"{what} ({', '.join(sorted(fields)) or 'none'})")
