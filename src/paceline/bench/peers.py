"""``transformers`` ``generate``, the decoder to compare with: greedy, dynamic cache, its best settings of this machine.

It always generates exactly the number of tokens it is asked for, so that rates are over equal counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..core.errors import ConfigError, PacelineError
from ..kernels.backend import TORCH_DTYPES
from ..testing.models import quiet_transformers
from .arms import Run

ATTENTION = ("sdpa", "eager")
LOOKUP_TOKENS = (5, 10, 15)
PEER_DTYPES = ("float64", "float32", "bfloat16")


class PeerModel:
    """A model of ``transformers``, loaded once for all arms of one number format."""

    def __init__(self, path: Path, dtype: str, device: str) -> None:
        """``path``: a directory of safetensors; other forms of a model are refused by name."""
        import transformers

        library: Any = transformers
        if not path.is_dir():
            raise ConfigError("peers", f"transformers needs a model directory, and {path} is none; use --no-peers")
        self.dtype = dtype
        with quiet_transformers():
            self._model: Any = library.AutoModelForCausalLM.from_pretrained(
                path, dtype=TORCH_DTYPES[dtype], attn_implementation=ATTENTION[0]
            )
        self._model.to(device).eval()
        # without an EOS nothing but the number of tokens ends a run
        self._model.generation_config = library.GenerationConfig(do_sample=False, pad_token_id=0)
        self._make_config: Callable[..., Any] = library.GenerationConfig

    def use_attention(self, implementation: str) -> None:
        self._model.set_attn_implementation(implementation)

    def generate(self, ids: Sequence[int], tokens: int, lookup: int | None) -> Run:
        """Exactly ``tokens`` greedy tokens. ``lookup``: proposals of prompt lookup per round, ``None`` = none."""
        clock = _Clock()
        config = self._make_config(
            do_sample=False, max_new_tokens=tokens, pad_token_id=0, prompt_lookup_num_tokens=lookup
        )
        prompt = torch.tensor([list(ids)], dtype=torch.int64, device=self._model.device)
        start = time.perf_counter()
        with torch.inference_mode():
            out = self._model.generate(
                prompt, attention_mask=torch.ones_like(prompt), generation_config=config, streamer=clock
            )
        new = out[0, prompt.shape[1] :].tolist()
        seconds = time.perf_counter() - start
        if len(new) != tokens:
            raise PacelineError(f"transformers generated {len(new)} tokens instead of {tokens}")
        return Run(tuple(new), len(new), seconds, clock.first_at - start, clock.first_count)

    def close(self) -> None:
        """Let go of the weights."""
        self._model = None


class _Clock:
    """A streamer that notes when the first new tokens came, and how many they were."""

    def __init__(self) -> None:
        self.first_at = 0.0
        self.first_count = 0
        self._puts = 0

    def put(self, value: torch.Tensor) -> None:
        """Called with the prompt, then with every burst of new ids."""
        self._puts += 1
        if self._puts == 2:
            self.first_at = time.perf_counter()
            self.first_count = value.numel()

    def end(self) -> None:
        """Called behind the last burst."""


@dataclass(frozen=True)
class Trial:
    """Seconds per token of one setting that was tried, and the setting."""

    attention: str
    lookup: int | None
    seconds_per_token: float


def best_settings(model: PeerModel, ids: Sequence[int], tokens: int, tries: int = 2) -> tuple[list[Trial], Trial]:
    """Try the attentions without lookup, then the lookup lengths with the fastest of them; leaves the model on it.

    Returns all trials and the best one with lookup. ``ids``: a prompt whose answer copies from it.
    """
    plain = [_trial(model, ids, (tokens, tries), attention, None) for attention in ATTENTION]
    best = min(plain, key=lambda trial: trial.seconds_per_token)
    lookups = [_trial(model, ids, (tokens, tries), best.attention, lookup) for lookup in LOOKUP_TOKENS]
    model.use_attention(best.attention)
    return [*plain, *lookups], min(lookups, key=lambda trial: trial.seconds_per_token)


def _trial(model: PeerModel, ids: Sequence[int], effort: tuple[int, int], attention: str, lookup: int | None) -> Trial:
    tokens, tries = effort
    model.use_attention(attention)
    times = [model.generate(ids, tokens, lookup).seconds_per_token for _ in range(tries + 1)]
    return Trial(attention, lookup, min(times[1:]))


class PeerArm:
    """``generate`` with fixed settings."""

    own = False

    def __init__(self, model: PeerModel, attention: str, lookup: int | None) -> None:
        self.dtype = model.dtype
        self.name = f"transformers {'lookup ' if lookup else ''}{model.dtype}"
        self.lookup = lookup
        self._model = model
        self._attention = attention

    def run(self, ids: tuple[int, ...], tokens: int, ignore_eos: bool) -> Run:
        return self._model.generate(ids, tokens, self.lookup)

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "own": False,
            "dtype": self.dtype,
            "attention": self._attention,
            "prompt_lookup_num_tokens": self.lookup,
        }

    def close(self) -> None:
        self._model.close()
