"""Plain decoding with every option of a request, one token at a time, step by step from spec 13.1, 8, 9 and 13.15.

Plain Python over lists and arrays: no engine, window, batch, draft or incremental text. What every feature is compared
with. The grammar backend is the only part it shares with the engine: it walks one handle forward and never back.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..core.params import SamplingParams
from ..core.request import Request
from ..draft.base import DraftProvider
from ..engine.build import Extras, assemble
from ..engine.llm import LLM
from ..sampling.processors.settings import DrySettings, ProcessorSettings, ThinkingBudget
from .harness import Setup
from .plain_draws import Case, plain_draw
from .plain_processors import plain_process

if TYPE_CHECKING:
    from ..engine.outputs import LogprobEntry, RequestOutput

NextLogits = Callable[[Sequence[int]], NDArray[np.float64]]
Reason = Literal["stop", "length", "error"]
#: Token id -> (log-probability, rank).
Scores = dict[int, tuple[float, int]]

_MARKERS = (("<think>", "</think>"), ("<thinking>", "</thinking>"), ("[THINK]", "[/THINK]"))
_BREAKERS = ("\n", ":", '"', "*")


@dataclass(frozen=True)
class PlainAnswer:
    """What plain decoding answers. ``draws``: the tokens and a terminal EOS; ``generated``: the usage (spec 9.4).

    With ``finish_reason`` "error" no id could be drawn after ``tokens``: an engine may have delivered fewer of them.
    """

    tokens: tuple[int, ...]
    draws: tuple[int, ...]
    text: str
    finish_reason: Reason
    stop_reason: int | str | None
    generated: int
    logprobs: tuple[Scores, ...] | None
    prompt_logprobs: tuple[Scores | None, ...] | None


class FeatureDecoder:
    """Plain decoding with one model; remembers its answers. ``next_logits`` maps a text to the logits [V] that follow.

    ``tokenizer``: byte-level, a ``transformers`` fast tokenizer. ``coupling``: see spec 13.5 and 13.6.
    """

    def __init__(
        self,
        next_logits: NextLogits,
        tokenizer: Any,
        *,
        eos_ids: Sequence[int],
        max_model_len: int,
        vocab_size: int,
        coupling: str = "gumbel",
    ) -> None:
        self.next_logits = next_logits
        self.tokenizer = tokenizer
        self.eos_ids = tuple(eos_ids)
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self._coupling = coupling
        self._texts = PlainTexts(tokenizer)
        self._grammars: Any = None
        self._answers: dict[tuple[tuple[int, ...], SamplingParams], PlainAnswer] = {}

    def run(self, prompt: Sequence[int], params: SamplingParams) -> PlainAnswer:
        """Plain decoding of one request with ``n`` = 1; sampled ones need a seed."""
        assert params.greedy or params.seed is not None, "a sampled reference run needs a seed"
        key = (tuple(prompt), params)
        if key not in self._answers:
            self._answers[key] = self._decode(key[0], params)
        return self._answers[key]

    def recorded(self, request: Request) -> tuple[int, ...]:
        """The draws that plain decoding makes for a request of the engine, what an oracle drafter replays; they go on
        beyond a stop string, of which no drafter knows."""
        return self.run(request.prompt_ids, replace(request.params, seed=request.seed, n=1, stop=None)).draws

    def _decode(self, prompt: tuple[int, ...], params: SamplingParams) -> PlainAnswer:
        ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(self.eos_ids))
        settings = resolved(params, self.tokenizer, tuple(ends))
        spared = (*self.eos_ids, *_newlines(self.tokenizer))
        matcher = self._matcher(params)
        budget = min(params.max_tokens or self.max_model_len, self.max_model_len - len(prompt))
        tokens: list[int] = []
        scores: list[Scores] = []
        draws: list[int] = []
        reason: Reason = "length"
        stop: int | str | None = None
        while len(tokens) < budget:
            raw = self.next_logits([*prompt, *tokens])
            logits = np.array(plain_process(raw.tolist(), prompt, tokens, settings))
            if matcher is not None:
                logits = _only(logits, _permitted(matcher))
            if not np.isfinite(logits.max()):
                reason = "error"
                break
            token = plain_draw(logits, Case.of(params, params.seed or 0, len(tokens), spared), self._coupling)
            draws.append(token)
            if token in ends:
                reason, stop = "stop", token if token in params.stop_token_ids else None
                break
            tokens.append(token)
            scores.append(score(raw if params.logprobs_mode == "raw" else logits, token, params.logprobs))
            completed = self._texts.stop_in(tokens, params)
            if completed is not None:
                reason, stop = "stop", completed
                break
            if matcher is not None and (not matcher.accept(token) or matcher.is_terminated):
                reason = "stop"
                break
        text, late = self._texts.final(tokens, params)
        if late is not None and reason != "error":
            reason, stop = "stop", late
        return PlainAnswer(
            tokens=tuple(tokens),
            draws=tuple(draws),
            text=text,
            finish_reason=reason,
            stop_reason=stop,
            generated=len(draws),
            logprobs=None if params.logprobs is None else tuple(scores),
            prompt_logprobs=self._prompt_scores(prompt, params.prompt_logprobs),
        )

    def _prompt_scores(self, prompt: tuple[int, ...], top: int | None) -> tuple[Scores | None, ...] | None:
        if top is None:
            return None
        return (
            None,
            *(score(self.next_logits(prompt[:place]), prompt[place], top) for place in range(1, len(prompt))),
        )

    def _matcher(self, params: SamplingParams) -> Any:
        from ..grammar.backend import LlguidanceBackend
        from ..grammar.fields import request_grammar
        from ..grammar.tokens import read_tokenizer

        spec = request_grammar(structured_outputs=params.structured_outputs)
        if spec is None:
            return None
        if self._grammars is None:
            text = read_tokenizer(self.tokenizer, self.eos_ids)
            self._grammars = LlguidanceBackend(text, self.vocab_size, self.eos_ids)
        return self._grammars.compile(spec).open()


def resolved(params: SamplingParams, tokenizer: Any, stop_ids: tuple[int, ...]) -> ProcessorSettings:
    """A request's processors with its texts as ids."""
    words: list[tuple[int, ...]] = []
    for word in params.bad_words:
        texts = (word, word.lstrip(" "), " " + word.lstrip(" ")) if isinstance(word, str) else ()
        words += [tuple(_ids(tokenizer, text)) for text in texts if text] if texts else [tuple(word)]  # type: ignore[arg-type]
    thinking = None
    if params.thinking_budget is not None:
        pairs = [(_ids(tokenizer, start), _ids(tokenizer, end)) for start, end in _MARKERS]
        start_ids, end_ids = next(pair for pair in pairs if len(pair[0]) == len(pair[1]) == 1)
        thinking = ThinkingBudget(tuple(start_ids), tuple(end_ids), params.thinking_budget)
    dry = None
    if params.dry_multiplier:
        wanted = _BREAKERS if params.dry_sequence_breakers is None else params.dry_sequence_breakers
        shown = [(token, tokenizer.decode([token])) for token in range(len(tokenizer))]
        breakers = frozenset(token for token, text in shown if any(breaker in text for breaker in wanted))
        dry = DrySettings(
            params.dry_multiplier, params.dry_base, params.dry_allowed_length, params.dry_penalty_last_n, breakers
        )
    return ProcessorSettings(
        logit_bias=params.logit_bias,
        bad_words=tuple(words),
        no_repeat_ngram_size=params.no_repeat_ngram_size,
        min_tokens=params.min_tokens,
        stop_ids=stop_ids,
        forced_tokens=params.forced_tokens,
        thinking=thinking,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        penalty_window=params.penalty_window,
        dry=dry,
    )


def score(logits: NDArray[np.float64], token: int, top: int | None) -> Scores:
    """Log-probability and rank of ``token`` and of the ``top`` likeliest ids (-1: all)."""
    peak = logits.max()
    values = logits - peak - math.log(math.fsum(np.exp(logits - peak)))
    order = np.argsort(-logits, kind="stable").tolist()
    shown = order if top == -1 else order[: top or 0]
    ranks = {i: place for place, i in enumerate(order, 1)}
    return {i: (float(values[i]), ranks[i]) for i in (*shown, token)}


class PlainTexts:
    """Texts of id lists, each read from its beginning. Byte-level vocabularies only."""

    def __init__(self, tokenizer: Any) -> None:
        special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        byte_of = {chr(byte): byte for byte in plain}
        byte_of |= {chr(256 + n): byte for n, byte in enumerate(b for b in range(256) if b not in plain)}
        pieces = {i: "" if i in special else tokenizer.convert_ids_to_tokens(i) for i in range(len(tokenizer))}
        self._bytes = {i: bytes(byte_of[character] for character in piece) for i, piece in pieces.items()}

    def certain(self, tokens: Sequence[int], final: bool = False) -> str:
        """The text of ``tokens``; unless it is ``final`` without a last character of which bytes are missing."""
        data = b"".join(self._bytes.get(token, b"") for token in tokens)
        return codecs.getincrementaldecoder("utf-8")("replace").decode(data, final)

    def stop_in(self, tokens: Sequence[int], params: SamplingParams) -> str | None:
        """The stop string that the last token completed. Text known before token ``min_tokens`` is not searched."""
        if len(tokens) < params.min_tokens:
            return None
        return _first_stop(self._searched(tokens, params), params)[0]

    def final(self, tokens: Sequence[int], params: SamplingParams) -> tuple[str, str | None]:
        """The whole text, cut at a stop string, and that string."""
        before = self.certain(tokens[: max(0, params.min_tokens - 1)])
        stop, cut = _first_stop(self._searched(tokens, params), params)
        if stop is None:
            stop, cut = _first_stop(self._searched(tokens, params, final=True), params)
        return before + cut, stop

    def _searched(self, tokens: Sequence[int], params: SamplingParams, final: bool = False) -> str:
        return self.certain(tokens, final)[len(self.certain(tokens[: max(0, params.min_tokens - 1)])) :]


def _first_stop(text: str, params: SamplingParams) -> tuple[str | None, str]:
    """The stop string that is complete first (the longest of several), and the text up to it."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in params.stop_strings if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return stop, text[: end if params.include_stop_str_in_output else end - len(stop)]
    return None, text


def departures(answer: PlainAnswer, output: RequestOutput, tolerance: float = 1e-9) -> list[str]:
    """Where a served request differs from its plain answer; ``tolerance`` holds for log-probabilities."""
    got = output.outputs[0]
    if answer.finish_reason == got.finish_reason == "error":
        return [] if answer.tokens[: len(got.token_ids)] == got.token_ids else ["other tokens before the error"]
    pairs: dict[str, tuple[object, object]] = {
        "tokens": (answer.tokens, got.token_ids),
        "text": (answer.text, got.text),
        "finish reason": (answer.finish_reason, got.finish_reason),
        "stop reason": (answer.stop_reason, got.stop_reason),
        "completion tokens": (answer.generated, output.metrics.completion_tokens),
    }
    found = [f"{name}: {got!r} instead of {want!r}" for name, (want, got) in pairs.items() if want != got]
    if output.error is not None:
        found.append(f"error: {output.error!r}")
    found += _score_departures("logprobs", answer.logprobs, got.logprobs, tolerance)
    return found + _score_departures("prompt logprobs", answer.prompt_logprobs, output.prompt_logprobs, tolerance)


def _score_departures(
    name: str,
    wanted: Sequence[Scores | None] | None,
    got: Sequence[LogprobEntry | None] | None,
    tolerance: float,
) -> list[str]:
    if wanted is None or got is None:
        return [] if wanted is got is None else [f"{name}: {got!r} instead of {wanted!r}"]
    if len(wanted) != len(got):
        return [f"{name}: {len(got)} entries instead of {len(wanted)}"]
    found = []
    for place, (want, entry) in enumerate(zip(wanted, got, strict=True)):
        same = (want is None) == (entry is None)
        if same and want is not None and entry is not None:
            same = list(want) == list(entry) and all(
                entry[i].rank == rank and _close(entry[i].logprob, value, tolerance)
                for i, (value, rank) in want.items()
            )
        if not same:
            found.append(f"{name} at {place}: {entry!r} instead of {want!r}")
    return found


def _close(a: float, b: float, tolerance: float) -> bool:
    return a == b or abs(a - b) <= tolerance


def comparable(output: RequestOutput) -> dict[str, Any]:
    """Everything that must not depend on a drafter, a batch or the order of rounds."""
    return {
        "prompt": output.prompt_token_ids,
        "outputs": output.outputs,
        "prompt_logprobs": output.prompt_logprobs,
        "seed": output.seed,
        "usage": (output.metrics.prompt_tokens, output.metrics.completion_tokens),
    }


@contextmanager
def open_llm(
    target: Any, eos_ids: Sequence[int], setup: Setup, drafter: DraftProvider | None, tokenizer: Any
) -> Iterator[LLM]:
    """The synchronous facade over a running engine with a tokenizer, closed at the end."""
    engine = assemble(
        setup.config(), target, tuple(eos_ids), drafter=drafter, tokenizer=tokenizer, extras=Extras(costs=setup.costs)
    )
    with LLM.from_engine(engine) as llm:
        yield llm


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def _newlines(tokenizer: Any) -> list[int]:
    return [token for token in _ids(tokenizer, "\n") if tokenizer.decode([token]) == "\n"]


def _permitted(matcher: Any) -> list[int]:
    from ..grammar.bits import permitted_ids

    return list(permitted_ids(matcher.mask()))


def _only(logits: NDArray[np.float64], ids: Sequence[int]) -> NDArray[np.float64]:
    masked = np.full_like(logits, -np.inf)
    masked[list(ids)] = logits[list(ids)]
    return masked
