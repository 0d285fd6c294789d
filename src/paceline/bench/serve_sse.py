"""Server-sent events from the bytes of a response, however the network cut them (HTML standard, section 9.2.6)."""

from __future__ import annotations

from collections.abc import Iterator

_CR, _LF = 0x0D, 0x0A


class SseParser:
    """Feeds on bytes, gives the data of complete events. Lines may end in LF, CR or both; comments and other fields
    are passed over."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[str] = []
        self._after_cr = False

    def feed(self, received: bytes) -> list[str]:
        """Data of the events that ``received`` completes; lines of one event are joined by a line feed."""
        events = []
        for line in self._lines(received):
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" ").decode("utf-8", errors="replace"))
            elif line == b"data":
                self._data.append("")
            elif not line and self._data:
                events.append("\n".join(self._data))
                self._data.clear()
        return events

    @property
    def pending(self) -> bool:
        """Whether the bytes so far end within an event."""
        return bool(self._line or self._data)

    def _lines(self, received: bytes) -> Iterator[bytes]:
        start = 0
        for place, byte in enumerate(received):
            if byte not in (_CR, _LF):
                self._after_cr = False
                continue
            if byte == _LF and self._after_cr:  # the second half of a CRLF
                self._after_cr = False
                start = place + 1
                continue
            self._line += received[start:place]
            yield bytes(self._line)
            self._line.clear()
            self._after_cr = byte == _CR
            start = place + 1
        self._line += received[start:]
