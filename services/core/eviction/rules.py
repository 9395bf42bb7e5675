"""What a writer needs to know to compute a priority itself.

A cache entry carries its priority from the moment it is written, so the client that writes it computes one,
from the clock and the frequency that the owner of the order told it. Every order of `priority.LIVE` gives an
entry a power law,

    H = L + scale * cost^cost_power * size^-size_power * frequency^frequency_power

so four numbers tell a client of any language the whole rule. The order rounds and counts uses in its own way
(a burst is one visit, for instance), so the two agree nearly, and the owner raises what was written too low.
"""

from __future__ import annotations

from typing import NamedTuple

from .values import MOST_WORTH


class Rule(NamedTuple):
    """The numbers of the law; costs in the unit of the order, sizes in bytes."""

    scale: float
    cost_power: float
    size_power: float
    frequency_power: float

    def priority(self, clock: int, cost: int, size_bytes: int, frequency: int = 1) -> int:
        """H of an entry that is written now; at most MOST_WORTH above the clock."""
        size = float(max(size_bytes, 1))
        worth: float = self.scale * float(cost) ** self.cost_power * size**-self.size_power
        worth *= float(frequency) ** self.frequency_power
        return clock + int(min(worth, MOST_WORTH))

    def cost(self, worth: int, size_bytes: int) -> int:
        """The cost at which an entry that was used once stands `worth` above the clock.

        >>> rule = Rule(4096.0, 1.25, 1.25, 2.0)
        >>> rule.cost(rule.priority(0, 700, 20), 20)
        700
        """
        size = float(max(size_bytes, 1))
        unscaled: float = max(worth, 0) / self.scale * size**self.size_power
        return round(float(unscaled ** (1 / self.cost_power)))


DEFAULT = Rule(4096.0, 1.25, 1.25, 2.0)
"""The rule of `ours` with one microsecond a byte as typical: what a client goes by until it is told."""
