"""What the server tells those who count: one call per event of a request, on the event loop. Knows no metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..engine.outputs import RequestOutput, StreamDelta


@dataclass(eq=False)
class Watched:
    """One prompt of an HTTP request, as observers see it.

    ``id``: its id in the engine; ``route``: the path that was called; ``samples``: how many are drawn; ``arrival`` and
    ``first_token``: ``time.monotonic()`` of its arrival and of its first delivery (``None`` before that);
    ``last_token``: of the last delivery of each sample.
    """

    id: str
    route: str
    model: str
    prompt_tokens: int
    samples: int
    streams: bool
    arrival: float
    first_token: float | None = None
    last_token: dict[int, float] = field(default_factory=dict)


class Observer:
    """Hears of every request. All methods run on the event loop and must not block; what they raise is logged and does
    no harm. Override what is of interest."""

    def on_request_start(self, request: Watched) -> None:
        """A prompt was handed to the engine."""

    def on_first_token(self, request: Watched, seconds: float) -> None:
        """Its first delivery came, ``seconds`` after its arrival."""

    def on_token(self, request: Watched, delta: StreamDelta, gap: float | None) -> None:
        """A delivery of one sample (the first one too); ``gap``: seconds since that sample's last, ``None`` for the
        first. ``delta.token_ids`` may be several tokens, ``delta.pieces`` says where they come from."""

    def on_finish(self, request: Watched, output: RequestOutput, seconds: float) -> None:
        """One sample ended, ``seconds`` after its arrival: ``output`` has its reason, usage and speculation figures."""

    def on_refusal(self, route: str, status: int, code: str | None) -> None:
        """A request was answered with an error."""
