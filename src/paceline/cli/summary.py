"""Lines about a run: what was set up, and what speculation gained. Formats figures; the engine computes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..engine.outputs import LogprobEntry, RequestOutput


def setup_lines(info: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """The resolved configuration in two lines: what runs, and every setting that has a value."""
    runs = (
        f"{info['model']} · {info['dtype']} on {info['device']} · exactness {info['exactness']} · "
        f"drafter {info['drafter']}, up to {info['spec_tokens']} tokens · {info['max_num_seqs']} rows · "
        f"context {info['max_model_len']} · KV pool {info['kv_cache_tokens']} tokens"
    )
    chosen = " ".join(f"{name}={value}" for name, value in settings.items() if value is not None)
    return [f"[{runs}]", f"[{chosen}]"]


def totals(outputs: Sequence[RequestOutput], in_turn: bool = False) -> dict[str, Any]:
    """Figures over all results. ``seconds``: the longest time of requests that ran together, the sum of those that ran
    one after the other (``in_turn``)."""
    spec = [output.metrics.speculative_decoding for output in outputs]
    tokens = sum(output.metrics.completion_tokens for output in outputs)
    times = [output.metrics.total_time for output in outputs]
    seconds = sum(times) if in_turn else max(times, default=0.0)
    forwards = sum(figures.forwards for figures in spec)
    drafted = _sum_by_position([figures.drafted_by_position for figures in spec])
    accepted = _sum_by_position([figures.accepted_by_position for figures in spec])
    first = [output.metrics.time_to_first_token for output in outputs]
    return {
        "completion_tokens": tokens,
        "prompt_tokens": sum(output.metrics.prompt_tokens for output in outputs),
        "seconds": seconds,
        "tokens_per_second": tokens / seconds if seconds else 0.0,
        "time_to_first_token": min((time for time in first if time is not None), default=None),
        "forwards": forwards,
        "forwards_saved": sum(figures.forwards_saved for figures in spec),
        "time_saved_ms": _known_sum([figures.time_saved_ms for figures in spec]),
        "tokens_per_forward": tokens / forwards if forwards else 0.0,
        "num_draft_tokens": sum(drafted),
        "num_accepted_draft_tokens": sum(accepted),
        "accepted_prediction_tokens": sum(output.metrics.accepted_prediction_tokens for output in outputs),
        "rejected_prediction_tokens": sum(output.metrics.rejected_prediction_tokens for output in outputs),
        "acceptance_by_position": [a / d for a, d in zip(accepted, drafted, strict=False)],
        "seeds": [output.seed for output in outputs],
        "finish_reasons": [choice.finish_reason for output in outputs for choice in output.outputs],
    }


def summary_lines(outputs: Sequence[RequestOutput]) -> list[str]:
    """The totals for a person, in two lines (one without speculation)."""
    figures = totals(outputs)
    seeds = ", ".join(str(seed) for seed in dict.fromkeys(figures["seeds"]))
    reasons = ", ".join(str(reason) for reason in dict.fromkeys(figures["finish_reasons"]))
    first = figures["time_to_first_token"]
    wait = "" if first is None else f", the first after {first:.2f} s"
    gains = (
        f"[{figures['completion_tokens']} tokens in {figures['seconds']:.2f} s{wait} · {_speed(figures)} "
        f"({_forwards(figures)}) · ended by {reasons} · seed {seeds}]"
    )
    return [gains, *_proposal_lines(figures)]


def answer_line(output: RequestOutput) -> str:
    """One answer of a conversation in a line."""
    figures = totals([output])
    drafted, accepted = figures["num_draft_tokens"], figures["num_accepted_draft_tokens"]
    share = f" · {accepted} of {drafted} proposals accepted" if drafted else ""
    return f"[{figures['completion_tokens']} tokens · {_speed(figures)}{share} · ended by {output.finish_reason}]"


def conversation_lines(outputs: Sequence[RequestOutput]) -> list[str]:
    """All complete answers of a conversation together, in two lines."""
    figures = totals(outputs, in_turn=True)
    answers = "1 answer" if len(outputs) == 1 else f"{len(outputs)} answers"
    gains = (
        f"[{answers} · {figures['completion_tokens']} tokens in {figures['seconds']:.2f} s · {_speed(figures)} "
        f"({_forwards(figures)})]"
    )
    return [gains, *_proposal_lines(figures)]


def score_lines(output: RequestOutput) -> list[str]:
    """Log-probabilities, if there are any: a line per token, the alternatives behind it."""
    lines: list[str] = []
    if output.prompt_logprobs is not None:
        lines.append("[log-probabilities of the prompt]")
        scored = zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
        lines += [_score_line(token, entry) for token, entry in scored if entry is not None]
    for choice in output.outputs:
        if choice.logprobs is not None:
            lines.append(f"[log-probabilities{f' of sample {choice.index + 1}' if len(output.outputs) > 1 else ''}]")
            lines += [_score_line(*pair) for pair in zip(choice.token_ids, choice.logprobs, strict=True)]
    return lines


def _score_line(token: int, entry: LogprobEntry) -> str:
    names = {
        each: str(each) if score.decoded_token is None else repr(score.decoded_token) for each, score in entry.items()
    }
    others = " ".join(f"{names[other]} {entry[other].logprob:.3f}" for other in entry if other != token)
    return f"  {names[token]} {entry[token].logprob:.3f} #{entry[token].rank}{f' · {others}' if others else ''}"


def _speed(figures: Mapping[str, Any]) -> str:
    return f"{figures['tokens_per_second']:.1f} tokens/s · {figures['tokens_per_forward']:.2f} tokens per forward"


def _forwards(figures: Mapping[str, Any]) -> str:
    """Forwards and what speculation saved: forwards for certain, time as the machine's measured costs estimate it."""
    saved, spared = figures["time_saved_ms"], figures["forwards_saved"]
    told = f"{figures['forwards']} forwards, {spared} saved"
    if saved is None or abs(saved) < 5.0:
        return told
    word = "less" if saved > 0 else "more"
    return f"{told}, about {abs(saved) / 1e3:.2f} s {word} than plain"


def _known_sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _proposal_lines(figures: Mapping[str, Any]) -> list[str]:
    lines = []
    drafted, accepted = figures["num_draft_tokens"], figures["num_accepted_draft_tokens"]
    if drafted:
        places = " ".join(f"{share:.0%}" for share in figures["acceptance_by_position"])
        lines.append(f"[accepted {accepted} of {drafted} proposals ({accepted / drafted:.0%}); by position {places}]")
    copied, wrong = figures["accepted_prediction_tokens"], figures["rejected_prediction_tokens"]
    if copied or wrong:
        lines.append(f"[{copied} tokens followed the prediction, {wrong} of it were verified in vain]")
    return lines


def _sum_by_position(counts: Sequence[Sequence[int]]) -> list[int]:
    width = max((len(row) for row in counts), default=0)
    return [sum(row[place] for row in counts if place < len(row)) for place in range(width)]
