"""Query streams: one request a line, with repeats, for replay.

Problem: a web query stream repeats little and half of it shares no word with any product; a key trace has
real repeats but no text. So one is joined to the other (`frugalads log queries`):

1. Keys. A key stream gives the order of requests: a real trace, or draws from a published popularity curve
   (`loadtest/popularity.py`). Each key is ranked by how often it comes.
2. Kinds. Of every five neighbouring ranks two, chosen at random, are web queries and three look for something
   in the catalogue, so 40 % of the keys, in the head as in the tail, may find no ad (39.9 % of the requests
   of the Bing log had none; Li et al., SoCC 2017, figure 5).
3. Catalogue queries, most popular first: the queries of a rated set where one is given, in random order; then
   phrases made from the ads: category names, advertiser names and runs of two to four words of titles, up to
   the first comma or the like (details follow there). A phrase is as popular as the number of ads it stands
   for, times lognormal noise (sigma 1): what many ads say is what many people type. Where a small catalogue
   has too few phrases, "cheap ..." and the like extend them.
4. Web queries, most popular first: those of a web stream by their own frequency there, then made-up ones
   (`loadtest/sample_web.py`).

No two keys share a query after folding case and white space, so the stream of texts repeats exactly as the
stream of keys does. Only where a very small catalogue has fewer phrases than keys are they dealt out again,
the most popular first; the summary counts the keys that share one. What is modelled: which key gets which
query. Everything random comes from the seed.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadtest.files import written_whole
from loadtest.popularity import Keys, drawn_keys, drawn_until, ranks_by_frequency, trace_keys
from loadtest.sample_web import web_queries
from services.catalogue.bundle import read_catalogue
from services.catalogue.schema import Ad
from services.runtime.errors import UserError

DEFAULT_DISTINCT = 2000
MAX_QUERY_CHARS = 120
MAX_ADS = 50_000
BLOCK, WEB_PER_BLOCK = 5, 2
MADE_UP_TRIES = 50

_WORD = re.compile(r"[^\W_][\w.'+/&-]*[^\W_]|[^\W_]", re.UNICODE)
_ALPHABETIC = re.compile(r"[^\W\d_]{3,}", re.UNICODE)
_PART_END = re.compile(r"[,:;|(–] |[|(–]| - ")
_KINDS = re.compile(r"\s+and\s+|\s*[&>/,]\s*")
_EDGES = frozenset(
    {
        "a",
        "an",
        "and",
        "at",
        "by",
        "compare",
        "for",
        "from",
        "in",
        "of",
        "on",
        "or",
        "per",
        "the",
        "to",
        "up",
        "with",
        "x",
    }
)
_UNITS = frozenset(
    {
        "cm",
        "mm",
        "m",
        "gb",
        "mb",
        "ghz",
        "mhz",
        "kg",
        "g",
        "hz",
        "inch",
        "pc",
        "pcs",
        "pixels",
        "month",
        "year",
    }
)
_INTENTS = ("buy {}", "cheap {}", "best {}", "{} price", "{} reviews", "{} online", "{} near me", "{} sale")


@dataclass(frozen=True)
class QuerySummary:
    """What a query stream holds. Shares are of requests, 0..1; `shared` keys have the query of another."""

    requests: int
    distinct: int
    shared: int
    rated: int
    from_catalogue: int
    from_web_file: int
    made_up_web: int
    top_1_percent_share: float
    web_share: float


def normalise(query: str) -> str:
    """A query without differences of case and white space."""
    return " ".join(query.casefold().split())


def write_queries(
    catalogue: Path,
    out: Path,
    *,
    requests: int | None = None,
    key_stream: Path | None = None,
    ratings: Path | None = None,
    web_queries_file: Path | None = None,
    seed: int = 1,
) -> QuerySummary:
    """Writes a query stream for the catalogue bundle `catalogue`: UTF-8, one request a line.

    Without `requests` it takes the whole key stream, or draws until there are 2,000 distinct queries.
    `ratings` is a CSV file with a column `query`; `web_queries_file` has one query a line. Raises UserError.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    keys = _keys(key_stream, requests, random)
    ranks, distinct = ranks_by_frequency(keys, random)
    web = _web_mask(distinct, random)
    taken: dict[str, None] = {}

    wanted = int((~web).sum())
    rated = _take(_rated(ratings, random), wanted, taken)
    phrases = _take(catalogue_phrases(read_catalogue(catalogue), random), wanted - len(rated), taken)
    own = rated + phrases
    if wanted and not own:
        raise UserError(f"{catalogue}: its ads yield no query")
    shared = wanted - len(own)
    from_file = _take(_web_stream(web_queries_file, random), int(web.sum()), taken)
    wanted = int(web.sum()) - len(from_file)
    made_up = _take(itertools.islice(web_queries(seed), MADE_UP_TRIES * (wanted + 100)), wanted, taken)
    if len(made_up) < wanted:
        raise UserError(f"only {len(made_up)} of {wanted} web queries could be made up; give --web-queries")

    texts = np.empty(distinct, object)
    texts[~web] = [own[at % len(own)] for at in range(len(own) + shared)]
    texts[web] = from_file + made_up
    with written_whole(out) as file:
        file.writelines(f"{text}\n" for text in texts[ranks])
    distinct -= shared
    counts = np.sort(np.fromiter(Counter(texts[ranks].tolist()).values(), np.int64))
    return QuerySummary(
        requests=len(ranks),
        distinct=distinct,
        shared=shared,
        rated=len(rated),
        from_catalogue=len(phrases),
        from_web_file=len(from_file),
        made_up_web=len(made_up),
        top_1_percent_share=float(counts[-max(1, distinct // 100) :].sum() / len(ranks)),
        web_share=float(web[ranks].mean()),
    )


def _keys(key_stream: Path | None, requests: int | None, random: np.random.Generator) -> Keys:
    if key_stream is not None:
        return trace_keys(key_stream, requests)
    if requests is not None:
        return drawn_keys(requests, random)
    return drawn_until(DEFAULT_DISTINCT, random)


def _web_mask(distinct: int, random: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which ranks are web queries: two at random of every five neighbours."""
    blocks = -(-distinct // BLOCK)
    order = np.argsort(random.random((blocks, BLOCK)), axis=1)
    return np.asarray((order < WEB_PER_BLOCK).reshape(-1)[:distinct])


def _take(queries: Iterable[str], count: int, taken: dict[str, None]) -> list[str]:
    """The first `count` usable queries that are not yet taken; they are then."""
    chosen: list[str] = []
    if count <= 0:
        return chosen
    for query in queries:
        key = normalise(query)
        if not key or len(key) > MAX_QUERY_CHARS or not key.isprintable() or key in taken:
            continue
        taken[key] = None
        chosen.append(" ".join(query.split()))
        if len(chosen) == count:
            break
    return chosen


def _rated(path: Path | None, random: np.random.Generator) -> list[str]:
    """The distinct queries of a rated set, in random order."""
    if path is None:
        return []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            if "query" not in (reader.fieldnames or ()):
                raise UserError(f"{path}: no column query; the file has {reader.fieldnames}")
            queries = list(dict.fromkeys(row["query"] or "" for row in reader))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: not a CSV file in UTF-8: {error}") from error
    return [queries[at] for at in np.argsort(random.random(len(queries)))]


def _web_stream(path: Path | None, random: np.random.Generator) -> list[str]:
    """The distinct queries of a web stream, the most frequent first, equals in random order."""
    if path is None:
        return []
    try:
        with path.open(encoding="utf-8") as file:
            counts = Counter(normalise(line) for line in file)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8: {error}") from error
    queries = list(counts)
    order = np.lexsort((random.random(len(queries)), -np.fromiter(counts.values(), np.int64, len(queries))))
    return [queries[at] for at in order]


def catalogue_phrases(ads: list[Ad], random: np.random.Generator) -> Iterator[str]:
    """Queries made from ads, the most popular first; then the same with a word of intent."""
    if len(ads) > MAX_ADS:
        ads = [ads[at] for at in np.sort(np.argsort(random.random(len(ads)))[:MAX_ADS])]
    counts: Counter[str] = Counter()
    for ad in ads:
        kinds = _KINDS.split(normalise(ad.category))
        counts.update({*_runs(ad.title), normalise(ad.advertiser), *kinds} - {""})
    phrases = sorted(counts)
    # Box-Muller on plain uniforms: the same numbers whatever numpy's own normal draws become.
    radius = np.sqrt(-2.0 * np.log(1.0 - random.random(len(phrases))))
    noise = radius * np.cos(2.0 * np.pi * random.random(len(phrases)))
    weight = np.log(np.fromiter((counts[phrase] for phrase in phrases), np.float64, len(phrases))) + noise
    ordered = [phrases[at] for at in np.argsort(-weight, kind="stable")]
    yield from ordered
    for intent in _INTENTS:
        yield from (intent.format(phrase) for phrase in ordered)


def _runs(title: str) -> set[str]:
    """The runs of two to four words, of the part of a title that names the offer, that could be a query."""
    words = _WORD.findall(_PART_END.split(title.casefold(), maxsplit=1)[0])
    runs = set()
    for length in (2, 3, 4):
        for start in range(len(words) - length + 1):
            run = words[start : start + length]
            edges = (run[0], run[-1])
            if any(word in _EDGES or word in _UNITS or not _ALPHABETIC.search(word) for word in edges):
                continue
            runs.add(" ".join(run))
    return runs
