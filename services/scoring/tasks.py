"""Ending background tasks."""

from __future__ import annotations

import asyncio

_RETRY_S = 0.1


async def end(*tasks: asyncio.Task[None]) -> None:
    """Cancels tasks and returns when all have ended.

    Once is not enough: a library that maps every exception of an I/O step (redis-py while it releases a
    connection) can swallow the cancellation, and the task goes on. So it is repeated until the task is done.
    """
    running = {task for task in tasks if not task.done()}
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=_RETRY_S)
