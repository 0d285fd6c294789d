"""Deltas on their way from the engine thread to an event loop. The engine never waits for a reader: what a slow reader
has not taken yet is joined into one delta per sample, so a buffer is bounded by the request's own tokens."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

from .outputs import StreamDelta

#: Told of every delivery on the event loop, whether or not it has been read.
Listener = Callable[[StreamDelta], None]


class LoopMailbox:
    """Wakes an event loop once for everything that the engine thread has put down since it last woke."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._arrived: list[tuple[DeltaStream, StreamDelta]] = []

    def put(self, stream: DeltaStream, delta: StreamDelta) -> None:
        """Called on the engine thread."""
        with self._lock:
            self._arrived.append((stream, delta))
            waking = len(self._arrived) > 1
        if not waking:
            with suppress(RuntimeError):  # the loop has closed: nobody reads any more
                self._loop.call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        with self._lock:
            arrived, self._arrived = self._arrived, []
        for stream, delta in arrived:
            stream.arrive(delta)


class DeltaStream:
    """Deltas of one prompt's samples, for one reader on the loop of ``mailbox``.

    ``samples``: how many last deltas (those with an output) end it. ``listener`` hears of every delivery.
    """

    def __init__(self, mailbox: LoopMailbox, samples: int, listener: Listener | None = None) -> None:
        self._mailbox = mailbox
        self._listener = listener
        self._running = samples
        self._waiting: dict[int, list[StreamDelta]] = {}
        self._changed = asyncio.Event()

    @property
    def finished(self) -> bool:
        """Whether every sample's last delta has been read."""
        return not self._running

    def put(self, delta: StreamDelta) -> None:
        """A delivery, on the engine thread."""
        self._mailbox.put(self, delta)

    def arrive(self, delta: StreamDelta) -> None:
        """The same, on the loop."""
        if self._listener is not None:
            self._listener(delta)
        self._waiting.setdefault(delta.index, []).append(delta)
        self._changed.set()

    async def take(self) -> list[StreamDelta]:
        """Wait until there is something; one delta per sample that has news, in the order of the samples."""
        while not self._waiting:
            self._changed.clear()
            await self._changed.wait()
        waiting, self._waiting = self._waiting, {}
        deltas = [joined(waiting[index]) for index in sorted(waiting)]
        self._running -= sum(delta.output is not None for delta in deltas)
        return deltas

    async def __aiter__(self) -> AsyncIterator[StreamDelta]:
        while not self.finished:
            for delta in await self.take():
                yield delta


def joined(deltas: Sequence[StreamDelta]) -> StreamDelta:
    """Deltas of one sample that follow each other, as one."""
    if len(deltas) == 1:
        return deltas[0]
    first, last = deltas[0], deltas[-1]
    entries = [delta.logprobs for delta in deltas]
    return StreamDelta(
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        output=last.output,
        index=first.index,
        logprobs=tuple(entry for part in entries for entry in part or ()) if any(entries) else first.logprobs,
        pieces=tuple(piece for delta in deltas for piece in delta.pieces),
    )
