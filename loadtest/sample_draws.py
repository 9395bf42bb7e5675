"""Random draws that are the same on every Python version and platform."""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Sequence
from statistics import NormalDist
from typing import Generic, TypeVar

T = TypeVar("T")
_STANDARD = NormalDist()


class Draws:
    """Draws from one seeded stream.

    Only `random.Random.random` promises the same numbers on every version of Python; `choice`, `shuffle` and
    `gauss` have changed before. Everything here is made from it.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random() < probability

    def below(self, limit: int) -> int:
        """An integer in 0..limit-1."""
        return int(self._random() * limit)

    def pick(self, items: Sequence[T]) -> T:
        """One of `items`."""
        return items[self.below(len(items))]

    def some(self, items: Sequence[T], count: int) -> list[T]:
        """`count` different ones of `items`, fewer where there are fewer."""
        return self.shuffled(items)[:count]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """All of `items` in random order."""
        keyed = [(self._random(), at) for at in range(len(items))]
        return [items[at] for _, at in sorted(keyed)]

    def uniform(self, low: float, high: float) -> float:
        """A number in low..high."""
        return low + (high - low) * self._random()

    def normal(self, law: NormalDist = _STANDARD) -> float:
        """A draw from a normal law."""
        return law.inv_cdf((self._random() * 2**53 + 0.5) / 2**53)

    def pareto(self, least: float, exponent: float) -> float:
        """A heavy-tailed draw, at least `least`: P(x > t) = (least / t) ** exponent."""
        return least * math.exp(-math.log(1.0 - self._random()) / exponent)

    def weighted(self, wheel: Wheel[T]) -> T:
        """One of the items of a wheel, by weight."""
        return wheel.at(self._random())


class Wheel(Generic[T]):
    """Items with weights, to be drawn from."""

    def __init__(self, items: Sequence[T], weights: Sequence[float]) -> None:
        self._items = items
        self._ends = list(itertools.accumulate(weights))

    def at(self, share: float) -> T:
        """The item at this share, 0 <= share < 1, of the total weight."""
        at = bisect.bisect_right(self._ends, share * self._ends[-1])
        return self._items[min(at, len(self._items) - 1)]


def zipf(count: int, exponent: float) -> list[float]:
    """Weights 1, 2^-s, 3^-s, ... of a Zipf law."""
    return [(rank + 1) ** -exponent for rank in range(count)]
