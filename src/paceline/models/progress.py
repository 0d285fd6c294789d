"""Reports how far a download is by watching the directory it grows in. Knows nothing of who downloads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

#: ``progress(message, done, total)``: bytes; ``total`` 0 = unknown.
Progress: TypeAlias = Callable[[str, int, int], None]

_POLL_SECONDS = 0.2


def directory_bytes(directory: Path) -> int:
    """Bytes of all files below ``directory``; 0 if it does not exist. Files may come and go meanwhile."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # moved away between listing and looking
            continue
    return total


@contextmanager
def watched_bytes(directory: Path, message: str, total: int, progress: Progress | None) -> Iterator[None]:
    """While the body runs, report the growth of ``directory`` as ``message``, out of ``total`` bytes."""
    if progress is None:
        yield
        return
    before, stop = directory_bytes(directory), threading.Event()

    def watch() -> None:
        while not stop.wait(_POLL_SECONDS):
            progress(message, min(total, max(0, directory_bytes(directory) - before)), total)

    progress(message, 0, total)
    thread = threading.Thread(target=watch, name="paceline-download-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    progress(message, total, total)
