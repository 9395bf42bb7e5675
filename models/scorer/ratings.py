"""Rated (query, ad) pairs, and the calibration experiment: fit on half of the queries, measure on the rest.

The halves are of queries, not of pairs: pairs of one query resemble each other, and a calibration that
knows half of a query's ads would look better than it is. A query's half is the parity of the SHA-256 of
its text, so it is the same in every run and for every file that holds the query.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.scorer.calibration import MODELLED_RATES, Calibration, Evaluation, evaluate, fit
from models.scorer.encoder import Encoder, Progress
from services.runtime.errors import UserError

COLUMNS = ("query", "docid", "rating")
MAX_RATING = len(MODELLED_RATES) - 1

_MAX_PAIRS = 5_000_000


@dataclass(frozen=True, slots=True)
class Rating:
    """How well an ad answers a query: 0 not at all, 3 exactly."""

    query: str
    ad_id: int
    rating: int


def read_ratings(path: Path) -> list[Rating]:
    """Reads CSV with columns query, docid, rating. Raises UserError naming line, column and value."""
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise UserError(f"{path}: no column {', '.join(missing)}; it needs {', '.join(COLUMNS)}")
            ratings = []
            for row in reader:
                ratings.append(_rating(f"{path}, line {reader.line_num}", row))
                if len(ratings) > _MAX_PAIRS:
                    raise UserError(f"{path}: more than {_MAX_PAIRS} pairs")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: unreadable: {error}") from error
    return ratings


def _rating(where: str, row: Mapping[str, str | None]) -> Rating:
    query = (row["query"] or "").strip()
    if not query:
        raise UserError(f"{where}: query is empty")
    numbers = []
    for name, high in (("docid", 2**63 - 1), ("rating", MAX_RATING)):
        text = (row[name] or "").strip()
        if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= high):
            raise UserError(f"{where}: {name} {text[:40]!r} is not a whole number in 0..{high}")
        numbers.append(int(text))
    return Rating(query, numbers[0], numbers[1])


def calibrate(
    encoder: Encoder,
    ratings: Sequence[Rating],
    ad_texts: Mapping[int, str],
    source: str,
    progress: Progress | None = None,
) -> tuple[Calibration, Evaluation]:
    """Fits on the even half of the queries and evaluates on the odd one; ratings of unknown ads are left out.

    ad_texts: ad id to the text that an index embeds. source: where the pairs are from, in words. Raises
    UserError when too little is left, or the fit fails.
    """
    known = [rating for rating in ratings if rating.ad_id in ad_texts]
    if not known:
        raise UserError(f"none of the {len(ratings)} rated ads is in the catalogue")
    similarities = _similarities(encoder, known, ad_texts, progress)
    values = np.array([rating.rating for rating in known])
    held_out = np.array([is_held_out(rating.query) for rating in known])
    queries = len({rating.query for rating in known if is_held_out(rating.query)})
    if not queries or held_out.all():
        raise UserError(f"{len(known)} rated pairs are too few to fit on half and measure on half")
    try:
        rates = np.array(MODELLED_RATES)[values]
        fitted_on = f"{(~held_out).sum()} pairs of {source}"
        calibration = fit(similarities[~held_out], rates[~held_out], fitted_on)
    except ValueError as error:
        raise UserError(f"no calibration: {error}") from error
    return calibration, evaluate(calibration, similarities[held_out], values[held_out], queries)


def is_held_out(query: str) -> bool:
    """Whether a query belongs to the half that is measured on."""
    return bool(hashlib.sha256(query.encode("utf-8", "surrogatepass")).digest()[0] & 1)


def _similarities(
    encoder: Encoder, ratings: Sequence[Rating], ad_texts: Mapping[int, str], progress: Progress | None
) -> NDArray[np.float64]:
    queries = {query: place for place, query in enumerate(dict.fromkeys(r.query for r in ratings))}
    ads = {ad_id: place for place, ad_id in enumerate(dict.fromkeys(r.ad_id for r in ratings))}
    texts = [*queries, *(ad_texts[ad_id] for ad_id in ads)]
    vectors = encoder.encode(texts, progress=progress).astype(np.float64)
    left = vectors[[queries[rating.query] for rating in ratings]]
    right = vectors[[len(queries) + ads[rating.ad_id] for rating in ratings]]
    products: NDArray[np.float64] = np.einsum("nd,nd->n", left, right)
    return products
