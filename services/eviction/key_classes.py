"""Classes of keys that are pinned, or that are worth at least so much, whatever is reported of them.

Written as `vip:=pin, map:=50000`: what a key begins with behind the managed prefix, and `pin` or the least
cost in microseconds. The longest beginning that fits decides.

A pinned key is left alone and loses the expiry that is its priority, so neither the sidecar nor Redis evicts
it (redis#6340: users want some keys kept until they are deleted). A least cost is also the cost of entries
that nobody reports, such as those of an application that only sets keys.
"""

from __future__ import annotations

from services.eviction.events import MAX_COST
from services.runtime.errors import ConfigError

PIN = -1
_SHOWN = "a list such as 'vip:=pin, map:=50000'"


class KeyClasses:
    """The classes under one prefix; raises ConfigError where the text is not a list of them."""

    def __init__(self, prefix: bytes, text: str = "") -> None:
        self._classes: list[tuple[bytes, int]] = []
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, equals, worth = part.rpartition("=")
            if worth != "pin" and not (worth.isdecimal() and int(worth) <= MAX_COST):
                raise ConfigError(
                    f"eviction: key_classes: {part!r} must end in pin or in microseconds of 0..{MAX_COST};"
                    f" {_SHOWN}"
                )
            if not equals or prefix + name.encode() in (known for known, _ in self._classes):
                raise ConfigError(f"eviction: key_classes: {part!r} is no class, or one again; {_SHOWN}")
            self._classes.append((prefix + name.encode(), PIN if worth == "pin" else int(worth)))
        self._classes.sort(key=lambda known: -len(known[0]))

    def least_cost_us(self, key: bytes) -> int:
        """The least cost of a key, microseconds; 0 in no class, PIN when it is pinned."""
        for name, worth in self._classes:
            if key.startswith(name):
                return worth
        return 0
