"""Token counts and speculation figures of an answer. Definitions: docs/server.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..engine.outputs import RequestOutput, SpeculativeMetrics


def usage_of(
    outputs: Sequence[RequestOutput], *, prefix_cache: bool, prediction: bool, reasoning: int | None = None
) -> dict[str, Any]:
    """``usage`` of all prompts of one call. Cached tokens are absent, not zero, without a prefix cache; reasoning
    tokens where there is no thinking block, prediction tokens where the caller gave no ``prediction``."""
    metrics = [output.metrics for output in outputs]
    prompt = sum(part.prompt_tokens for part in metrics)
    completion = sum(part.completion_tokens for part in metrics)
    found: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if prefix_cache:
        found["prompt_tokens_details"] = {"cached_tokens": sum(part.cached_tokens for part in metrics)}
    details: dict[str, int] = {} if reasoning is None else {"reasoning_tokens": min(reasoning, completion)}
    if prediction:
        details["accepted_prediction_tokens"] = sum(part.accepted_prediction_tokens for part in metrics)
        details["rejected_prediction_tokens"] = sum(part.rejected_prediction_tokens for part in metrics)
    if details:
        found["completion_tokens_details"] = details
    return found


def metrics_of(outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    """The root object ``metrics`` of an answer; what is not known is absent."""
    parts = [output.metrics.speculative_decoding for output in outputs]
    whole = parts[0] if len(parts) == 1 else SpeculativeMetrics.merged(parts)
    return {"speculative_decoding": {name: value for name, value in asdict(whole).items() if value is not None}}
