"""Refresh by a learned model, live: the rows of the keys seen last, around the kernels of `predicted`.

Problem. The rule of `predicted.py` looks at what is known of a phrase and its cached list (`features.py`).
The simulator has a row for every phrase; a live service meets phrases without end, and lists that other
processes wrote.

How. As `TablePolicy`, this keeps a row for each of the `capacity` keys seen last, and with it when the list
that the row describes was written. `on_hit` is one kernel call: count the request, make the features,
evaluate the forest, decide, and take note of a list that is served. `on_write` takes what a refresh measured.

Invariants: an older list, read by a caller that a refresh overtook, never triggers a refresh. A list that
this process did not compute is taken as computed for the user who asks for it first, at what its auction is
worth now. Another model takes over rows and sums, and starts its correction anew. Memory is bounded: some 300
bytes a row. What is approximate: a key forgotten starts anew; each process counts its own requests; before
the first list is computed the price is 0, so any predicted loss refreshes.
Complexity: O(1) a hit beside the forest's evaluation.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from services.core.ads_list import AdsList, Versions
from services.core.refresh import features, predicted
from services.core.refresh.features import KEY, LEDGER, OURS, Computed, Request
from services.core.refresh.places import Places
from services.core.refresh.policy import CAPACITY, REUSE, Decision
from services.core.trees.evaluator import ForestArrays

Worth = Callable[[AdsList], Computed]
"""What a list, for which nothing is known to have been cached before, is worth to the user who asks."""


class LearnedRefresh:
    """Refreshes where the predicted loss exceeds the price of computing the list anew. One thread only."""

    name = "predicted"

    def __init__(
        self,
        forest: ForestArrays,
        rule: predicted.Rule,
        capacity: int = CAPACITY,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        self._places = Places(capacity)
        self._forest = forest
        self._rule = rule
        self._uniform = uniform
        self._keys: Any = np.zeros(capacity, KEY)
        self._ledger: Any = np.zeros(1, LEDGER)
        self._scratch = np.zeros(len(OURS))

    def serve(self, forest: ForestArrays, rule: predicted.Rule) -> None:
        """Decide by another model from now on."""
        self._forest, self._rule = forest, rule
        self._ledger[0]["predicted_usd"] = self._ledger[0]["measured_usd"] = 0.0

    def on_hit(self, fingerprint: bytes, cached: AdsList, request: Request, worth: Worth) -> Decision:
        """Judge one hit on the list of a key."""
        written_at_ms, row = self._place(fingerprint)
        if cached.written_at_ms < written_at_ms:
            return REUSE
        if cached.written_at_ms > written_at_ms:
            self._places.put(fingerprint, cached.written_at_ms)
            written = request._replace(time_ms=cached.written_at_ms)
            features.on_computed(self._keys, row, written, worth(cached))
        decision, loss_usd, corrected_usd = predicted.judge(
            self._keys,
            row,
            request,
            self._ledger,
            self._rule,
            self._forest,
            self._uniform(),
            self._scratch,
        )
        is_probe = decision == predicted.PROBE
        return Decision(decision != predicted.REUSE, corrected_usd, loss_usd if is_probe else None)

    def on_write(
        self,
        fingerprint: bytes,
        written: AdsList,
        request: Request,
        computed: Computed,
        decision: Decision,
    ) -> None:
        """The list of a key was computed, and written, for a request on which was decided so."""
        _, row = self._place(fingerprint)
        self._places.put(fingerprint, written.written_at_ms)
        predicted.learn(self._keys, row, request, computed, self._ledger)
        if decision.probed_usd is not None:
            predicted.note_probe(self._ledger, decision.probed_usd, computed.loss_usd)

    def __len__(self) -> int:
        return len(self._places)

    def _place(self, fingerprint: bytes) -> tuple[int, int]:
        """As `Places.find`; a row that is new to its key is emptied."""
        written_at_ms, row = self._places.find(fingerprint)
        if written_at_ms < 0:
            self._keys[row] = np.zeros((), KEY)
        return written_at_ms, row


def warm_up(model: LearnedRefresh) -> None:
    """Compile what decisions run, by using a model once; it is not to be used afterwards."""
    entry, key = AdsList((1,), (0.5,), 1, 1, Versions()), bytes(16)
    request = Request(2, 0, 0, 0, 0, math.nan)
    worth = Computed(1, 0.0, 0.0, 1.0, math.nan, math.nan)
    decision = model.on_hit(key, entry, request, lambda _: worth)
    model.on_write(key, entry, request, worth._replace(loss_usd=0.0, change=0.0), decision)
    model.on_write(key, entry, request, worth, Decision(refresh=True, probed_usd=0.0))
