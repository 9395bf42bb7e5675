"""S3-FIFO: three queues without promotion; what is not asked for again soon goes soon.

Source: J. Yang, Y. Zhang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023), algorithm 1:

    1  hit:     freq(p) <- min(freq(p) + 1, 3)
    2  insert:  while there is no room, evict;  p goes to the head of M if the ghosts know it, else of S
    3  evict:   evictS while S holds a tenth of the cache or more, else evictM
    4  evictS:  t <- tail of S;  freq(t) > 1: to the head of M;  else: to the ghosts, evicted
    5  evictM:  t <- tail of M;  freq(t) > 0: to the head of M, freq(t) <- freq(t) - 1;  else: evicted

Ghosts are as the paper's section 4.2 suggests: a table of one word a bucket, fingerprint and number of the
eviction, in which a newcomer overwrites; an entry counts while fewer evictions from S have passed since than
M has entries (taken as nine tenths of all). Departure: "the cache" of line 3 is what it holds, not its
capacity, which an order here does not know; the two agree whenever something must go. O(1) amortised. Knows
neither costs nor sizes.
"""

from __future__ import annotations

from ..compiled import compiled
from .state import BYTES, COUNT, NONE, PART, SEEN, State, link, oldest, unlink

LISTS = 2
_S, _M = 0, 1
_SHARE = 10


@compiled
def _place(s: State, slot: int, queue: int) -> None:
    s.nodes[slot]["used"] = queue
    if queue == _S:
        s.numbers[PART] += s.nodes[slot]["size"]
    link(s, queue, slot)


@compiled
def remove(s: State, slot: int) -> None:
    """Take out an entry; the ghosts do not hear of it."""
    if s.nodes[slot]["used"] == _S:
        s.numbers[PART] -= s.nodes[slot]["size"]
    unlink(s, slot)


@compiled
def _bucket(s: State, digest: int) -> int:
    return (digest & 0xFFFFFFFF) * len(s.ghosts) >> 32


@compiled
def _known(s: State, digest: int) -> bool:
    ghost = s.ghosts[_bucket(s, digest)]
    passed = (s.numbers[SEEN] - (ghost & 0xFFFFFFFF)) & 0xFFFFFFFF
    return bool(ghost != 0 and ghost >> 32 == digest and passed < s.numbers[COUNT] * (_SHARE - 1) // _SHARE)


@compiled
def admit(s: State, slot: int) -> None:
    """Line 2."""
    s.nodes[slot]["frequency"] = 0
    _place(s, slot, _M if _known(s, s.nodes[slot]["digest"]) else _S)


@compiled
def hit(s: State, slot: int) -> None:
    """Line 1."""
    s.nodes[slot]["frequency"] = min(s.nodes[slot]["frequency"] + 1, 3)


@compiled
def pop(s: State) -> int:
    """Lines 3 to 5; NONE when empty."""
    while True:
        slot = oldest(s, _S)
        if slot != _S and (s.numbers[PART] * _SHARE >= s.numbers[BYTES] or oldest(s, _M) == _M):
            remove(s, slot)
            if s.nodes[slot]["frequency"] > 1:
                s.nodes[slot]["frequency"] = 0
                _place(s, slot, _M)
                continue
            s.numbers[SEEN] += 1
            digest = s.nodes[slot]["digest"]
            s.ghosts[_bucket(s, digest)] = digest << 32 | s.numbers[SEEN] & 0xFFFFFFFF
            return slot
        slot = oldest(s, _M)
        if slot == _M:
            return NONE
        unlink(s, slot)
        if s.nodes[slot]["frequency"] == 0:
            return slot
        s.nodes[slot]["frequency"] -= 1
        link(s, _M, slot)
