"""The k nearest vectors of an inverted-file index, list after list until a stop rule has enough.

Problem. How many lists a query needs varies a hundredfold, and FAISS takes the number before it starts.
Searching in stages from outside costs a call a stage (about 10 us, as much as scanning ten lists). Here one
compiled loop per query ranks the lists as far as it goes, scans them where FAISS keeps them, keeps the
nearest in a heap, and asks the rule after a list: a decision costs tens of nanoseconds, and each query of a
batch stops on its own.

    rotate the query                                      (OPQ; otherwise not)
    distances to all centroids -> keys                    `ranking`, sorted lazily
    for the next list, while the rule wants more and the cap allows:
        distances of its codes                            `distances`; flat, or by the query's look-up table
        keep those nearer than the heap's farthest        `nearest`
        update the state; ask the rule when it asked to be
    quantized codes: exact distances of the candidates    from the vectors before rotation

The answer equals that of FAISS for the same lists: ids, but for the order of exact ties, and distances, but
for the last bits, as sums have another order. A query's answer does not depend on its batch.

Two heaps for quantized codes: `depth` candidates to re-rank exactly, and the distances of the `watched`
nearest, of which the rule's state tells; for flat codes depth equals watched and one serves as both.

Invariants: the order of lists does not depend on the rule; vectors not admitted are neither compared nor
counted. Complexity: O(lists d) to rank, O(d) a code (flat) or O(m) (quantized), O(log depth) a code that
enters.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..compiled import compiled
from ..stopping.rules import APS, DARTH, decide
from ..stopping.state import (
    AHEAD,
    ASKED,
    BEST,
    BEST_AT,
    CODES,
    INSERTED,
    LAST,
    LAST_AT,
    LISTS,
    MEAN,
    MEDIAN,
    MEMORY,
    QUARTER,
    READY,
    SLOTS,
    STABLE_AT,
    THREE_QUARTERS,
    VARIANCE,
    WATCHED,
    next_rung,
)
from . import nearest, ranking
from .distances import distance_table, flat_distances, inner_product, squared_distance, table_sums
from .memory import Floats, Ints, Lists, codes_at, rows_at, vectors_at

RECORD = -1
"""In place of a rule: visit every list up to the cap and note the state after each."""

ROW_LISTS, ROW_CODES, ROW_ASKED, ROW_STOPPED = range(4)
"""Columns of the work of a query; the last is 1 when the rule ended the search before the cap."""


class Record(NamedTuple):
    """Where a recording search writes: as `stopping.replay.Trace`, with the distances that count as found.

    nearest: float32 [q], the squared distance of the k-th true neighbour, tolerance included.
    """

    seen: Floats
    coarse: Floats
    margins: Floats
    queries: Floats
    found: Floats
    nearest: Floats


@compiled
def _spread(distances: Floats, seen: npt.NDArray[np.float64]) -> None:
    """Mean, variance and quartiles of the finite distances of a heap."""
    values = np.sort(distances)
    count = 0
    while count < values.size and values[count] < np.inf:
        count += 1
    total, squares = 0.0, 0.0
    for i in range(count):
        total += values[i]
        squares += values[i] * values[i]
    mean = total / max(count, 1)
    seen[MEAN], seen[VARIANCE] = mean, max(squares / max(count, 1) - mean * mean, 0.0)
    seen[QUARTER] = values[max(count, 1) // 4]
    seen[MEDIAN] = values[max(count, 1) // 2]
    seen[THREE_QUARTERS] = values[3 * max(count, 1) // 4]


@compiled
def _margins(centroids: Floats, keys: Ints, coarse: Floats, margins: Floats) -> None:
    """Distance of the query from the hyperplane between the nearest centroid and each of margins.size."""
    first = centroids[ranking.list_of(keys[0])]
    margins[0] = 0.0
    for j in range(1, margins.size):
        apart = math.sqrt(squared_distance(first, centroids[ranking.list_of(keys[j])]))
        margins[j] = (coarse[j] - coarse[0]) / max(2.0 * apart, 1e-30)


@compiled
def _admit(bitmap: npt.NDArray[np.uint8], rows: Ints, distances: Floats) -> int:
    """Puts the distances of rows that are not admitted out of reach; how many are admitted."""
    count = 0
    for i in range(rows.size):
        if (bitmap[rows[i] >> 3] >> (rows[i] & 7)) & 1:
            count += 1
        else:
            distances[i] = np.inf
    return count


@compiled
def _true_distance(lists: Lists, original: Floats, row: int, distance: float) -> float:
    """The exact distance of a candidate: what it has, or for a quantized one that of its vector."""
    return squared_distance(original, lists.vectors[row]) if lists.books.shape[0] else distance


@compiled
def _offer(
    lists: Lists,
    original: Floats,
    ids: Ints,
    distances: Floats,
    found: Floats,
    rows: Ints,
    watched: Floats,
    watched_rows: Ints,
    limit: float,
) -> tuple[int, float, int]:
    """Offers a list to the heaps; how many entered the watched set, their least distance, and true neighbours
    won.

    A true neighbour is one not farther than `limit`, which is negative where nothing is recorded.
    """
    entered, least, won = 0, np.inf, 0
    for i in range(ids.size):
        distance = distances[i]
        if not distance < found[0]:
            continue
        if limit >= 0:
            won += int(_true_distance(lists, original, ids[i], distance) <= limit)
            if rows[0] >= 0:
                won -= int(_true_distance(lists, original, rows[0], found[0]) <= limit)
        nearest.replace(found, rows, distance, ids[i])
        if watched.size:
            if not distance < watched[0]:
                continue
            nearest.replace(watched, watched_rows, distance, ids[i])
        entered += 1
        least = min(least, distance)
    return entered, least, won


@compiled
def _search_one(
    lists: Lists,
    original: Floats,
    stable: int,
    cap: int,
    rule: int,
    parameters: npt.NDArray[np.float64],
    forest: Any,
    bitmap: npt.NDArray[np.uint8],
    found: Floats,
    rows: Ints,
    watched: Floats,
    watched_rows: Ints,
    work: Ints,
    record: Record,
    q: int,
) -> None:
    """One query into the heap `found`, `rows` and its `work`; with RECORD also into row q of `record`."""
    count, dimension = lists.centroids.shape
    parts, recording = lists.books.shape[0], rule == RECORD
    query = original
    if lists.rotation.shape[0]:
        query = np.empty(dimension, dtype=np.float32)
        for i in range(dimension):
            query[i] = inner_product(lists.rotation[i], original)
    coarse, keys = np.empty(count, dtype=np.float32), np.empty(count, dtype=np.int64)
    flat_distances(query, lists.centroids, coarse)
    ranking.pack(coarse, keys)
    bits = keys.view(np.float32)  # the distance of key j is at 2 j + 1, on a little-endian machine
    stack = np.empty(ranking.STACK, dtype=np.int64)
    stack[0] = count
    depth, ready = 1, 0
    margins = np.empty(cap if rule == APS or recording else 0, dtype=np.float32)
    table = np.empty((parts, 256), dtype=np.float32)
    if parts:
        distance_table(query, lists.books, table)
    nearest.empty(found, rows)
    watched[:] = np.inf
    limit = record.nearest[q] if recording else -1.0
    buffer = np.empty(lists.sizes.max(), dtype=np.float32)
    seen, memory = np.zeros(SLOTS), np.zeros(MEMORY)
    seen[BEST] = np.inf
    visited, compared, passed, won = 0, 0, 0, 0
    rung, rung_codes, ask_at = 0, 0, 1
    while visited < cap:
        wanted = max(cap, READY) if margins.size else max(2 * visited + 3, READY)
        if ready < min(wanted, count):
            before = ready
            depth, ready = ranking.extend(keys, stack, depth, ready, wanted)
            for j in range(before, ready):
                coarse[j] = bits[2 * j + 1]
            if margins.size and not visited:
                _margins(lists.centroids, keys, coarse, margins)
        key = ranking.list_of(keys[visited])
        visited += 1
        size = lists.sizes[key]
        if size:
            ids = rows_at(lists.ids[key], size)
            if parts:
                table_sums(table, codes_at(lists.codes[key], size, parts), buffer)
            else:
                flat_distances(query, vectors_at(lists.codes[key], size, dimension), buffer)
            passed += size
            compared += _admit(bitmap, ids, buffer[:size]) if bitmap.size else size
            entered, least, more = _offer(
                lists, original, ids, buffer, found, rows, watched, watched_rows, limit
            )
            won += more
            seen[INSERTED] += entered
            if entered:
                seen[LAST_AT] = visited
            if entered > stable:
                seen[STABLE_AT] = visited
            if least < seen[BEST]:
                seen[BEST], seen[BEST_AT] = least, visited
        seen[LISTS], seen[CODES] = visited, compared
        seen[LAST] = watched[0] if watched.size else found[0]
        if recording:
            if entered:
                _spread(watched if watched.size else found, seen)
            record.seen[q, visited - 1] = seen
            record.found[q, visited - 1] = won
        elif visited == ask_at and visited < cap:
            while rung < min(next_rung(visited), cap):
                rung_codes += lists.sizes[ranking.list_of(keys[rung])]
                rung += 1
            seen[AHEAD] = rung_codes - passed
            if rule == DARTH:
                _spread(watched if watched.size else found, seen)
            ask_at = decide(rule, seen, coarse, margins, query, memory, parameters, forest)
            if ask_at <= visited:
                work[ROW_STOPPED] = 1
                break
    work[ROW_LISTS], work[ROW_CODES], work[ROW_ASKED] = visited, compared, int(memory[ASKED])
    if recording:
        columns = record.coarse.shape[1]
        ranking.extend(keys, stack, depth, ready, columns)
        for j in range(columns):
            record.coarse[q, j] = bits[2 * j + 1]
        record.margins[q] = margins
        record.queries[q] = query


@compiled
def scan(
    lists: Lists,
    queries: Floats,
    k: int,
    depth: int,
    caps: Ints,
    rule: int,
    parameters: npt.NDArray[np.float64],
    knobs: npt.NDArray[np.float64],
    forest: Any,
    bitmap: npt.NDArray[np.uint8],
    distances: Floats,
    rows: Ints,
    work: Ints,
    record: Record,
) -> None:
    """Every query in turn: `search.search` says what the arguments are, and has checked them."""
    watching = max(k, WATCHED)
    watched = np.empty(watching if depth > watching else 0, dtype=np.float32)
    watched_names = np.empty(watched.size, dtype=np.int64)
    found, names = np.empty(depth, dtype=np.float32), np.empty(depth, dtype=np.int64)
    own = parameters.copy()
    for q in range(queries.shape[0]):
        work[q] = 0
        own[0] = knobs[q]
        _search_one(
            lists,
            queries[q],
            k // 20,
            caps[q],
            rule,
            own,
            forest,
            bitmap,
            found,
            names,
            watched,
            watched_names,
            work[q],
            record,
            q,
        )
        if lists.books.shape[0]:
            for i in range(depth):
                if names[i] >= 0:
                    found[i] = squared_distance(queries[q], lists.vectors[names[i]])
            nearest.rebuild(found, names)
        nearest.sort(found, names)
        distances[q], rows[q] = found[:k], names[:k]
