"""Progress bars on the terminal (standard error), for loading and for batches of requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


@contextmanager
def request_bar(total: int) -> Iterator[Callable[[int], None]]:
    """A bar over ``total`` requests; the value is a function that sets how many have ended."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("Requests", total=total)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def loading_bars(enabled: bool = True) -> Iterator[Callable[[str, int, int], None] | None]:
    """Bars for downloads and loading: a function ``progress(message, done, total)``, ``None`` if not ``enabled``.

    One bar per message; ``total`` 0 = unknown. The bars vanish at the end.
    """
    if not enabled:
        yield None
        return
    percent = TextColumn("{task.percentage:>3.0f}%")
    columns = (TextColumn("{task.description}"), BarColumn(), percent, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def show(message: str, done: int, total: int) -> None:
            if message not in tasks:
                tasks[message] = bars.add_task(message, total=None)
            bars.update(tasks[message], completed=done, total=total or None)

        yield show
