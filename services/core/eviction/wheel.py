"""A hierarchical wheel: a priority queue of integers, none below the last one taken, in O(1) amortised.

Source: G. Varghese and T. Lauck, "Hashed and hierarchical timing wheels" (SOSP 1987), as GD-Wheel applies it
to eviction (C. Li and A. Cox, EuroSys 2015, section 3.2), in the form of its precursor (LADIS 2013, section
III), which keeps the absolute priority H of every entry.

Eight wheels of 64 queues. A priority is a number of eight digits of 6 bits; the hand is one too: the clock L
of the order. No entry lies below it. An entry stands in the wheel of the highest digit in which it differs
from the hand, in the queue of its own digit there (in wheel 0 when it does not differ). So wheel 0 holds
single priorities, wheel 1 spans of 64, and so on; the lowest entry is in the lowest wheel that is not empty,
in its first queue from the hand on.

    insert   push to the newest end of its queue
    remove   unlink; the queue follows from priority and hand, so no entry stores it
    pop      wheel 0 not empty: hand <- the priority of its first queue; take its oldest entry
             else migration: hand <- start of the span of the first queue; every entry of that queue, oldest
             first, moves to the wheel where it stands now, a lower one; look again

Exactness. Equal priorities always share a queue, because the queue depends on priority and hand only and a
queue is emptied as a whole; migration keeps their sequence, and whoever comes later is pushed behind. So
entries leave by priority, the least recently used first among equals, with no rounding: victim for victim
what a heap gives. An entry moves down at most seven times between two uses, whatever the number of entries;
one flag a queue finds the first queue in a few steps. The heads of the queues take 24 kB (six wheels of 256:
74 kB, more than 7 bytes an entry in a cache of 10,000).
"""

from __future__ import annotations

from math import frexp

from ..compiled import compiled
from .state import CLOCK, NONE, State, link, oldest, unlink

_DIGIT_BITS = 6
_QUEUES = 1 << _DIGIT_BITS
_WHEELS = 8  # MAX_PRIORITY has 43 bits
_FLAGS = 32  # in a word

LISTS = _WHEELS * _QUEUES
WORDS = LISTS // _FLAGS


@compiled
def _queue(hand: int, priority: int) -> int:
    wheel, difference = 0, (hand ^ priority) >> _DIGIT_BITS
    while difference:
        wheel += 1
        difference >>= _DIGIT_BITS
    return wheel * _QUEUES + ((priority >> (wheel * _DIGIT_BITS)) & (_QUEUES - 1))


@compiled
def insert(s: State, slot: int) -> None:
    """Add a slot at its node's priority, which must not lie below the clock, as just used."""
    queue = _queue(s.numbers[CLOCK], s.nodes[slot]["priority"])
    link(s, queue, slot)
    s.words[queue // _FLAGS] |= 1 << (queue % _FLAGS)


@compiled
def remove(s: State, slot: int) -> None:
    """Take a slot out."""
    unlink(s, slot)
    queue = _queue(s.numbers[CLOCK], s.nodes[slot]["priority"])
    if oldest(s, queue) == queue:
        s.words[queue // _FLAGS] &= ~(1 << (queue % _FLAGS))


@compiled
def _first(s: State) -> int:
    """The first queue of the lowest wheel that is not empty, NONE when all are. None lies before the hand."""
    for word in range(WORDS):
        flags = s.words[word]
        if flags:
            return word * _FLAGS + frexp(float(flags & -flags))[1] - 1
    return NONE


@compiled
def pop(s: State) -> int:
    """Take out the slot of lowest priority, the least recently used among equals, and move the clock there;
    NONE when empty.
    """
    queue = _first(s)
    while queue >= _QUEUES:
        _migrate(s, queue)
        queue = _first(s)
    if queue == NONE:
        return NONE
    slot = oldest(s, queue)
    s.numbers[CLOCK] = s.nodes[slot]["priority"]
    remove(s, slot)
    return slot


@compiled
def _migrate(s: State, queue: int) -> None:
    """Move the hand to the start of a queue's span, and its entries to lower wheels, oldest first."""
    span_bits = queue // _QUEUES * _DIGIT_BITS
    slot = oldest(s, queue)
    s.numbers[CLOCK] = s.nodes[slot]["priority"] >> span_bits << span_bits
    s.words[queue // _FLAGS] &= ~(1 << (queue % _FLAGS))
    while slot != queue:
        newer = s.nodes[slot]["previous"]
        insert(s, slot)
        slot = newer
    s.nodes[queue]["next"] = queue
    s.nodes[queue]["previous"] = queue
