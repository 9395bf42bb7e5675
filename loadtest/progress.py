"""A progress bar on standard error: a moving one on a terminal, a line every tenth elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows how much of `total` is done; yields the function that takes the number done."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(what, total)
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def _lines(what: str, total: int) -> Callable[[int], None]:
    tenths = 0

    def show(done: int) -> None:
        nonlocal tenths
        if done * 10 // total > tenths:
            tenths = done * 10 // total
            sys.stderr.write(f"{what}: {done} of {total}\n")
            sys.stderr.flush()

    return show
