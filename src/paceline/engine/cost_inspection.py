"""Measures anew what rounds cost with the model and drafter that a configuration names, by starting an engine."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..core.config import EngineConfig
from ..core.costs import CostTable
from ..core.errors import ConfigError
from .build import build_engine
from .calibration import Progress
from .cost_cache import CostCache, CostKey
from .inspect import look_at


@dataclass(frozen=True)
class Calibration:
    """A fresh table, what it was measured of, and whether it is kept for engines to come."""

    key: CostKey
    costs: CostTable
    drafter_reason: str
    kept: bool


def calibrate(config: EngineConfig, progress: Progress | None = None) -> Calibration:
    """Measure now, in place of what is kept. Raises what building an engine would raise."""
    look = look_at(config, progress)
    key, cache = look.cost_key(), CostCache()
    if key.depth == 0:
        raise ConfigError(
            "spec_method", "without a drafter there is no depth to choose and nothing to measure; name one"
        )
    cache.drop(key)
    engine = build_engine(replace(config, spec=replace(config.spec, adaptive=True)), None, progress)
    try:
        group = engine._scheduler._group
        assert group is not None and group.ledger is not None, "an adaptive engine has measured"
        costs = group.ledger.costs
    finally:
        engine.close()
    known = cache.load(key)
    return Calibration(key, costs, look.drafting.reason, known is not None and known.costs == costs)
