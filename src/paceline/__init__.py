"""paceline: language-model decoding with speculation as the normal way to decode.

Importing the package imports neither torch nor transformers: the names below are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .core.env import use_passive_waiting

if TYPE_CHECKING:
    from .core.config import EngineConfig
    from .core.errors import (
        Cancelled,
        ConfigError,
        DraftError,
        EngineClosed,
        ModelError,
        PacelineError,
        RequestError,
        RowFailed,
    )
    from .core.params import HlgSettings
    from .core.request import SamplingParams
    from .engine.async_llm import AsyncLLM
    from .engine.llm import LLM
    from .engine.outputs import CompletionOutput, RequestOutput

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncLLM",
    "Cancelled",
    "CompletionOutput",
    "ConfigError",
    "DraftError",
    "EngineClosed",
    "EngineConfig",
    "HlgSettings",
    "ModelError",
    "PacelineError",
    "RequestError",
    "RequestOutput",
    "RowFailed",
    "SamplingParams",
    "__version__",
]

_HOMES = {
    "LLM": "engine.llm",
    "AsyncLLM": "engine.async_llm",
    "CompletionOutput": "engine.outputs",
    "RequestOutput": "engine.outputs",
    "EngineConfig": "core.config",
    "HlgSettings": "core.params",
    "SamplingParams": "core.request",
}

use_passive_waiting()

if not TYPE_CHECKING:

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'core.errors')}"), name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
