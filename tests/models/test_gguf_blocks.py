"""Block decoding against the reference implementation of the ``gguf`` package, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from paceline.models import gguf_blocks
from paceline.models.gguf_blocks import BLOCK_FORMATS, dequantise

QUANTISED = [kind for kind, block in BLOCK_FORMATS.items() if block.decode is not None]


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: BLOCK_FORMATS[kind].name)
def test_blocks_decode_as_the_reference_does(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any bytes are valid blocks, so random ones reach every field. Some scales are NaN or infinite."""
    block = BLOCK_FORMATS[kind]
    monkeypatch.setattr(gguf_blocks, "_CHUNK_ELEMENTS", 16 * block.elements)  # several chunks, the last one ragged
    raw = np.random.default_rng(kind).integers(0, 256, (200, block.nbytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw.copy(), gguf.GGMLQuantizationType(kind))
        actual = dequantise(raw.reshape(-1), kind)
    assert actual.dtype == np.float32
    assert np.array_equal(actual, expected.reshape(-1), equal_nan=True)


@pytest.mark.parametrize("kind", BLOCK_FORMATS, ids=lambda kind: BLOCK_FORMATS[kind].name)
def test_names_and_sizes_are_those_of_the_format(kind: int) -> None:
    block = BLOCK_FORMATS[kind]
    assert gguf.GGMLQuantizationType(kind).name == block.name
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)] == (block.elements, block.nbytes)
