"""How a drafter draws, as far as the engine's settings decide (spec 13.8). Changes statistics, never a token."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ..core.errors import ConfigError
from ..core.request import SamplingParams

_MOST = 100.0


@lru_cache(maxsize=1024)
def draft_options(
    options: SamplingParams, greedy: bool, *, temperature: float | None = None, filters: bool = True
) -> SamplingParams:
    """Options that a request's drafts are drawn with; ``options`` itself is never changed.

    ``greedy``: the drafter takes its argmax by choice, uncoupled. ``temperature`` replaces the request's unless
    ``None``; ``filters=False`` turns top-k, top-p, min-p, typical-p and XTC off for drafts.
    """
    if greedy:
        return replace(options, temperature=0.0)
    changes: dict[str, Any] = {}
    if temperature is not None:
        if not math.isfinite(temperature) or not 0 <= temperature <= _MOST:
            raise ConfigError("draft_temperature", f"must be a number in [0, {_MOST:g}], not {temperature!r}")
        changes["temperature"] = temperature
    if not filters:
        changes |= {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "xtc_probability": 0.0}
    return replace(options, **changes)
