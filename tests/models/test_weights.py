"""Safetensors and checkpoint files: what is read back, and that damage is named before any tensor is read."""

from __future__ import annotations

import json
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from paceline.core.errors import ModelError
from paceline.models.weights import INDEX_FILE, SINGLE_FILE, TensorEntry, _check_layout, open_weights, read_header

TENSORS = {
    "model.embed_tokens.weight": torch.arange(12, dtype=torch.float32).reshape(4, 3),
    "model.norm.weight": torch.ones(3, dtype=torch.bfloat16),
    "scale": torch.tensor(2.5, dtype=torch.float16),
}


def write_raw(path: Path, header: dict[str, Any] | bytes, data: bytes, length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)
    return path


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.fixture
def single(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / SINGLE_FILE)
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Two shards: the embedding in the first, the rest in the second."""
    names = list(TENSORS)
    files = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    save_file({names[0]: TENSORS[names[0]]}, tmp_path / files[0])
    save_file({name: TENSORS[name] for name in names[1:]}, tmp_path / files[1])
    index = {"metadata": {}, "weight_map": {name: files[min(i, 1)] for i, name in enumerate(names)}}
    (tmp_path / INDEX_FILE).write_text(json.dumps(index))
    return tmp_path


@pytest.mark.parametrize("layout", ["single", "sharded"])
def test_every_tensor_comes_back_as_stored(layout: str, request: pytest.FixtureRequest) -> None:
    weights = open_weights(request.getfixturevalue(layout))
    assert sorted(weights.names()) == sorted(TENSORS)
    for name, expected in TENSORS.items():
        assert weights.has(name)
        assert weights.shape(name) == tuple(expected.shape)
        assert weights.get(name).dtype == expected.dtype
        assert torch.equal(weights.get(name), expected)


def test_an_absent_tensor_is_named(single: Path) -> None:
    weights = open_weights(single)
    assert not weights.has("lm_head.weight")
    for read in (weights.get, weights.shape):
        with pytest.raises(ModelError, match=r"model\.safetensors.*'lm_head\.weight'"):
            read("lm_head.weight")


def cut(count: Callable[[int], int]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        raw = path.read_bytes()
        path.write_bytes(raw[: len(raw) - count(len(raw))])

    return damage


def last_tensor_bytes(path: Path) -> tuple[str, int]:
    name, last = max(read_header(path).items(), key=lambda item: item[1].end)
    return name, last.end - last.begin


def test_cutting_the_end_names_the_tensor_that_lost_bytes(single: Path) -> None:
    path = single / SINGLE_FILE
    whole = path.read_bytes()
    name, size = last_tensor_bytes(path)
    for lost in (1, size):
        path.write_bytes(whole[:-lost])
        with pytest.raises(ModelError, match=rf"{SINGLE_FILE}.*{name}"):
            open_weights(single)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(cut(lambda size: size // 2), id="half"),
        pytest.param(cut(lambda size: size), id="empty"),
        pytest.param(cut(lambda size: size - 7), id="seven bytes left"),
        pytest.param(lambda path: path.write_bytes(random.Random(0).randbytes(64)), id="random bytes"),
        pytest.param(lambda path: path.write_bytes(bytes(64)), id="zeros"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes() + b"\0"), id="one byte more"),
    ],
)
def test_damaged_files_are_refused_by_name(single: Path, damage: Callable[[Path], None]) -> None:
    damage(single / SINGLE_FILE)
    with pytest.raises(ModelError, match=SINGLE_FILE):
        open_weights(single)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, "'b' overlaps tensor 'a'"),
        ({"a": entry([1], 0, 4), "b": entry([2], 4, 99)}, "'b' ends at byte 99"),
        ({"a": entry([1], 4, 8)}, "4 stray bytes before tensor 'a'"),
        ({"a": entry([1], 0, 4)}, "8 stray bytes after tensor 'a'"),
        ({"a": entry([5], 0, 12)}, r"'a' of shape \[5\]"),
        ({"a": entry([3], 12, 0)}, "'a'"),
        ({"a": entry([-3], 0, 12)}, "'a' has a malformed"),
        ({"a": {"dtype": "F32", "shape": [3]}}, "'a' has no dtype"),
        ({"a": 7}, "'a' has no dtype"),
        (b'{"a": {"dtype":"F32","shape":[3],"data_offsets":[0,12]}, "a": {}}', "names 'a' twice"),
        (b"[]", "not a JSON object"),
        (b"{nonsense}", "not JSON"),
        (b"\xff\xfe", "not JSON"),
    ],
)
def test_false_headers_are_refused_with_the_tensor(tmp_path: Path, header: Any, message: str) -> None:
    path = write_raw(tmp_path / SINGLE_FILE, header, bytes(12))
    with pytest.raises(ModelError, match=rf"{SINGLE_FILE}.*{message}"):
        open_weights(tmp_path)
    assert path.exists()


@pytest.mark.parametrize("length", [1 << 20, 1 << 62, (1 << 64) - 1])
def test_a_header_longer_than_the_file_is_refused(tmp_path: Path, length: int) -> None:
    write_raw(tmp_path / SINGLE_FILE, {"a": entry([3], 0, 12)}, bytes(12), length)
    with pytest.raises(ModelError, match=f"{SINGLE_FILE}.*header of {length} bytes"):
        open_weights(tmp_path)


def test_a_git_lfs_pointer_is_called_one(tmp_path: Path) -> None:
    (tmp_path / SINGLE_FILE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 12\n")
    with pytest.raises(ModelError, match="git lfs pull"):
        open_weights(tmp_path)


def test_sound_unusual_files_are_read(tmp_path: Path) -> None:
    """Order of the header, empty tensors, scalars, padding, small and 8-bit kinds say nothing about damage."""
    header = {
        "late": entry([2], 8, 16),
        "__metadata__": {"format": "pt"},
        "experts.255.w": entry([2, 4], 0, 8, "F8_E4M3"),
        "none": entry([0, 7], 8, 8),
        "scalar": entry([], 16, 18, "BF16"),
        "flags": entry([3], 18, 21, "BOOL"),
    }
    write_raw(tmp_path / SINGLE_FILE, json.dumps(header).encode() + b"   ", bytes(21))
    weights = open_weights(tmp_path)
    shapes = {name: weights.shape(name) for name in weights.names()}
    assert shapes == {"late": (2,), "experts.255.w": (2, 4), "none": (0, 7), "scalar": (), "flags": (3,)}
    assert all(tuple(weights.get(name).shape) == shape for name, shape in shapes.items())


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00002\.safetensors: shard not found.*'scale'"):
        open_weights(sharded)


def test_an_index_that_names_an_absent_tensor_is_refused(sharded: Path) -> None:
    index = json.loads((sharded / INDEX_FILE).read_text())
    index["weight_map"]["lm_head.weight"] = "model-00001-of-00002.safetensors"
    (sharded / INDEX_FILE).write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"model-00001-of-00002\.safetensors.*'lm_head\.weight'"):
        open_weights(sharded)


def test_tensors_beyond_the_index_stay_visible(sharded: Path) -> None:
    index = json.loads((sharded / INDEX_FILE).read_text())
    del index["weight_map"]["scale"]
    (sharded / INDEX_FILE).write_text(json.dumps(index))
    assert open_weights(sharded).has("scale")


@pytest.mark.parametrize("file", ["../other.safetensors", "/etc/passwd", "", 7])
def test_an_index_cannot_point_outside_its_directory(sharded: Path, file: Any) -> None:
    (sharded / INDEX_FILE).write_text(json.dumps({"weight_map": {"a": file}}))
    with pytest.raises(ModelError, match=f"{INDEX_FILE}.*'a'"):
        open_weights(sharded)


def test_shards_without_an_index_are_refused(sharded: Path) -> None:
    (sharded / INDEX_FILE).unlink()
    with pytest.raises(ModelError, match=INDEX_FILE):
        open_weights(sharded)


def test_a_directory_without_weights_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"no weights: expected {SINGLE_FILE}"):
        open_weights(tmp_path)


class Planted:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("planted"),))


def test_checkpoints_are_read_as_weights_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(TENSORS, tmp_path / "pytorch_model.bin")
    weights = open_weights(tmp_path)
    assert all(torch.equal(weights.get(name), tensor) for name, tensor in TENSORS.items())
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Planted()}, protocol=2))
    with pytest.raises(ModelError, match=r"pytorch_model\.bin"):
        open_weights(tmp_path)
    assert not (tmp_path / "planted").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04rubbish", random.Random(1).randbytes(64)])
def test_damaged_checkpoints_are_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(ModelError, match=r"pytorch_model\.bin"):
        open_weights(tmp_path)


def test_sharded_checkpoints_follow_their_index(tmp_path: Path) -> None:
    torch.save({"a": TENSORS["scale"]}, tmp_path / "one.bin")
    index = {"weight_map": {"a": "one.bin"}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert open_weights(tmp_path).names() == ["a"]
    index["weight_map"]["b"] = "one.bin"
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"one\.bin.*'b'"):
        open_weights(tmp_path)


SIZES = st.lists(st.integers(0, 5), min_size=1, max_size=6)
Check = Callable[[Path, dict[str, TensorEntry], int], None]


def laid_out(sizes: list[int]) -> tuple[dict[str, TensorEntry], int]:
    entries, position = {}, 0
    for number, size in enumerate(sizes):
        entries[f"t{number}"] = TensorEntry("F32", (size,), position, position + 4 * size)
        position += 4 * size
    return entries, position


def moved_tensor_is_found(check: Check, sizes: list[int], which: int, shift: int) -> None:
    """Sound layouts pass; the same with one non-empty tensor moved does not."""
    entries, available = laid_out(sizes)
    check(Path("x"), entries, available)
    name = f"t{which % len(sizes)}"
    victim = entries[name]
    if victim.begin == victim.end or victim.begin + shift < 0:
        return
    entries[name] = TensorEntry(victim.dtype, victim.shape, victim.begin + shift, victim.end + shift)
    with pytest.raises(ModelError):
        check(Path("x"), entries, available)


@given(SIZES, st.integers(0, 5), st.integers(-6, 6).filter(bool))
def test_a_moved_tensor_never_passes(sizes: list[int], which: int, shift: int) -> None:
    moved_tensor_is_found(_check_layout, sizes, which, shift)


def test_the_property_catches_a_check_of_the_end_alone() -> None:
    def only_the_end(path: Path, entries: dict[str, TensorEntry], available: int) -> None:
        if any(item.end > available for item in entries.values()):
            raise ModelError(str(path), "past the end")

    with pytest.raises(pytest.fail.Exception):
        moved_tensor_is_found(only_the_end, [2, 2], 1, -1)
