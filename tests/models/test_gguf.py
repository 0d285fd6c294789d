"""The GGUF container: values and tensors read back, damage named before any tensor is read."""

from __future__ import annotations

import random
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tests.models.gguf_files import F32, GGUFLayout, Stored, floats

from paceline.core.errors import ModelError
from paceline.models.gguf import GGUFFile

FIRST, SECOND = np.arange(12, dtype=np.float32).reshape(3, 4), np.ones(5, dtype=np.float32)


def layout() -> GGUFLayout:
    return GGUFLayout({"general.name": "tiny"}, {"first": floats(FIRST), "second": floats(SECOND)})


def test_metadata_and_tensors_come_back(tmp_path: Path) -> None:
    metadata = {"text": "é", "yes": True, "count": 7, "ratio": 0.5, "list": ["a", "b"], "ids": [1, 2], "none": []}
    written = layout()
    written.metadata |= metadata
    file = GGUFFile(written.write(tmp_path / "m.gguf"))
    assert file.metadata == {"general.name": "tiny"} | metadata
    assert torch.equal(file.read("first"), torch.from_numpy(FIRST))
    assert torch.equal(file.read("second"), torch.from_numpy(SECOND))


def test_files_of_the_reference_writer_are_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_array("tokenizer.ggml.scores", [0.5, -1.0])
    rows = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    writer.add_tensor("half", rows.astype(np.float16))
    kind = gguf.GGMLQuantizationType.Q8_0
    packed = gguf.quants.quantize(rows, kind)
    writer.add_tensor("packed", packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile(path)
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["tokenizer.ggml.scores"] == [0.5, -1.0]
    assert torch.equal(file.read("half"), torch.from_numpy(rows.astype(np.float16)))
    assert np.array_equal(file.read("packed").numpy(), gguf.quants.dequantize(packed, kind))


@pytest.mark.parametrize(("lost", "tensor"), [(1, ""), (13, "second"), (32, "second"), (49, "first")])
def test_cutting_the_end_names_the_tensor_that_lost_bytes(tmp_path: Path, lost: int, tensor: str) -> None:
    """The last tensor has 20 bytes and 12 of padding, which may be missing without harm."""
    path = tmp_path / "m.gguf"
    path.write_bytes(layout().encode()[:-lost])
    if tensor:
        with pytest.raises(ModelError, match=rf"m\.gguf.*'{tensor}'"):
            GGUFFile(path)
    else:
        assert torch.equal(GGUFFile(path).read("second"), torch.from_numpy(SECOND))


def test_no_cut_of_the_header_is_taken_for_a_file(tmp_path: Path) -> None:
    path, whole = tmp_path / "m.gguf", layout().encode()
    header = len(whole) - 64 - 32
    for size in range(header):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"m\.gguf"):
            GGUFFile(path)


@pytest.mark.parametrize(
    "content",
    [b"", random.Random(0).randbytes(64), bytes(64), b"GGUF" + random.Random(1).randbytes(60)],
    ids=["empty", "random", "zeros", "random after the magic"],
)
def test_rubbish_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ModelError, match=r"m\.gguf"):
        GGUFFile(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (Stored((4,), F32, bytes(16), offset=1 << 40), "'bad' ends at byte"),
        (Stored((4,), F32, bytes(16), offset=4), "overlaps"),
        (Stored((1 << 40, 1 << 20), F32, bytes(16)), "'bad' ends at byte"),
        (Stored((4,), 16, bytes(16)), "'bad' is stored as IQ2_XXS"),
        (Stored((4,), 4242, bytes(16)), "'bad' is stored as number 4242"),
        (Stored((33,), 8, bytes(68)), "'bad' are no whole number of Q8_0 blocks"),
        (Stored((1, 1, 1, 1, 1), F32, bytes(4)), "'bad' has 5 dimensions"),
    ],
)
def test_false_tensor_entries_are_refused_with_the_tensor(tmp_path: Path, tensor: Stored, message: str) -> None:
    damaged = layout()
    damaged.tensors["bad"] = tensor
    with pytest.raises(ModelError, match=rf"m\.gguf.*{message}"):
        GGUFFile(damaged.write(tmp_path / "m.gguf"))


@pytest.mark.parametrize("counts", [(1 << 60, 1), (2, 1 << 60), (3, 1)])
def test_false_counts_are_refused(tmp_path: Path, counts: tuple[int, int]) -> None:
    damaged = layout()
    damaged.counts = counts
    with pytest.raises(ModelError, match=r"m\.gguf"):
        GGUFFile(damaged.write(tmp_path / "m.gguf"))


@pytest.mark.parametrize(("version", "message"), [(1, "0x1"), (9, "0x9"), (0x03000000, "big-endian")])
def test_other_versions_are_refused(tmp_path: Path, version: int, message: str) -> None:
    other = layout()
    other.version = version
    with pytest.raises(ModelError, match=message):
        GGUFFile(other.write(tmp_path / "m.gguf"))


def test_sound_unusual_files_are_read(tmp_path: Path) -> None:
    """Another alignment, tensors listed out of order, empty tensors and trailing bytes are no damage."""
    one, two = np.array([1.0, 2.0], dtype=np.float32), np.array([3.0, 4.0], dtype=np.float32)
    unusual = GGUFLayout({"general.alignment": 8}, {"two": floats(one), "one": floats(two)})
    unusual.tensors["two"].offset, unusual.tensors["one"].offset = 8, 0
    unusual.tensors["empty"] = Stored((0, 4), F32, b"", offset=4)
    path = tmp_path / "m.gguf"
    path.write_bytes(unusual.encode() + bytes(200))
    file = GGUFFile(path)
    assert file.read("one").tolist() == one.tolist()
    assert file.read("two").tolist() == two.tolist()
    assert tuple(file.read("empty").shape) == (0, 4)
