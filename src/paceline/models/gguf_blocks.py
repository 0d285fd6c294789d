"""Block formats of GGUF tensors: their sizes, and vectorised decoding to float32.

Layouts follow the ggml block structures (little-endian; a super-block of the K kinds holds 256 elements).
Knows nothing of files or tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]

#: Blocks decoded at once: bounds the scratch memory to some tens of megabytes.
_CHUNK_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class BlockFormat:
    """``elements`` per block of ``nbytes``. Either ``torch_dtype`` (stored plainly) or ``decode`` is set.

    ``decode`` maps blocks [n, nbytes] uint8 to [n, elements] float32.
    """

    name: str
    elements: int
    nbytes: int
    torch_dtype: str | None = None
    decode: Callable[[Bytes], Floats] | None = None


def dequantise(raw: Bytes, kind: int) -> Floats:
    """Decode whole blocks, [n * nbytes] uint8 -> [n * elements] float32. ``kind`` is the ggml type number."""
    block = BLOCK_FORMATS[kind]
    assert block.decode is not None, f"{block.name} is stored plainly"
    blocks = raw.reshape(-1, block.nbytes)
    out = np.empty((len(blocks), block.elements), dtype=np.float32)
    step = max(1, _CHUNK_ELEMENTS // block.elements)
    for start in range(0, len(blocks), step):
        out[start : start + step] = block.decode(blocks[start : start + step])
    return out.reshape(-1)


def _half(blocks: Bytes, start: int) -> Floats:
    """The float16 at byte ``start`` of every block, [n, 1] float32."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """[n, m] -> [n, 2m]: all low halves, then all high halves."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=1)


def _fifth_bits(blocks: Bytes, start: int) -> Bytes:
    """The 32 bits at byte ``start`` of every block, as 0 or 16, [n, 32]."""
    bits = np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little")
    return bits << np.uint8(4)


def _q4_0(blocks: Bytes) -> Floats:
    return (_nibbles(blocks[:, 2:]).astype(np.float32) - 8) * _half(blocks, 0)


def _q4_1(blocks: Bytes) -> Floats:
    return _nibbles(blocks[:, 4:]).astype(np.float32) * _half(blocks, 0) + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    values = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return (values.astype(np.float32) - 16) * _half(blocks, 0)


def _q5_1(blocks: Bytes) -> Floats:
    values = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return values.astype(np.float32) * _half(blocks, 0) + _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    return blocks[:, 2:].view(np.int8).astype(np.float32) * _half(blocks, 0)


def _scales_and_minima(packed: Bytes) -> tuple[Floats, Floats]:
    """Eight 6-bit scales and eight 6-bit minima from 12 bytes: [n, 12] -> two [n, 8].

    The first four of each lie in the low six bits of bytes 0-3 and 4-7; the last four take a nibble of bytes 8-11
    and their upper two bits from the top of bytes 0-3 and 4-7.
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 0x3F, (third & 0x0F) | ((first >> 6) << 4)], axis=1)
    minima = np.concatenate([second & 0x3F, (third >> 4) | ((second >> 6) << 4)], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _fields(packed: Bytes, shifts: Sequence[int], mask: int) -> Bytes:
    """The bit fields at ``shifts`` of every byte: [..., 1, m] -> [..., len(shifts), m]."""
    amounts = np.array(shifts, dtype=np.uint8)[:, None]
    return ((packed >> amounts) & np.uint8(mask)).astype(np.uint8, copy=False)


def _k_nibbles(packed: Bytes) -> Bytes:
    """[n, 128] -> [n, 8, 32]: each run of 32 bytes holds one sub-block low and the next one high."""
    return _fields(packed.reshape(-1, 4, 1, 32), (0, 4), 0x0F).reshape(-1, 8, 32)


def _k_affine(blocks: Bytes, values: Bytes) -> Floats:
    """Sub-block scale and minimum of Q4_K and Q5_K applied to ``values`` [n, 8, 32]."""
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    steps = (_half(blocks, 0) * scales)[:, :, None]
    offsets = (_half(blocks, 2) * minima)[:, :, None]
    return (steps * values.astype(np.float32) - offsets).reshape(len(blocks), 256)


def _q4_k(blocks: Bytes) -> Floats:
    return _k_affine(blocks, _k_nibbles(blocks[:, 16:]))


def _q5_k(blocks: Bytes) -> Floats:
    high = _fields(blocks[:, None, 16:48], range(8), 1) << np.uint8(4)
    return _k_affine(blocks, _k_nibbles(blocks[:, 48:]) | high)


def _q6_k(blocks: Bytes) -> Floats:
    low = _fields(blocks[:, 0:128].reshape(-1, 2, 1, 64), (0, 4), 0x0F).reshape(-1, 2, 4, 32)
    high = _fields(blocks[:, 128:192].reshape(-1, 2, 1, 32), (0, 2, 4, 6), 0x03)
    values = (low | (high << np.uint8(4))).reshape(-1, 16, 16).astype(np.float32) - 32
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32) * _half(blocks, 208)
    return (values * scales[:, :, None]).reshape(-1, 256)


def _q2_k(blocks: Bytes) -> Floats:
    values = _fields(blocks[:, 16:80].reshape(-1, 2, 1, 32), (0, 2, 4, 6), 0x03).reshape(-1, 16, 16)
    steps = _half(blocks, 80) * (blocks[:, 0:16] & 0x0F).astype(np.float32)
    offsets = _half(blocks, 82) * (blocks[:, 0:16] >> 4).astype(np.float32)
    return (steps[:, :, None] * values.astype(np.float32) - offsets[:, :, None]).reshape(-1, 256)


def _q3_k(blocks: Bytes) -> Floats:
    low = _fields(blocks[:, 32:96].reshape(-1, 2, 1, 32), (0, 2, 4, 6), 0x03).reshape(-1, 8, 32)
    high = _fields(blocks[:, None, 0:32], range(8), 1)
    values = (low | (high << np.uint8(2))).astype(np.float32) - 4
    tops = _fields(blocks[:, None, 104:108], (0, 2, 4, 6), 0x03).reshape(-1, 16)
    scales = (_nibbles(blocks[:, 96:104]) | (tops << np.uint8(4))).astype(np.float32) - 32
    steps = _half(blocks, 108) * scales
    return (steps[:, :, None] * values.reshape(-1, 16, 16)).reshape(-1, 256)


_IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)


def _iq4_nl(blocks: Bytes) -> Floats:
    return _IQ4_VALUES[_nibbles(blocks[:, 2:])] * _half(blocks, 0)


#: ggml type number -> format, for everything that can be read.
BLOCK_FORMATS: dict[int, BlockFormat] = {
    0: BlockFormat("F32", 1, 4, torch_dtype="float32"),
    1: BlockFormat("F16", 1, 2, torch_dtype="float16"),
    2: BlockFormat("Q4_0", 32, 18, decode=_q4_0),
    3: BlockFormat("Q4_1", 32, 20, decode=_q4_1),
    6: BlockFormat("Q5_0", 32, 22, decode=_q5_0),
    7: BlockFormat("Q5_1", 32, 24, decode=_q5_1),
    8: BlockFormat("Q8_0", 32, 34, decode=_q8_0),
    10: BlockFormat("Q2_K", 256, 84, decode=_q2_k),
    11: BlockFormat("Q3_K", 256, 110, decode=_q3_k),
    12: BlockFormat("Q4_K", 256, 144, decode=_q4_k),
    13: BlockFormat("Q5_K", 256, 176, decode=_q5_k),
    14: BlockFormat("Q6_K", 256, 210, decode=_q6_k),
    20: BlockFormat("IQ4_NL", 32, 18, decode=_iq4_nl),
    28: BlockFormat("F64", 1, 8, torch_dtype="float64"),
    30: BlockFormat("BF16", 1, 2, torch_dtype="bfloat16"),
}
#: Names of formats that exist but cannot be read, for the error message.
KNOWN_FORMATS = {
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}
