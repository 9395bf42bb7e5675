"""A TCP proxy whose replies come late, for a store that answers slowly."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator


class SlowProxy:
    """Passes everything on to a port of loopback; replies wait `delay_s`, which may change at any time."""

    def __init__(self, upstream_port: int) -> None:
        self.delay_s = 0.0
        self.port = 0
        self._upstream_port = upstream_port
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._run()))

    def start(self) -> None:
        """Returns once it listens."""
        self._thread.start()
        assert self._listening.wait(10)

    def stop(self) -> None:
        """Closes every connection."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(timeout=10)
        self._loop.close()

    async def _run(self) -> None:
        connections: set[asyncio.Task[None]] = set()

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connections.add(task)
            try:
                await self._connect(reader, writer)
            except (OSError, asyncio.CancelledError):
                pass
            finally:
                connections.discard(task)
                writer.close()

        server = await asyncio.start_server(accepted, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._stopping.wait()
        server.close()
        running = list(connections)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        try:
            await asyncio.gather(self._pump(reader, ours, late=False), self._pump(theirs, writer, late=True))
        finally:
            ours.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, late: bool) -> None:
        while data := await reader.read(65536):
            if late and self.delay_s:
                await asyncio.sleep(self.delay_s)
            writer.write(data)
            await writer.drain()
        writer.close()


@contextlib.contextmanager
def slow_proxy(upstream_port: int) -> Iterator[SlowProxy]:
    """A proxy for the time of a block."""
    proxy = SlowProxy(upstream_port)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
