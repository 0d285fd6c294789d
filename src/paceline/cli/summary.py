"""Lines about a run: what was set up, and what speculation gained. Formats figures; the engine computes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..engine.outputs import RequestOutput


def setup_lines(info: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """The resolved configuration in two lines: what runs, and every setting that has a value."""
    runs = (
        f"{info['model']} · {info['dtype']} on {info['device']} · exactness {info['exactness']} · "
        f"drafter {info['drafter']}, up to {info['spec_tokens']} tokens · {info['max_num_seqs']} rows · "
        f"context {info['max_model_len']} · KV pool {info['kv_cache_tokens']} tokens"
    )
    chosen = " ".join(f"{name}={value}" for name, value in settings.items() if value is not None)
    return [f"[{runs}]", f"[{chosen}]"]


def totals(outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    """Figures over all results. ``tokens_per_second`` counts from the first arrival's start to the last end."""
    spec = [output.metrics.speculative_decoding for output in outputs]
    tokens = sum(output.metrics.completion_tokens for output in outputs)
    seconds = max((output.metrics.total_time for output in outputs), default=0.0)
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
        "tokens_per_forward": tokens / forwards if forwards else 0.0,
        "num_draft_tokens": sum(drafted),
        "num_accepted_draft_tokens": sum(accepted),
        "acceptance_by_position": [a / d for a, d in zip(accepted, drafted, strict=False)],
        "seeds": [output.seed for output in outputs],
        "finish_reasons": [output.finish_reason for output in outputs],
    }


def summary_lines(outputs: Sequence[RequestOutput]) -> list[str]:
    """The totals for a person, in two lines (one without speculation)."""
    figures = totals(outputs)
    seeds = ", ".join(str(seed) for seed in dict.fromkeys(figures["seeds"]))
    reasons = ", ".join(str(reason) for reason in dict.fromkeys(figures["finish_reasons"]))
    first = figures["time_to_first_token"]
    wait = "" if first is None else f", the first after {first:.2f} s"
    gains = (
        f"[{figures['completion_tokens']} tokens in {figures['seconds']:.2f} s{wait} · "
        f"{figures['tokens_per_second']:.1f} tokens/s · {figures['tokens_per_forward']:.2f} tokens per forward "
        f"({figures['forwards']} forwards, {figures['forwards_saved']} saved) · ended by {reasons} · seed {seeds}]"
    )
    drafted = figures["num_draft_tokens"]
    if drafted:
        accepted = figures["num_accepted_draft_tokens"]
        places = " ".join(f"{share:.0%}" for share in figures["acceptance_by_position"])
        return [gains, f"[accepted {accepted} of {drafted} proposals ({accepted / drafted:.0%}); by position {places}]"]
    return [gains]


def _sum_by_position(counts: Sequence[Sequence[int]]) -> list[int]:
    width = max((len(row) for row in counts), default=0)
    return [sum(row[place] for row in counts if place < len(row)) for place in range(width)]
