"""What grammars cost on this machine, over any tokenizer: compiling, masks, windows, long texts, masking of logits.
The last line it prints is JSON. Knows no model and no engine."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from ..core.round import RowResult
from ..grammar.bits import apply_bitmask
from ..grammar.compiler import GrammarCompiler
from ..grammar.spec import GrammarSpec
from ..grammar.window import cut_at_end, window_masks

_ITEM = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
    "required": ["id", "name"],
    "additionalProperties": False,
}
_LIST = GrammarSpec("json_schema", {"type": "array", "items": _ITEM})
_DEPTH = 8


def _milliseconds(call: Callable[[], object], repeat: int = 9) -> float:
    """The shortest of several runs."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def long_text(compiler: GrammarCompiler, ids: list[int]) -> dict[str, float]:
    """Microseconds per token (medians) of rounds in which every proposal but the first fails: first and last 500."""
    matcher = compiler.compile(_LIST).open()
    times = []
    for place, token in enumerate(ids):
        start = time.perf_counter()
        window = window_masks(matcher, ids[place : place + _DEPTH])
        cut_at_end(matcher, RowResult((), (token,), 0))
        times.append(1e6 * (time.perf_counter() - start) / max(1, window.legal_length + 1))
    matcher.close()
    return {"first_us": statistics.median(times[:500]), "last_us": statistics.median(times[-500:])}


def masking(vocab_size: int, rows: int) -> float:
    """Milliseconds to mask ``rows`` rows of logits of this width."""
    words = (vocab_size + 31) // 32
    masks = np.full((rows, words), -1, dtype=np.int32)
    masks[:, ::3] = -2  # about one id in a hundred is forbidden, as inside a JSON string
    logits = torch.zeros(rows, vocab_size)
    return _milliseconds(lambda: apply_bitmask(logits, masks))


def measure(path: Path, vocab_size: int, items: int = 4000) -> dict[str, object]:
    """All figures for one ``tokenizer.json``."""
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(path))
    compiler = GrammarCompiler(path, vocab_size, ())
    start = time.perf_counter()
    compiler.prepare()
    figures: dict[str, object] = {"vocab_size": vocab_size, "backend_s": time.perf_counter() - start}
    start = time.perf_counter()
    grammar = compiler.compile(_LIST)
    figures["compile_ms"] = 1e3 * (time.perf_counter() - start)
    figures["open_ms"] = _milliseconds(lambda: grammar.open().close())
    text = json.dumps([{"id": i, "name": f"item {i}"} for i in range(items)])
    figures["long_text"] = long_text(compiler, tokenizer.encode(text, add_special_tokens=False).ids)
    figures["masking_ms"] = {str(rows): masking(vocab_size, rows) for rows in (1, 8, 40)}
    compiler.close()
    return figures


def main(arguments: list[str]) -> int:
    """``python -m paceline.bench.grammars TOKENIZER_JSON VOCAB_SIZE``."""
    if len(arguments) != 2:
        print(main.__doc__, file=sys.stderr)
        return 2
    print(json.dumps(measure(Path(arguments[0]), int(arguments[1]))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
