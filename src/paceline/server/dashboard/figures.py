"""What the dashboard draws, as plain JSON: what runs, totals since the start, the last minutes second by second."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from ... import __version__
from ..history import Change, History, Sample
from ..state import ServerState

_SHOWN = (
    "model",
    "dtype",
    "device",
    "exactness",
    "drafter",
    "drafter_failure",
    "spec_tokens",
    "max_num_seqs",
    "max_model_len",
    "kv_cache_tokens",
)


def document(state: ServerState, history: History, seconds: float) -> dict[str, Any]:
    """``series``: one entry per second of the last ``seconds``, ``at`` counted back from now (0 or less); ``recent``:
    the last minute as a whole; ``totals``: since the start. While the model loads there is only a status."""
    _, status = state.health()
    now = history.now()
    found: dict[str, Any] = {"version": __version__, "status": status, "series": [], "recent": None, "totals": None}
    if now is None:
        return found
    samples = [sample for sample in history.samples if now.at - sample.at <= seconds]
    recent = history.change(60.0)
    return found | {
        "server": _server(state.info(), state),
        "now": _moment(now),
        "totals": _totals(now),
        "recent": None if recent is None else _recent(recent),
        "series": [_point(now.at, old, new) for old, new in pairwise(samples)],
    }


def _server(info: Mapping[str, Any], state: ServerState) -> dict[str, Any]:
    return {name: info.get(name) for name in _SHOWN} | {"names": list(state.names) if state.phase == "ready" else []}


def _moment(sample: Sample) -> dict[str, Any]:
    return {"running": sample.running, "waiting": sample.waiting, "kv_usage": sample.kv_usage}


def _totals(sample: Sample) -> dict[str, Any]:
    stats = sample.stats
    return {
        "prompt_tokens": stats.prompt_tokens,
        "generation_tokens": stats.generation_tokens,
        "num_drafts": stats.num_drafts,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted_tokens": stats.num_accepted_tokens,
        "finished": dict(stats.finished),
        "preemptions": stats.preemptions,
        "drafter_failures": stats.drafter_failures,
        "time_saved_ms": stats.time_saved_ms,
        "losing_reason": stats.losing_reason,
        "origins": dict(sample.origins),
    }


def _recent(change: Change) -> dict[str, Any]:
    pairs = zip(change.accepted_by_position, change.drafted_by_position, strict=False)
    return {
        "seconds": round(change.seconds, 1),
        "tokens_per_second": round(change.tokens_per_second, 2),
        "acceptance_rate": change.acceptance_rate,
        "accept_length": change.accept_length,
        "depth": change.depth,
        "acceptance_by_position": [accepted / drafted if drafted else None for accepted, drafted in pairs],
        "drafted_by_position": change.drafted_by_position,
        "rounds": change.rounds,
        "origins": change.origins,
        "depths": {str(depth): count for depth, count in change.depths.items()},
    }


def _point(now: float, old: Sample, new: Sample) -> dict[str, Any]:
    change = Change.between(old, new)
    return _moment(new) | {
        "at": round(new.at - now, 2),
        "tokens_per_second": round(change.tokens_per_second, 2),
        "prompt_tokens_per_second": round(change.prompt_tokens_per_second, 2),
        "acceptance_rate": change.acceptance_rate,
        "depth": change.depth,
    }
