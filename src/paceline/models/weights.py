"""Weight files: named tensors read lazily from safetensors (one file or shards) or weights-only pickles.

Every file is checked for damage when it is opened, before any tensor is read. Knows nothing of architectures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

from ..core.errors import ModelError

if TYPE_CHECKING:
    import torch

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLE_FILE = "pytorch_model.bin"
PICKLE_INDEX = "pytorch_model.bin.index.json"

#: Longest header that the format allows, in bytes.
_MAX_HEADER = 100_000_000
_LFS_POINTER = b"version https://git-lfs"
#: Bits of one element (safetensors format description). Unknown kinds are checked for bounds only.
_BITS = {"F64": 64, "I64": 64, "U64": 64, "C64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16}
_BITS |= {"U16": 16, "I8": 8, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8}
_BITS |= {"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}


class WeightSource(Protocol):
    """Named tensors of one artifact, under the names that Hugging Face checkpoints use."""

    def names(self) -> list[str]: ...

    def has(self, name: str) -> bool: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def get(self, name: str) -> torch.Tensor: ...


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies: ``begin`` and ``end`` are byte offsets from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_json(path: Path) -> dict[str, Any]:
    """Parse a JSON object; raises :class:`ModelError` naming the file if it is absent, unreadable or not an object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(str(path), "file not found; a model directory needs it") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(str(path), f"cannot be read as JSON ({error}); download the file again") from error
    if not isinstance(value, dict):
        raise ModelError(str(path), f"must hold a JSON object, not a {type(value).__name__}")
    return value


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Read and check the header of a safetensors file: every tensor inside the file, sizes right, nothing overlaps.

    Reads only the header. Raises :class:`ModelError` naming the file and, where one is at fault, the tensor.
    """
    size, raw = _raw_header(path)
    entries = _parse_entries(path, raw)
    _check_layout(path, entries, size - 8 - len(raw))
    return entries


def _raw_header(path: Path) -> tuple[int, bytes]:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(64)
            if size == 0:
                raise ModelError(str(path), "is empty (0 bytes); download the file again")
            if start.startswith(_LFS_POINTER):
                raise ModelError(str(path), "is a Git LFS pointer, not the weights; run `git lfs pull`")
            length = int.from_bytes(start[:8], "little")
            if size < 8 or length > min(_MAX_HEADER, size - 8):
                raise ModelError(
                    str(path), f"is damaged or not safetensors: header of {length} bytes in a file of {size} bytes"
                )
            file.seek(8)
            return size, file.read(length)
    except FileNotFoundError:
        raise ModelError(str(path), "weight file not found; download the model again") from None
    except OSError as error:
        raise ModelError(str(path), f"cannot be read: {error}") from error


def _parse_entries(path: Path, raw: bytes) -> dict[str, TensorEntry]:
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=lambda pairs: _unique(path, pairs))
    except (ValueError, RecursionError) as error:
        raise ModelError(str(path), f"is damaged or not safetensors: the header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise ModelError(str(path), "is damaged or not safetensors: the header is not a JSON object")
    return {name: _entry(path, name, value) for name, value in header.items() if name != "__metadata__"}


def _unique(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ModelError(str(path), f"is damaged: the header names {twice!r} twice")
    return result


def _entry(path: Path, name: str, value: Any) -> TensorEntry:
    try:
        dtype, shape, (begin, end) = value["dtype"], tuple(value["shape"]), value["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise ModelError(str(path), f"is damaged: tensor {name!r} has no dtype, shape and data_offsets") from None
    numbers = (*shape, begin, end)
    if not isinstance(dtype, str) or any(type(number) is not int or number < 0 for number in numbers):
        raise ModelError(str(path), f"is damaged: tensor {name!r} has a malformed header entry")
    return TensorEntry(dtype, shape, begin, end)


def _check_layout(path: Path, entries: Mapping[str, TensorEntry], available: int) -> None:
    """``available`` counts the bytes after the header."""
    position, before = 0, "the header"
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.end > available:
            raise ModelError(
                str(path),
                f"is cut short or damaged: tensor {name!r} ends at byte {entry.end} of the data, "
                f"the file holds {available}; download the file again",
            )
        if entry.begin < position:
            raise ModelError(str(path), f"is damaged: tensor {name!r} overlaps {before}")
        if entry.begin > position:
            raise ModelError(str(path), f"is damaged: {entry.begin - position} stray bytes before tensor {name!r}")
        _check_size(path, name, entry)
        position, before = entry.end, f"tensor {name!r}"
    if position != available:
        raise ModelError(str(path), f"is damaged: {available - position} stray bytes after {before}")


def _check_size(path: Path, name: str, entry: TensorEntry) -> None:
    bits = _BITS.get(entry.dtype)
    if bits is None:
        return
    for extent in entry.shape:
        bits *= extent
    if bits != 8 * (entry.end - entry.begin):
        raise ModelError(
            str(path),
            f"is damaged: tensor {name!r} of shape {list(entry.shape)} and dtype {entry.dtype} "
            f"cannot take {entry.end - entry.begin} bytes",
        )


def read_index(path: Path) -> dict[str, Path]:
    """Tensor name -> shard, from a ``*.index.json``. Every shard must exist beside the index."""
    mapping = read_json(path).get("weight_map")
    if not isinstance(mapping, dict) or not mapping:
        raise ModelError(str(path), "has no weight_map; download the file again")
    shards: dict[str, Path] = {}
    for name, file in mapping.items():
        parts = PurePosixPath(file).parts if isinstance(file, str) else ()
        if not parts or ".." in parts or PurePosixPath(file).is_absolute():
            raise ModelError(str(path), f"names {file!r} as the file of tensor {name!r}")
        shards[name] = path.parent / file
    tensor_in = {shard: name for name, shard in shards.items()}
    for shard, name in tensor_in.items():
        if not shard.is_file():
            raise ModelError(str(shard), f"shard not found, it should hold tensor {name!r}; download the model again")
    return shards


class SafetensorsWeights:
    """Tensors of one or more safetensors files, read when asked for.

    ``files``: every file to open. ``index``: tensor name -> file, checked against the files; tensors that the files
    hold beyond the index stay visible.
    """

    def __init__(self, files: list[Path], index: Mapping[str, Path] | None = None) -> None:
        self._entries: dict[str, TensorEntry] = {}
        self._file_of: dict[str, Path] = {}
        headers = {file: read_header(file) for file in files}
        for name, file in (index or {}).items():
            if name not in headers[file]:
                raise ModelError(str(file), f"does not hold tensor {name!r}, which the index places there")
            self._file_of[name] = file
        for file, entries in headers.items():
            for name in entries:
                self._file_of.setdefault(name, file)
        for name, file in self._file_of.items():
            self._entries[name] = headers[file][name]
        self._handles = {file: _open_handle(file) for file in files}

    @property
    def files(self) -> list[Path]:
        return list(self._handles)

    def names(self) -> list[str]:
        return list(self._entries)

    def has(self, name: str) -> bool:
        return name in self._entries

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entry(name).shape

    def get(self, name: str) -> torch.Tensor:
        """The tensor as stored (its own dtype), on the CPU. It may share the file's memory: do not write to it."""
        self._entry(name)
        file = self._file_of[name]
        try:
            tensor: torch.Tensor = self._handles[file].get_tensor(name)
        except Exception as error:  # the library raises several types, some of them its own
            raise ModelError(str(file), f"tensor {name!r} cannot be read: {error}") from error
        return tensor

    def _entry(self, name: str) -> TensorEntry:
        entry = self._entries.get(name)
        if entry is None:
            raise missing_tensor(self.files, name)
        return entry


class PickleWeights:
    """Tensors of PyTorch checkpoint files, mapped into memory. Loaded as weights only: no code of theirs is run."""

    def __init__(self, files: list[Path], index: Mapping[str, Path] | None = None) -> None:
        self._files = files
        self._tensors: dict[str, torch.Tensor] = {}
        for file in files:
            self._tensors |= _load_pickle(file)
        for name, file in (index or {}).items():
            if name not in self._tensors:
                raise ModelError(str(file), f"does not hold tensor {name!r}, which the index places there")

    @property
    def files(self) -> list[Path]:
        return list(self._files)

    def names(self) -> list[str]:
        return list(self._tensors)

    def has(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.get(name).shape)

    def get(self, name: str) -> torch.Tensor:
        """The tensor as stored. It may share the file's memory: do not write to it."""
        if name not in self._tensors:
            raise missing_tensor(self._files, name)
        return self._tensors[name]


def missing_tensor(files: list[Path], name: str) -> ModelError:
    """The error for a tensor that no file of an artifact holds."""
    where = str(files[0] if len(files) == 1 else files[0].parent)
    return ModelError(where, f"does not hold tensor {name!r}")


def _open_handle(path: Path) -> Any:
    from safetensors import safe_open

    try:
        return safe_open(str(path), framework="pt", device="cpu")
    except Exception as error:  # the library raises several types, some of them its own
        raise ModelError(str(path), f"cannot be opened as safetensors: {error}") from error


def _load_pickle(path: Path) -> dict[str, torch.Tensor]:
    import torch

    if not path.is_file():
        raise ModelError(str(path), "weight file not found; download the model again")
    if path.stat().st_size == 0:
        raise ModelError(str(path), "is empty (0 bytes); download the file again")
    with path.open("rb") as file:
        zipped = file.read(4) == b"PK\x03\x04"
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except Exception as error:  # damaged archives surface as many types
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(str(path), f"is damaged or not a plain tensor checkpoint: {reason}") from error
    if not isinstance(content, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in content.values()):
        raise ModelError(str(path), "must hold tensors by name; convert it to safetensors")
    return dict(content)


def open_weights(directory: Path) -> SafetensorsWeights | PickleWeights:
    """The weights of a model directory: safetensors if there are any, else PyTorch checkpoints (weights only).

    Raises :class:`ModelError` if there are none, if a shard is missing or if a file is damaged.
    """
    if (directory / SINGLE_FILE).is_file():
        return SafetensorsWeights([directory / SINGLE_FILE])
    if (directory / INDEX_FILE).is_file():
        index = read_index(directory / INDEX_FILE)
        return SafetensorsWeights(sorted(set(index.values())), index)
    others = sorted(directory.glob("*.safetensors"))
    if len(others) == 1 and "-of-" not in others[0].name:
        return SafetensorsWeights(others)
    if others:
        raise ModelError(str(directory / INDEX_FILE), f"not found, but {others[0].name} needs it to be read as a shard")
    if (directory / PICKLE_FILE).is_file():
        return PickleWeights([directory / PICKLE_FILE])
    if (directory / PICKLE_INDEX).is_file():
        index = read_index(directory / PICKLE_INDEX)
        return PickleWeights(sorted(set(index.values())), index)
    raise ModelError(str(directory), f"holds no weights: expected {SINGLE_FILE}, {INDEX_FILE} or a .gguf file")
