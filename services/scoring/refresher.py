"""The refresh decision of a scoring process: by its refresh model, or by the configured policy without one.

The model is a bundle in a folder, which is watched: another bundle that takes its place is verified, tried in
a throw-away process and serves from then on, without a restart. What serves is what lies there: a bundle that
is refused leaves the decisions to the policy, and GetInfo, a metric and every answer that was decided upon
say so. A folder without a bundle changes nothing once a model serves, because replacing a bundle leaves none
for a moment (`services/runtime/bundles.py`).

What is known of keys outlives a model; a policy that takes over starts with lists it knows nothing of.
"""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import structlog

from services.core.ads_list import AdsList
from services.core.refresh.features import OURS
from services.core.refresh.learned import LearnedRefresh, warm_up
from services.core.refresh.policy import Decision, RefreshPolicy, similarity
from services.core.refresh.predicted import Rule
from services.runtime.bundles import MANIFEST
from services.runtime.errors import BundleError, shown
from services.runtime.forests import LoadedForest, open_forest
from services.runtime.metrics import Metrics
from services.scoring.asked import Asked
from services.scoring.tasks import end

KIND = "refresh"
WATCH_S = 2.0

_Seen = tuple[int, int, int]


class Refresher:
    """Decides on hits and takes note of computed lists. Event-loop only.

    policy: decides where no model serves. folder: the model's bundle, None for none. cost_ratio: see `Rule`.
    """

    def __init__(
        self,
        policy: RefreshPolicy,
        folder: Path | None,
        cost_ratio: float,
        metrics: Metrics,
        log: structlog.stdlib.BoundLogger,
    ) -> None:
        self.fingerprint = self.fault = ""
        self._policy = policy
        self._folder = folder
        self._cost_ratio = cost_ratio
        self._log = log
        self._learned: LearnedRefresh | None = None
        self._seen: _Seen | None = None
        self._watcher: asyncio.Task[None] | None = None
        metrics.gauge(
            "refresh_model_ready", "1 while a refresh model decides, 0 while the configured policy does."
        ).set_function(lambda: bool(self.fingerprint))
        self._loads = metrics.counter(
            "refresh_model_loads_total", "Refresh models found.", ("outcome",), ("served", "refused")
        )
        self._probes = metrics.counter(
            "probed_loss_usd_total",
            "Revenue that reuse would have lost where a hit was computed anew only to measure it: as"
            " predicted, and as found.",
            ("loss",),
            ("predicted", "found"),
        )

    @property
    def name(self) -> str:
        """Of the policy in force."""
        return LearnedRefresh.name if self._model is not None else self._policy.name

    @property
    def _model(self) -> LearnedRefresh | None:
        return self._learned if self.fingerprint else None

    def on_hit(self, cached: AdsList, asked: Asked) -> Decision:
        """Judge one hit."""
        model = self._model
        if model is None:
            return self._policy.on_hit(asked.fingerprint, cached, asked.now_ms)
        return model.on_hit(
            asked.fingerprint,
            cached,
            asked.request,
            lambda entry: asked.computed(entry, None, len(entry.ad_ids)),
        )

    def on_write(
        self,
        written: AdsList,
        fresh: AdsList,
        cached: AdsList | None,
        asked: Asked,
        decision: Decision,
    ) -> None:
        """A list was computed for a caller on whose hit was decided so, merged into `written` and written."""
        model = self._model
        if model is None:
            likeness = None if cached is None else similarity(cached.ad_ids, fresh.ad_ids)
            self._policy.on_write(asked.fingerprint, written, likeness)
            return
        computed = asked.computed(fresh, cached, len(written.ad_ids))
        model.on_write(asked.fingerprint, written, asked.request, computed, decision)
        if decision.probed_usd is not None:
            self._probes.labels("predicted").inc(max(0.0, decision.probed_usd))
            self._probes.labels("found").inc(computed.loss_usd)

    async def start(self) -> None:
        """Load the model, if one is configured, and watch its folder."""
        if self._folder is not None:
            if not await self._refresh(self._folder):
                self._refuse(self._folder, f"{self._folder}: no such bundle")
            self._watcher = asyncio.create_task(self._watch(self._folder))

    async def stop(self) -> None:
        """Stop watching."""
        if self._watcher is not None:
            await end(self._watcher)

    async def _watch(self, folder: Path) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            await self._refresh(folder)

    async def _refresh(self, folder: Path) -> bool:
        """Load what lies in the folder when it is not what was seen last; false when nothing lies there."""
        seen = await asyncio.to_thread(_look, folder)
        if seen is None:
            return False
        if seen != self._seen:
            self._seen = seen
            try:
                loaded, rule = await asyncio.to_thread(load_model, folder, self._cost_ratio)
            except BundleError as error:
                self._refuse(folder, str(error))
            else:
                self._serve(loaded, rule)
        return True

    def _serve(self, loaded: LoadedForest, rule: Rule) -> None:
        if self._learned is None:
            self._learned = LearnedRefresh(loaded.forest.arrays, rule)
        else:
            self._learned.serve(loaded.forest.arrays, rule)
        self.fingerprint, self.fault = loaded.fingerprint, ""
        self._loads.labels("served").inc()
        self._log.info("refresh_model_loaded", fingerprint=loaded.fingerprint)

    def _refuse(self, folder: Path, fault: str) -> None:
        self.fingerprint, self.fault = "", fault
        self._loads.labels("refused").inc()
        self._log.warning("refresh_model_refused", path=str(folder), fault=fault)


def load_model(folder: Path, cost_ratio: float) -> tuple[LoadedForest, Rule]:
    """A model and the rule that it was trained for, at a price of ours, tried once. Raises BundleError."""
    loaded = open_forest(folder, KIND, feature_names=OURS)
    found = []
    for name in ("floor", "probe_share"):
        value = loaded.meta.get(name)
        if not isinstance(value, float) or not 0.0 <= value <= 1.0:
            raise BundleError(f"{folder}: meta.{name} is {shown(value)}, must be a number in 0..1")
        found.append(value)
    rule = Rule(cost_ratio, found[0], found[1], math.nan)
    warm_up(LearnedRefresh(loaded.forest.arrays, rule, capacity=1))
    return loaded, rule


def _look(folder: Path) -> _Seen | None:
    """What tells one bundle in a folder from another; None without one."""
    try:
        status = (folder / MANIFEST).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
