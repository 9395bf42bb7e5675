"""The k nearest of a proximity graph, node after node until a stop rule has enough.

Problem. How far a search must walk varies a hundredfold between queries, and FAISS, which offers no hook in
its walk, takes a beam width before it starts. Here the walk itself is ours, over FAISS' own arrays, and asks
a rule while it goes.

    descend by the links of the upper levels to the node where no link leads nearer
    while there is a known node that is not expanded, take the nearest:
        stop when it lies beyond the reach, when the rule says so, or at the cap
        compare its neighbours that no one has seen; keep the nearest; queue those within the reach

Best-first search expands the same nodes in the same order whatever ends it. So a fixed beam `ef` is a rule
like any other: its reach is the distance of the ef-th nearest node seen. Rules of a ratio have a reach of
their own (`stopping.ratio`) and keep no beam, only the nearest that are watched. A reach never grows; what
lies beyond it need not be queued.

With a beam the answer is that of FAISS for the same efSearch: rows, but for exact ties, and distances but for
their last bits. Rows that a bitmap does not admit are walked through, as in FAISS, and never returned.

What makes it fast (`frugalads bench retrieval --index hnsw` shows the ratio to FAISS): the vectors of all
unseen neighbours are asked for before the first is compared, and the links of the next node before those of
this one are followed, for a walk waits for memory, not for arithmetic; keys of 64 bits in the heaps; visited
stamps of one byte that no search clears; unsigned indices, which cost numba no test of their sign.

Complexity: O(links d) a node expanded, O(log queue) a node queued. Approximate: all of it, as HNSW is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..compiled import compiled
from ..ivf.distances import inner_product, squared_distance
from ..ivf.scan import ROW_ASKED, ROW_CODES, ROW_LISTS, ROW_STOPPED
from ..stopping.ratio import reach
from ..stopping.rules import FIXED, MARGINAL, PATIENCE
from ..stopping.state import ASKED, MEMORY, SLOTS, State, next_rung
from . import heap
from .asking import ask, tell
from .graph import Arrays, Floats, Ints, Scratch
from .prefetch import prefetch

RECORD = -1
"""In place of a rule: expand nodes up to the cap and note the state after each."""
_LINE = 64  # bytes of a cache line
_GENERATIONS = 255


class Record(NamedTuple):
    """What a recording walk notes after each node expanded, [q, width]; see `replay.Trace`.

    nearest: float32 [q], the squared distance that counts as one of the k nearest, tolerance included.
    """

    following: Floats
    best: Floats
    last: Floats
    codes: npt.NDArray[np.int32]
    nearer: npt.NDArray[np.int32]
    entered: npt.NDArray[np.uint8]
    found: npt.NDArray[np.int16]
    first: Floats
    steps: Ints
    nearest: Floats


@compiled
def _measure(
    graph: Arrays, query: Floats, nodes: npt.NDArray[np.int32], count: int, distances: Floats
) -> None:
    """Distances of nodes[:count], asked for from memory before."""
    if graph.inner:
        for i in range(count):
            u = np.uint64(i)
            distances[u] = -inner_product(query, graph.vectors[np.uint64(nodes[u])])
    else:
        for i in range(count):
            u = np.uint64(i)
            distances[u] = squared_distance(query, graph.vectors[np.uint64(nodes[u])])


@compiled
def _ask(vectors: Floats, node: int, lines: int) -> None:
    address = np.uint64(vectors.ctypes.data) + np.uint64(node) * np.uint64(4 * vectors.shape[1])
    for line in range(lines):
        prefetch(address + np.uint64(_LINE * line))


@compiled
def _descend(
    graph: Arrays, query: Floats, nodes: npt.NDArray[np.int32], distances: Floats, lines: int
) -> tuple[int, float, int]:
    """The node on level 0 to start from, its distance, and nodes compared on the way."""
    node: Any = graph.entry
    compared = 1
    nodes[0] = node
    _measure(graph, query, nodes, 1, distances)
    nearest: Any = distances[0]
    for level in range(graph.top, 0, -1):
        width = np.uint64(graph.starts[level + 1] - graph.starts[level])
        moved = True
        while moved:
            moved, count = False, 0
            start = graph.offsets[np.uint64(node)] + np.uint64(graph.starts[level])
            for j in range(start, start + width):
                other = graph.links[np.uint64(j)]
                if other < 0:
                    break
                nodes[np.uint64(count)] = other
                count += 1
                _ask(graph.vectors, other, lines)
            _measure(graph, query, nodes, count, distances)
            compared += count
            for i in range(count):
                if distances[i] < nearest:
                    node, nearest, moved = np.int64(nodes[i]), distances[i], True
    return node, nearest, compared


@compiled
def _generation(scratch: Scratch) -> np.uint8:
    """The stamp of this search."""
    if scratch.generation[0] == _GENERATIONS:
        scratch.stamps[:] = 0
        scratch.generation[0] = 0
    scratch.generation[0] += np.uint8(1)
    stamp: np.uint8 = scratch.generation[0]
    return stamp


@compiled
def _admitted(bitmap: npt.NDArray[np.uint8], node: int) -> bool:
    return bitmap.size == 0 or (bitmap[node >> 3] >> (node & 7)) & 1 != 0


@compiled
def _walk_one(
    graph: Arrays,
    scratch: Scratch,
    query: Floats,
    k: int,
    cap: int,
    rule: int,
    parameters: State,
    forest: Any,
    bitmap: npt.NDArray[np.uint8],
    nearest: Ints,
    beam: Ints,
    work: Ints,
    record: Record | None,
    q: int,
) -> int:
    """One query: fills the heap `nearest` of complements of keys and `work`; how many were found.

    beam: int64 [ef], the heap of the nearest nodes seen where the rule has one; 0 rows for none.
    """
    links, offsets, queue, stamps = graph.links, graph.offsets, scratch.queue, scratch.stamps
    degree = np.int64(graph.starts[1])
    lines, link_lines = (4 * query.size + _LINE - 1) // _LINE, (4 * degree + _LINE - 1) // _LINE
    link_base = np.uint64(links.ctypes.data)
    fresh, apart = np.empty(degree, dtype=np.int32), np.empty(degree, dtype=np.float32)
    bits, one = apart.view(np.int32), np.empty(1, dtype=np.int32)
    decoded = one.view(np.float32)
    asking = rule in (MARGINAL, PATIENCE)
    log_g, mix = parameters[-2] if parameters.size > 1 else 0.0, parameters[-1]
    seen = np.zeros(SLOTS if asking else 0)
    memory = np.zeros(MEMORY if asking else 0)
    coarse = np.empty(2, dtype=np.float32)
    won = 0
    if record is not None:
        passed, limit = np.empty(cap, dtype=np.float32), record.nearest[q]

    start, first, compared = _descend(graph, query, fresh, apart, lines)
    stamp = _generation(scratch)
    stamps[np.uint64(start)] = stamp
    best: Any = np.float32(np.inf)
    last: Any = best
    bound: Any = best
    apart[0], coarse[0] = first, first
    key = heap.key_of(bits[0], start)
    queue[0] = key
    queued, held, kept = 1, 0, 0
    if beam.size:
        held = heap.offer(beam, held, ~key)
        bound = first if held == beam.size else bound
    if _admitted(bitmap, start):
        kept = heap.offer(nearest, kept, ~key)
        best = first
        last = first if kept == nearest.size else last
        if record is not None:
            won = int(first <= limit)
    expanded, entered, best_at, last_at, stable_at, ask_at = 0, 0, 0, 0, 0, 1
    while queued:
        key = queue[0]
        one[0] = heap.bits_of(key)
        following = decoded[0]
        if record is not None:  # noqa: SIM102 - this alone is what numba leaves out of a walk that records not
            if expanded:
                at, place = expanded - 1, expanded
                while place and passed[place - 1] >= following:
                    place -= 1
                record.following[q, at], record.best[q, at], record.last[q, at] = following, best, last
                record.codes[q, at], record.nearer[q, at] = compared, place
                record.entered[q, at], record.found[q, at] = min(entered, 255), won
        if following > bound:
            work[ROW_STOPPED] = int(beam.size == 0)
            break
        if expanded >= cap:
            break
        if asking and expanded == ask_at:
            rung = min(next_rung(expanded), cap)
            tell(seen, coarse, expanded, compared, best, last, best_at, last_at, stable_at, following, rung)
            ask_at = ask(rule, seen, coarse, memory, parameters, forest)
            if ask_at <= expanded:
                work[ROW_STOPPED] = 1
                break
        queued -= 1
        if queued:
            heap.replace(queue, queued, queue[np.uint64(queued)])
            ahead = link_base + np.uint64(4) * offsets[np.uint64(heap.node_of(queue[0]))]
            for line in range(link_lines):
                prefetch(ahead + np.uint64(_LINE * line))
        if record is not None:
            place = expanded
            while place and passed[place - 1] > following:
                passed[place] = passed[place - 1]
                place -= 1
            passed[place] = following
        expanded += 1
        begin, count = offsets[np.uint64(heap.node_of(key))], 0
        for j in range(begin, begin + np.uint64(degree)):
            other = links[np.uint64(j)]
            if other < 0:
                break
            if stamps[np.uint64(other)] != stamp:
                stamps[np.uint64(other)] = stamp
                fresh[np.uint64(count)] = other
                count += 1
                _ask(graph.vectors, other, lines)
        _measure(graph, query, fresh, count, apart)
        compared += count
        entered = 0
        for i in range(count):
            u = np.uint64(i)
            distance = apart[u]
            if not (distance < bound or distance < last):
                continue
            node: Any = np.int64(fresh[u])
            key = heap.key_of(bits[u], node)
            if distance < bound:
                heap.push(queue, queued, key)
                queued += 1
                if beam.size:
                    held = heap.offer(beam, held, ~key)
                    if held == beam.size:
                        one[0] = heap.bits_of(~beam[0])
                        bound = decoded[0]
            if distance < last and _admitted(bitmap, node):
                if record is not None:
                    won += int(distance <= limit)
                kept = heap.offer(nearest, kept, ~key)
                entered += 1
                if distance < best:
                    best, best_at = distance, expanded
                if kept == nearest.size:
                    one[0] = heap.bits_of(~nearest[0])
                    last = decoded[0]
        if entered:
            last_at = expanded
            if entered > k // 20:
                stable_at = expanded
            if not beam.size:
                bound = np.float32(reach(best, last, log_g, mix))
    work[ROW_LISTS], work[ROW_CODES] = expanded, compared
    work[ROW_ASKED] = int(memory[ASKED]) if asking else 0
    if record is not None:
        record.steps[q], record.first[q] = expanded, first
        for at in range(
            expanded if queued else expanded - 1, record.found.shape[1]
        ):  # nothing left to expand
            record.following[q, at], record.best[q, at], record.last[q, at] = np.inf, best, last
            record.codes[q, at], record.nearer[q, at] = compared, expanded
            record.entered[q, at], record.found[q, at] = min(entered, 255) if at < expanded else 0, won
    return kept


@compiled
def walk(
    graph: Arrays,
    scratch: Scratch,
    queries: Floats,
    k: int,
    watched: int,
    caps: Ints,
    rule: int,
    parameters: State,
    knobs: State,
    forest: Any,
    bitmap: npt.NDArray[np.uint8],
    distances: Floats,
    rows: Ints,
    work: Ints,
    record: Record | None,
) -> None:
    """Every query in turn: `search.search` says what the arguments are, and has checked them."""
    nearest = np.empty(watched, dtype=np.int64)
    one = np.empty(1, dtype=np.int32)
    decoded = one.view(np.float32)
    own = parameters.copy()
    for q in range(queries.shape[0]):
        own[0] = knobs[q]
        ef = 0
        if rule == FIXED:
            ef = max(1, int(own[0]))
        elif rule in (PATIENCE, RECORD):
            ef = caps[q]
        beam = np.empty(min(ef, scratch.stamps.size), dtype=np.int64)
        work[q], distances[q], rows[q] = 0, np.inf, -1
        kept = _walk_one(
            graph,
            scratch,
            queries[q],
            k,
            caps[q],
            rule,
            own,
            forest,
            bitmap,
            nearest,
            beam,
            work[q],
            record,
            q,
        )
        for place in range(kept - 1, -1, -1):
            key = ~nearest[0]
            heap.replace(nearest, place, nearest[place])
            if place < k:
                one[0] = heap.bits_of(key)
                distances[q, place], rows[q, place] = decoded[0], heap.node_of(key)
