"""``transformers`` on the same shape in the same run: static cache, compiled forward. It takes minutes to compile."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from ...models.random import random_artifact
from .timing import synchronize

_SHORT, _LONG, _REPEATS = 32, 160, 3


def measure_peer(shape: str, device: str, prompt_tokens: int) -> dict[str, Any]:
    """Milliseconds a token of one stream: the difference of two lengths, so that prefill and start do not count."""
    import transformers

    config = transformers.AutoConfig.for_model(**random_artifact(shape, "meta").config)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()  # type: ignore[no-untyped-call]
    prompt = torch.randint(0, config.vocab_size, (1, prompt_tokens), device=device)
    begin = time.perf_counter()
    _generate(model, prompt, _SHORT)
    _generate(model, prompt, _SHORT)
    compile_seconds = time.perf_counter() - begin
    times = []
    for _ in range(_REPEATS):
        short, long = _generate(model, prompt, _SHORT), _generate(model, prompt, _LONG)
        times.append((long - short) / (_LONG - _SHORT) * 1e3)
    del model
    return {
        "transformers": transformers.__version__,
        "ms_per_token": statistics.median(times),
        "compile_seconds": compile_seconds,
        "settings": "static cache, compiled decode forward, bfloat16, one stream, greedy",
    }


def _generate(model: Any, prompt: torch.Tensor, tokens: int) -> float:
    """Seconds of one call. The cache has one size for all calls, so that one compilation serves them."""
    synchronize(prompt.device)
    begin = time.perf_counter()
    with torch.inference_mode():
        model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            do_sample=False,
            cache_implementation="static",
            pad_token_id=0,
        )
    synchronize(prompt.device)
    return time.perf_counter() - begin
