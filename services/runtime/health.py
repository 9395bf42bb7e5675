"""Health that tells the truth: liveness of the process, readiness that follows its dependencies.

The name "" answers for the process: SERVING from load to drain. The full name of each proto service
answers for readiness: SERVING while the process is, and every required dependency is up. Watch streams
follow each change. The servicer is grpc.health.v1's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as health_aio


class Dependency:
    """Something a service needs; its owner reports whether it answers."""

    def __init__(self, name: str, required: bool, changed: Callable[[], None]) -> None:
        self.name = name
        self.required = required
        self.is_up = False
        self.reason = "not tried yet"
        self._tried = False
        self._changed = changed

    @property
    def is_known_down(self) -> bool:
        """Whether it was tried and does not answer; unlike `not is_up`, false before the first try."""
        return self._tried and not self.is_up

    def up(self) -> None:
        """It answered."""
        self._tried = True
        if not self.is_up:
            self.is_up, self.reason = True, ""
            self._changed()

    def down(self, reason: str) -> None:
        """It failed, and why."""
        self._tried = True
        was_up, self.is_up, self.reason = self.is_up, False, reason
        if was_up:
            self._changed()


class Health:
    """Keeps the health servicer in step with start, dependencies and drain. Event-loop only."""

    def __init__(
        self,
        on_change: Callable[[bool, str], None] | None = None,
        on_dependency: Callable[[str, Callable[[], bool]], None] | None = None,
    ) -> None:
        self.servicer = health_aio.HealthServicer()
        self.dependencies: dict[str, Dependency] = {}
        self._names: Sequence[str] = ()
        self._started = False
        self._draining = False
        self._failed = ""
        self._on_change = on_change
        self._on_dependency = on_dependency
        self._ready: bool | None = None
        self._dirty: Callable[[], None] = lambda: None

    def bind(self, names: Sequence[str], schedule: Callable[[], None]) -> None:
        """Names the proto services, and how to have `publish` run soon on the event loop."""
        self._names = names
        self._dirty = schedule
        self._dirty()

    def dependency(self, name: str, required: bool) -> Dependency:
        """A new dependency, down until its owner reports it up."""
        found = self.dependencies[name] = Dependency(name, required, lambda: self._dirty())
        if self._on_dependency is not None:
            self._on_dependency(name, lambda: found.is_up)
        return found

    def started(self) -> None:
        """Loaded and warmed."""
        self._started = True
        self._dirty()

    def draining(self) -> None:
        """About to stop: NOT_SERVING from now on."""
        self._draining = True
        self._dirty()

    def failed(self, reason: str) -> None:
        """A part of the process died for good; neither live nor ready from now on."""
        self._failed = reason
        self._dirty()

    @property
    def has_started(self) -> bool:
        """Loaded and warmed, whatever came later."""
        return self._started

    @property
    def is_live(self) -> bool:
        """Loaded, not draining, not failed."""
        return self._started and not self._draining and not self._failed

    @property
    def is_ready(self) -> bool:
        """Live, and every required dependency up."""
        return self.is_live and all(d.is_up for d in self.dependencies.values() if d.required)

    def why_not_ready(self) -> str:
        """The reason, for logs."""
        if self._failed:
            return self._failed
        if not self._started:
            return "loading"
        if self._draining:
            return "draining"
        down = [f"{d.name}: {d.reason}" for d in self.dependencies.values() if d.required and not d.is_up]
        return "; ".join(down)

    async def publish(self) -> None:
        """Tells the servicer, and through it every Watch stream, the present state."""
        ready = self.is_ready
        await self.servicer.set("", _status(self.is_live))
        for name in self._names:
            await self.servicer.set(name, _status(ready))
        if ready != self._ready:
            self._ready = ready
            if self._on_change is not None:
                self._on_change(ready, self.why_not_ready())


def _status(serving: bool) -> health_pb2.HealthCheckResponse.ServingStatus.ValueType:
    kinds = health_pb2.HealthCheckResponse
    return kinds.SERVING if serving else kinds.NOT_SERVING
