"""The GGUF container: header, metadata and tensor places, checked for damage before any tensor is read.

Knows nothing of architectures or tokenizers, and of block formats only their sizes (:mod:`.gguf_blocks` decodes them).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import ModelError
from .gguf_blocks import BLOCK_FORMATS, KNOWN_FORMATS, dequantise

if TYPE_CHECKING:
    import torch

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
#: Metadata value type -> struct code of one little-endian scalar (GGUF format description).
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MAX_DIMS = 4


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor: ``shape`` in row-major order (the reverse of the file's), ``offset`` in bytes from the data start."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int
    nbytes: int


class GGUFFile:
    """An opened GGUF file: ``metadata`` by key, ``tensors`` by the file's own names.

    Raises :class:`ModelError` naming the file, and the tensor if one is at fault, when the file is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = _map_file(path)
        cursor = _Cursor(path, self._data)
        tensor_count, metadata_count = _read_preamble(cursor)
        self.metadata: dict[str, Any] = {}
        for _ in range(metadata_count):
            key = cursor.string()
            self.metadata[key] = cursor.value(cursor.scalar("I"))
        self.tensors: dict[str, GGUFTensor] = {}
        for _ in range(tensor_count):
            tensor = _read_tensor(cursor)
            if tensor.name in self.tensors:
                raise ModelError(str(path), f"is damaged: tensor {tensor.name!r} is listed twice")
            self.tensors[tensor.name] = tensor
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ModelError(str(path), f"is damaged: general.alignment is {alignment!r}")
        self._data_start = -(-cursor.position // alignment) * alignment
        self._check_layout()

    def _check_layout(self) -> None:
        available = max(0, len(self._data) - self._data_start)
        end, before = 0, ""
        for tensor in sorted(self.tensors.values(), key=lambda tensor: (tensor.offset, tensor.nbytes)):
            if tensor.offset + tensor.nbytes > available:
                raise ModelError(
                    str(self.path),
                    f"is cut short or damaged: tensor {tensor.name!r} ends at byte {tensor.offset + tensor.nbytes} "
                    f"of the data, the file holds {available}; download the file again",
                )
            if not tensor.nbytes:
                continue
            if tensor.offset < end:
                raise ModelError(str(self.path), f"is damaged: tensor {tensor.name!r} overlaps tensor {before!r}")
            end, before = tensor.offset + tensor.nbytes, tensor.name

    def read(self, name: str) -> torch.Tensor:
        """The tensor under the file's own name: float32, float16 or bfloat16 as stored, quantised ones as float32."""
        import numpy as np
        import torch

        tensor = self.tensors[name]
        start = self._data_start + tensor.offset
        raw = np.frombuffer(self._data, dtype=np.uint8, count=tensor.nbytes, offset=start)
        storage = BLOCK_FORMATS[tensor.kind].torch_dtype
        if storage is not None:
            dtype: torch.dtype = getattr(torch, storage)
            if not tensor.nbytes:
                return torch.empty(tensor.shape, dtype=dtype)
            return torch.from_numpy(raw.copy()).view(dtype).reshape(tensor.shape)
        return torch.from_numpy(dequantise(raw, tensor.kind)).reshape(tensor.shape)


class _Cursor:
    """Reads the header front to back; never past the end of the file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.position = 0
        self._data = data
        self._size = len(data)

    def take(self, count: int) -> bytes:
        end = self.position + count
        if end > self._size:
            raise ModelError(
                str(self.path),
                f"is cut short or damaged: its header runs past the end of the file ({self._size} bytes) "
                "before the first tensor; download the file again",
            )
        raw = self._data[self.position : end]
        self.position = end
        return raw

    def scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        raw = self.take(self.scalar("Q"))
        return raw.decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(self.scalar("I"), self.scalar("Q"))
        if kind not in _SCALARS:
            raise ModelError(str(self.path), f"is damaged: metadata value of unknown type {kind}")
        return self.scalar(_SCALARS[kind])

    def _array(self, kind: int, count: int) -> list[Any]:
        if kind in _SCALARS:
            code = _SCALARS[kind]
            raw = self.take(count * struct.calcsize("<" + code))
            return list(struct.unpack(f"<{count}{code}", raw))
        read: Callable[[], Any] = self.string if kind == _STRING else lambda: self.value(kind)
        items = []
        for _ in range(count):  # a false count runs into the end of the file, which take() reports
            items.append(read())
        return items


def _map_file(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise ModelError(str(path), "is empty (0 bytes); download the file again")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelError(str(path), f"cannot be read: {error}") from error


def _read_preamble(cursor: _Cursor) -> tuple[int, int]:
    """Magic and version; returns (tensor count, metadata count)."""
    path = str(cursor.path)
    magic = cursor.take(4)
    if magic != _MAGIC:
        raise ModelError(path, f"is not a GGUF file: it starts with {magic!r}; download the file again")
    version = cursor.scalar("I")
    if version not in _VERSIONS:
        big_endian = version & 0xFFFF == 0
        hint = "it is big-endian" if big_endian else f"versions {_VERSIONS[0]} and {_VERSIONS[-1]} can be read"
        raise ModelError(path, f"GGUF version {version:#x} cannot be read: {hint}")
    return cursor.scalar("Q"), cursor.scalar("Q")


def _read_tensor(cursor: _Cursor) -> GGUFTensor:
    path = str(cursor.path)
    name = cursor.string()
    dims = cursor.scalar("I")
    if dims > _MAX_DIMS:
        raise ModelError(path, f"is damaged: tensor {name!r} has {dims} dimensions")
    shape = tuple(cursor.scalar("Q") for _ in range(dims))[::-1]
    kind, offset = cursor.scalar("I"), cursor.scalar("Q")
    block = BLOCK_FORMATS.get(kind)
    if block is None:
        label = KNOWN_FORMATS.get(kind, f"number {kind}")
        readable = ", ".join(item.name for item in BLOCK_FORMATS.values())
        raise ModelError(path, f"tensor {name!r} is stored as {label}, which cannot be read; readable: {readable}")
    count = 1
    for extent in shape:
        count *= extent
    if shape and shape[-1] % block.elements:
        raise ModelError(path, f"is damaged: rows of tensor {name!r} are no whole number of {block.name} blocks")
    return GGUFTensor(name, shape, kind, offset, count // block.elements * block.nbytes)
