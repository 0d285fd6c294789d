"""Milliseconds of one target forward on this machine, by number format, window, context and batch, on random weights.

``python -m paceline.bench.forward`` prints a table and ends with one JSON line. It knows no engine and no text.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..core import env

env.use_passive_waiting()

import torch  # noqa: E402

from ..cache.store import KVStore  # noqa: E402
from ..core.batch import ForwardBatch  # noqa: E402
from ..models.binding import TargetBinding, load_target  # noqa: E402

BLOCK_SIZE = 16

DEMO_SHAPE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class Case:
    """``rows`` rows of ``tokens`` new tokens each, behind ``context`` tokens. ``logits``: also the LM head, on all."""

    rows: int
    tokens: int
    context: int
    logits: bool = True

    @property
    def name(self) -> str:
        return f"B={self.rows} T={self.tokens} context={self.context}"


@dataclass(frozen=True)
class Timing:
    """Milliseconds. ``best`` is what the machine can do, where other work on it disturbs the ``median``."""

    median: float
    best: float


CASES = (
    *(Case(1, tokens, context) for context in (200, 1000) for tokens in (1, 2, 4, 8, 16, 32)),
    Case(8, 1, 200),
    Case(8, 5, 200),
    Case(8, 1, 1000),
    Case(1, 512, 0, logits=False),
)


class RandomCheckpoint:
    """An artifact whose tensors are drawn when they are asked for."""

    identity = "random weights"

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self._shapes = _shapes(config)
        self._generator = torch.Generator().manual_seed(11)

    @property
    def weights(self) -> RandomCheckpoint:
        return self

    def names(self) -> list[str]:
        return list(self._shapes)

    def has(self, name: str) -> bool:
        return name in self._shapes

    def get(self, name: str) -> torch.Tensor:
        shape = self._shapes[name]
        spread = 0.02 if len(shape) == 1 else shape[-1] ** -0.5
        tensor = torch.randn(shape, generator=self._generator).mul_(spread)
        return (tensor + 1 if len(shape) == 1 else tensor).to(torch.bfloat16)


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    for index in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


def case_batch(case: Case, width: int) -> ForwardBatch:
    """Rows of ``width`` consecutive blocks each, block 0 left for scratch."""
    table = 1 + torch.arange(case.rows * width).view(case.rows, width)
    at = torch.arange(case.context, case.context + case.tokens)
    slots = table[:, at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE
    used = -(-(case.context + case.tokens) // BLOCK_SIZE)
    return ForwardBatch(
        tokens=torch.arange(case.rows * case.tokens) * 97 % DEMO_SHAPE["vocab_size"],
        positions=at.repeat(case.rows),
        indices=torch.arange(case.rows),
        query_lens=[case.tokens] * case.rows,
        context_lens=[case.context] * case.rows,
        slots={"full": slots.reshape(-1)},
        block_tables={"full": table[:, :used]},
    )


def measure(target: TargetBinding, cases: Sequence[Case], seconds: float) -> dict[str, Timing]:
    """Milliseconds per case; every case runs at least five times and for about ``seconds``."""
    width = -(-max(case.context + case.tokens for case in cases) // BLOCK_SIZE)
    rows = max(case.rows for case in cases)
    store = KVStore(target.kv_groups, {"full": 1 + rows * width}, BLOCK_SIZE, target.kv_dtype, "cpu")
    target.attach(store)
    results = {}
    for case in cases:
        batch = case_batch(case, width)

        def once(batch: ForwardBatch = batch, case: Case = case) -> None:
            hidden = target.forward(batch).hidden
            if case.logits:
                target.logits(hidden)

        results[case.name] = timing(once, seconds)
    return results


def timing(call: Callable[[], None], seconds: float) -> Timing:
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return Timing(statistics.median(times), min(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", default="float32,bfloat16,int8", help="comma-separated number formats")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="time spent on each case")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    report: dict[str, Any] = {"threads": options.threads, "shape": DEMO_SHAPE, "dtypes": {}}
    for dtype in options.dtypes.split(","):
        target = load_target(RandomCheckpoint(DEMO_SHAPE), dtype, "cpu", None)
        results = measure(target, CASES, options.seconds)
        report["dtypes"][dtype] = {
            "exactness": target.exactness,
            "chunk_invariant": target.chunk_invariant,
            "weight_bytes": target.weight_bytes,
            "ms": {name: asdict(result) for name, result in results.items()},
        }
    print(f"{'ms, median (best)':24}" + "".join(f"{dtype:>18}" for dtype in report["dtypes"]))
    for case in CASES:
        cells = [entry["ms"][case.name] for entry in report["dtypes"].values()]
        print(f"{case.name:24}" + "".join(f"{cell['median']:10.1f} ({cell['best']:.1f})".rjust(18) for cell in cells))
    print(f"{'exactness':24}" + "".join(f"{entry['exactness']:>18}" for entry in report["dtypes"].values()))
    report["cases"] = [asdict(case) for case in CASES]
    print(json.dumps(report))


if __name__ == "__main__":
    main()
