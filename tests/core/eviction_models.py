"""The eviction orders as anyone would write them down: dictionaries, lists and sorting, no care for speed.

A model knows nothing of slots, wheels, heaps or tables. `pop` removes and returns the next victim. What the
compiled orders approximate by hashing (the sketch, the ghosts) is exact here; tests choose few keys and large
tables, so that nothing collides.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from services.core.eviction.priority import MAX_PRIORITY
from services.core.eviction.values import MOST_WORTH


def quotient(weight: int, cost: int, size: int) -> int:
    """weight * cost / size, in doubles where the product leaves 62 bits."""
    if cost and weight > 2**62 // cost:
        return int(float(weight) * float(cost) / max(size, 1))
    return weight * cost // max(size, 1)


@dataclass
class Row:
    key: bytes
    size: int
    cost: int
    priority: int = 0
    used: int = 0
    turn: int = 0
    count: int = 0
    part: int = 0


class Model:
    """Rows, newest use last, and LRU as the order."""

    def __init__(self, typical_cost: int, typical_size: int) -> None:
        self.typical_cost, self.typical_size = typical_cost, typical_size
        self.rows: dict[bytes, Row] = {}
        self.clock = 0
        self.uses = 0

    def admit(self, key: bytes, size: int, cost: int) -> None:
        row = self.rows.get(key)
        if row is None:
            row = Row(key, size, cost)
        else:
            self.remove(key)
            row.size, row.cost = size, cost
        self.rows[key] = row
        self.placed(row)

    def hit(self, key: bytes) -> None:
        row = self.rows.pop(key)
        self.rows[key] = row
        self.risen(row)

    def remove(self, key: bytes) -> None:
        del self.rows[key]

    def pop(self) -> Row:
        row = self.victim()
        del self.rows[row.key]
        self.popped(row)
        return row

    def placed(self, row: Row) -> None:
        """A row has come, or has been rewritten."""

    def risen(self, row: Row) -> None:
        """A row has been hit."""
        self.placed(row)

    def victim(self) -> Row:
        return next(iter(self.rows.values()))

    def popped(self, row: Row) -> None:
        """The victim has gone."""


class GreedyDualModel(Model):
    """Young: H = L + worth; the lowest H goes, the least recently used among equals."""

    def worth(self, row: Row) -> int:
        return row.cost

    def placed(self, row: Row) -> None:
        self.uses += 1
        row.used = row.turn = self.uses
        row.priority = min(self.clock + min(self.worth(row), MOST_WORTH), MAX_PRIORITY)

    def victim(self) -> Row:
        return min(self.rows.values(), key=lambda row: (row.priority, row.turn))

    def popped(self, row: Row) -> None:
        self.clock = row.priority

    def place(self, row: Row, priority: int) -> None:
        """At a priority of its owner's, the newest among equals; no use."""
        self.rows[row.key] = row
        self.uses += 1
        row.turn = self.uses
        row.priority = min(max(priority, self.clock), self.clock + MOST_WORTH, MAX_PRIORITY)


class GdsfModel(GreedyDualModel):
    def worth(self, row: Row) -> int:
        row.count += 1
        return quotient(row.count * 16 * self.typical_size, row.cost, row.size)


class CampModel(GreedyDualModel):
    """Rounded ratios; L is the lowest H that is left."""

    largest = 1

    def worth(self, row: Row) -> int:
        self.largest = max(self.largest, row.size)
        ratio = min(quotient(self.largest, row.cost, row.size), MAX_PRIORITY)
        dropped = max(ratio.bit_length() - 5, 0)
        return ratio >> dropped << dropped

    def popped(self, row: Row) -> None:
        self.clock = self.victim().priority if self.rows else row.priority


class CostwheelModel(GreedyDualModel):
    """Visits remembered past eviction, bursts counted once."""

    def __init__(self, typical_cost: int, typical_size: int) -> None:
        super().__init__(typical_cost, typical_size)
        self.remembered: dict[bytes, int] = {}
        self.returning = 0
        self.stored = 0

    def worth(self, row: Row) -> int:
        if row.count == 0:
            known = self.remembered.get(row.key, 0)
            settled = self.settled()
            self.returning += ((2**20 if known else 0) - self.returning) // 1024
            row.count = max(known, 1) if settled else known + 1
        elif self.uses - self.last > len(self.rows) // 8:
            row.count += 1
        row.count = min(row.count, 255)
        ratio = row.cost / (max(row.size, 1) * (self.typical_cost / self.typical_size))
        weight = float(4096 * np.arange(256)[row.count] ** (1.5 if self.settled() else 2))
        return int(min(ratio * sqrt(sqrt(ratio)) * weight, float(MAX_PRIORITY)))

    def settled(self) -> bool:
        return self.returning > 0.9 * 2**20

    def placed(self, row: Row) -> None:
        self.last = row.used
        super().placed(row)

    def store(self, row: Row, entries: int) -> None:
        self.remembered[row.key] = max(self.remembered.get(row.key, 0), row.count)
        self.stored += 1
        if self.stored >= 4 * entries:
            self.stored = 0
            self.remembered = {key: count // 2 for key, count in self.remembered.items()}

    def remove(self, key: bytes) -> None:
        self.store(self.rows[key], len(self.rows))
        super().remove(key)

    def popped(self, row: Row) -> None:
        super().popped(row)
        self.store(row, len(self.rows) + 1)


class GdWheel2015Model(Model):
    """The pseudo-code of 2015 on a list a queue that is in use; index 0 of a queue is its head."""

    def __init__(self, typical_cost: int, typical_size: int) -> None:
        super().__init__(typical_cost, typical_size)
        self.queues: dict[tuple[int, int], list[bytes]] = {}
        self.hands = [0, 0]

    def push(self, wheel: int, number: int, key: bytes) -> None:
        self.queues.setdefault((wheel, number % 256), []).insert(0, key)

    def placed(self, row: Row) -> None:
        self.taken_out(row.key)
        cost = min(row.cost, 65_535)
        wheel = 1 if cost >= 256 else 0
        self.push(wheel, cost // 256**wheel + self.hands[wheel], row.key)

    def taken_out(self, key: bytes) -> None:
        self.queues = {
            place: kept for place, queue in self.queues.items() if (kept := [k for k in queue if k != key])
        }

    def remove(self, key: bytes) -> None:
        self.taken_out(key)
        super().remove(key)

    def victim(self) -> Row:
        while (0, self.hands[0]) not in self.queues:
            self.hands[0] = (self.hands[0] + 1) % 256
            if self.hands[0] == 0:
                self.hands[1] = (self.hands[1] + 1) % 256
                for key in reversed(self.queues.pop((1, self.hands[1]), [])):
                    self.push(0, min(self.rows[key].cost, 65_535) % 256 + self.hands[0], key)
        return self.rows[self.queues[0, self.hands[0]][-1]]

    def popped(self, row: Row) -> None:
        self.taken_out(row.key)


class SieveModel(Model):
    """`rows` in the order of insertion; `count` is the visited bit."""

    hand: bytes | None = None

    def hit(self, key: bytes) -> None:
        self.rows[key].count = 1

    def placed(self, row: Row) -> None:
        row.count = 0

    def newer(self, key: bytes) -> bytes | None:
        keys = list(self.rows)
        at = keys.index(key) + 1
        return keys[at] if at < len(keys) else None

    def remove(self, key: bytes) -> None:
        if self.hand == key:
            self.hand = self.newer(key)
        super().remove(key)

    def victim(self) -> Row:
        key = self.hand or next(iter(self.rows))
        while self.rows[key].count:
            self.rows[key].count = 0
            key = self.newer(key) or next(iter(self.rows))
        self.hand = self.newer(key)
        return self.rows[key]


class S3FifoModel(Model):
    """`part` 0 is S, 1 is M; `used` orders the queues; `count` is freq."""

    def __init__(self, typical_cost: int, typical_size: int) -> None:
        super().__init__(typical_cost, typical_size)
        self.ghosts: dict[bytes, int] = {}
        self.told = 0

    def enter(self, row: Row, part: int) -> None:
        self.uses += 1
        row.used, row.part = self.uses, part

    def placed(self, row: Row) -> None:
        row.count = 0
        told = self.ghosts.get(row.key)
        self.enter(row, int(told is not None and self.told - told < len(self.rows) * 9 // 10))

    def hit(self, key: bytes) -> None:
        self.rows[key].count = min(self.rows[key].count + 1, 3)

    def tail(self, part: int) -> Row | None:
        rows = (row for row in self.rows.values() if row.part == part)
        return min(rows, key=lambda row: row.used, default=None)

    def victim(self) -> Row:
        while True:
            small, main = self.tail(0), self.tail(1)
            in_small = sum(row.size for row in self.rows.values() if row.part == 0)
            if small is not None and (
                10 * in_small >= sum(row.size for row in self.rows.values()) or main is None
            ):
                if small.count <= 1:
                    self.told += 1
                    self.ghosts[small.key] = self.told
                    return small
                small.count = 0
                self.enter(small, 1)
                continue
            assert main is not None
            if main.count == 0:
                return main
            main.count -= 1
            self.enter(main, 1)


class WTinyLfuModel(Model):
    """`part` 0 is the window, 1 probation, 2 protected; `used` orders each of them."""

    def __init__(self, typical_cost: int, typical_size: int) -> None:
        super().__init__(typical_cost, typical_size)
        self.counts: dict[bytes, int] = {}
        self.seen = 0

    def enter(self, row: Row, part: int) -> None:
        self.uses += 1
        row.used, row.part = self.uses, part

    def counted(self, key: bytes) -> None:
        self.counts[key] = min(self.counts.get(key, 0) + 1, 15)
        self.seen += 1
        if self.seen >= 10 * len(self.rows):
            self.seen = 0
            self.counts = {key: count // 2 for key, count in self.counts.items()}

    def held(self, part: int) -> list[Row]:
        return sorted((row for row in self.rows.values() if row.part == part), key=lambda row: row.used)

    def bytes_of(self, *parts: int) -> int:
        return sum(row.size for row in self.rows.values() if row.part in parts)

    def placed(self, row: Row) -> None:
        self.counted(row.key)
        self.enter(row, 0)
        while 100 * self.bytes_of(0) > self.bytes_of(0, 1, 2) and self.held(0)[0] is not row:
            self.enter(self.held(0)[0], 1)

    def risen(self, row: Row) -> None:
        self.counted(row.key)
        self.enter(row, 0 if row.part == 0 else 2)
        while 5 * self.bytes_of(2) > 4 * self.bytes_of(1, 2):
            self.enter(self.held(2)[0], 1)

    def victim(self) -> Row:
        window, main = self.held(0), self.held(1) + self.held(2)
        if not main:
            return window[0]
        if not window or 100 * self.bytes_of(0) < self.bytes_of(0, 1, 2):
            return main[0]
        if self.counts.get(window[0].key, 0) <= self.counts.get(main[0].key, 0):
            return window[0]
        loser = main[0]
        self.enter(window[0], 1)
        return loser


MODELS: dict[str, type[Model]] = {
    "lru": Model,
    "greedydual": GreedyDualModel,
    "gdwheel2015": GdWheel2015Model,
    "gdwheel": GreedyDualModel,
    "camp": CampModel,
    "gdsf": GdsfModel,
    "s3fifo": S3FifoModel,
    "sieve": SieveModel,
    "wtinylfu": WTinyLfuModel,
    "ours": CostwheelModel,
    "ours-heap": CostwheelModel,
}
