"""What the commands that decode share: loading with a bar, options of a request, streaming to standard output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Generator

    from ..core.request import SamplingParams
    from ..engine.frontend import Prompt
    from ..engine.llm import LLM
    from ..engine.outputs import RequestOutput, StreamDelta
    from .settings import Settings

DEFAULT_MAX_TOKENS = 512


def load(asked: Settings, quiet: bool) -> LLM:
    """The engine that was asked for; bars on standard error while it loads, if that is a terminal."""
    from ..engine.llm import LLM
    from ..engine.progress import loading_bars

    with loading_bars(sys.stderr.isatty() and not quiet) as progress:
        return LLM(progress=progress, **asked.engine)


def has_template(llm: LLM) -> bool:
    return llm.tokenizer is not None and bool(llm.tokenizer.chat_template)


def context_tokens(llm: LLM) -> int:
    """Prompt and output tokens that one request may have together."""
    info = llm.info()
    return int(min(info["max_model_len"], info["kv_cache_tokens"]))


def request_params(llm: LLM, prompt: Prompt, chosen: dict[str, Any]) -> SamplingParams:
    """The model's defaults, then what was chosen. The default length is cut to what fits; one asked for is not."""
    if "max_tokens" not in chosen:
        room = context_tokens(llm) - len(prompt.ids)
        usual = max(DEFAULT_MAX_TOKENS, chosen.get("min_tokens", 0))
        chosen = chosen | {"max_tokens": max(1, min(usual, room))}
    return llm.get_default_sampling_params(**chosen)


def stream_text(deltas: Iterator[StreamDelta], show: Callable[[str], None]) -> RequestOutput:
    """Show the text of one request as it comes; leaving early, by Ctrl-C too, aborts it."""
    output: RequestOutput | None = None
    with closing(cast("Generator[StreamDelta, None, None]", deltas)) as pieces:
        for delta in pieces:
            show(delta.text)
            output = delta.output
    assert output is not None, "a stream ends with its result"
    return output


def write(text: str) -> None:
    """Text on standard output, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def note(lines: list[str]) -> None:
    """What is not the answer goes to standard error."""
    for line in lines:
        print(line, file=sys.stderr)
