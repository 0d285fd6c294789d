"""What this machine can run and how a model would fit, without loading more of it than two layers. Answers ``doctor``.

Everything returned is plain JSON; sizes are bytes.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

import torch

from ..core.config import EngineConfig
from ..draft.base import DraftProvider, TargetView
from ..draft.registry import default_registry, resolve_method
from ..kernels.backend import TORCH_DTYPES, product_support, resolve_dtype
from ..models.artifact import ModelArtifact, open_artifact
from ..models.binding import TargetBinding, kv_groups, load_target
from ..models.config import DecoderConfig, decoder_config
from ..models.tokenizer import load_tokenizer
from .build import Drafting, _device_round, choose_drafter, resolve_device
from .calibration import versions
from .cost_cache import CostCache, CostKey
from .machine import cpu_features, cpu_name, device_name
from .memory import Limits, MemoryPlan, ModelFacts, available_bytes, plan_memory, resident_bytes

if TYPE_CHECKING:
    from ..models.progress import Progress
    from ..models.weights import WeightSource

_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "numpy")
_EXTRAS = {"server": "fastapi", "grammar": "llguidance", "gguf": "gguf", "plot": "matplotlib", "ray": "ray"}


def inspect_machine(config: EngineConfig) -> dict[str, Any]:
    """Device, CPU features, threads, library versions, products that work here, number format, drafter kinds."""
    device = resolve_device(config.model.device)
    dtype, reason = resolve_dtype(config.model.dtype, device)
    support = product_support()
    registry = default_registry()
    with _threads(config.runtime.num_threads):
        threads = torch.get_num_threads()
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "libraries": {name: _version(name) for name in _LIBRARIES},
        "extras": {extra: _version(package) is not None for extra, package in _EXTRAS.items()},
        "device": device,
        "gpus": [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())],
        "cpu": cpu_name(),
        "cpu_features": cpu_features(),
        "cores": os.cpu_count(),
        "threads": threads,
        "memory_available": available_bytes(),
        "dtype": dtype,
        "dtype_reason": reason,
        "packed_products": sorted(support.packed),
        "int8_product": support.int8,
        "products_missing": support.reasons,
        "drafters": list(registry.kinds()),
        "drafter_auto": resolve_method("auto", registry).method,
    }


def inspect_model(config: EngineConfig, progress: Progress | None = None) -> dict[str, Any]:
    """How the model that ``config`` names would run: architecture, exactness, drafter, limits, memory plan, and what
    rounds cost if that was measured before (``costs``, else ``None``).

    Downloads it if need be, then reads two of its layers. Raises what building an engine would raise.
    """
    look = look_at(config, progress)
    artifact, decoder, sample = look.artifact, look.decoder, look.sample
    known = CostCache().load(look.cost_key())
    companion = default_registry().companion(artifact.path) if artifact.path.is_dir() else None
    return {
        "model": config.model.model,
        "identity": artifact.identity,
        "path": str(artifact.path),
        "family": decoder.family,
        "layers": decoder.num_layers,
        "vocab_size": decoder.vocab_size,
        "dtype": sample.dtype,
        "exactness": sample.exactness,
        "drafter": look.drafting.provider.id,
        "drafter_reason": look.drafting.reason,
        "drafter_beside_the_model": None if companion is None else companion[0],
        "spec_tokens": look.drafting.depth,
        "max_model_len": sample.max_model_len,
        "max_num_seqs": look.limits.rows,
        "max_num_batched_tokens": look.limits.chunk,
        "memory": look.plan.as_dict(),
        "costs": None if known is None else known.costs.to_json(),
    }


@dataclass(frozen=True)
class ModelLook:
    """What is known of a model without loading it: ``sample`` is its first layer, ``weight_bytes`` of all of it. The
    drafter is closed."""

    artifact: ModelArtifact
    decoder: DecoderConfig
    sample: TargetBinding
    weight_bytes: int
    drafting: Drafting
    limits: Limits
    plan: MemoryPlan
    threads: int
    device_round: bool

    def cost_key(self) -> CostKey:
        """Under which an engine keeps what it measures."""
        return CostKey(
            model=self.artifact.identity,
            weight_bytes=self.weight_bytes,
            dtype=self.sample.dtype,
            device=device_name(self.sample.device),
            threads=self.threads,
            drafter=self.drafting.provider.id,
            drafter_bytes=self.drafting.provider.weight_bytes,
            depth=self.drafting.depth,
            rows=self.limits.rows,
            max_model_len=self.sample.max_model_len,
            device_round=self.device_round,
            versions=versions(),
        )


def look_at(config: EngineConfig, progress: Progress | None = None) -> ModelLook:
    """Open the model and its drafter, load two layers, plan."""
    model = config.model
    device = resolve_device(model.device)
    with _threads(config.runtime.num_threads):
        artifact = open_artifact(model.model, model.revision, model.download_timeout, progress)
        decoder = decoder_config(artifact.config, artifact.identity)
        sample = _load_layers(artifact, config, device, 1)
        weights = _weight_bytes(artifact, config, device, sample, decoder.num_layers)
        view = _target_view(config, decoder, sample, artifact, device)
        drafting = choose_drafter(config, view, None, progress)
        threads = torch.get_num_threads()
    facts = _facts(decoder, sample, weights, (drafting.provider, view))
    drafting.provider.close()
    limits = Limits.of(config, device)
    plan = plan_memory(facts, config, limits, drafting.depth, resident_bytes(device))
    on_device = _device_round(config, sample)
    return ModelLook(artifact, decoder, sample, weights, drafting, limits, plan, threads, on_device)


@dataclass(frozen=True)
class _Shallow:
    """An artifact cut to its first layers: what loading needs of it."""

    identity: str
    config: Mapping[str, Any]
    weights: _FirstLayers


class _FirstLayers:
    """The tensors of a checkpoint except those of layers from ``count`` on."""

    def __init__(self, source: WeightSource, count: int) -> None:
        self._source = source
        self._count = count

    def names(self) -> list[str]:
        return [name for name in self._source.names() if self._keeps(name)]

    def has(self, name: str) -> bool:
        return self._keeps(name) and self._source.has(name)

    def get(self, name: str) -> torch.Tensor:
        return self._source.get(name)

    def _keeps(self, name: str) -> bool:
        _, found, rest = name.rpartition("layers.")
        return not found or int(rest.split(".")[0]) < self._count


def _load_layers(artifact: ModelArtifact, config: EngineConfig, device: str, count: int) -> TargetBinding:
    """The model as if it had ``count`` layers: same shapes, hence same promises and bytes per layer."""
    cut = {**artifact.config, "num_hidden_layers": count}
    shallow = _Shallow(artifact.identity, cut, _FirstLayers(artifact.weights, count))
    return load_target(shallow, config.model.dtype, device, config.model.max_model_len)


def _weight_bytes(
    artifact: ModelArtifact, config: EngineConfig, device: str, one: TargetBinding, num_layers: int
) -> int:
    if num_layers == 1:
        return one.weight_bytes
    per_layer = _load_layers(artifact, config, device, 2).weight_bytes - one.weight_bytes
    return one.weight_bytes + (num_layers - 1) * per_layer


def _facts(
    decoder: DecoderConfig, sample: TargetBinding, weight_bytes: int, drafting: tuple[DraftProvider, TargetView]
) -> ModelFacts:
    provider, view = drafting
    return ModelFacts(
        weight_bytes=weight_bytes + provider.weight_bytes,
        kv_groups=(*kv_groups(decoder), *provider.kv_groups(view)),
        kv_dtype_size=TORCH_DTYPES[sample.dtype].itemsize,
        hidden_size=decoder.hidden_size,
        intermediate_size=decoder.intermediate_size,
        vocab_size=decoder.vocab_size,
        max_model_len=sample.max_model_len,
    )


def _target_view(
    config: EngineConfig, decoder: DecoderConfig, sample: TargetBinding, artifact: ModelArtifact, device: str
) -> TargetView:
    tokenizer = None
    if config.spec.model is not None and not config.model.skip_tokenizer_init:  # a drafter's is compared with it
        tokenizer = load_tokenizer(artifact, config.model.tokenizer, config.model.trust_remote_code)
    return TargetView(
        vocab_size=decoder.vocab_size,
        hidden_size=decoder.hidden_size,
        num_layers=decoder.num_layers,
        max_model_len=sample.max_model_len,
        eos_ids=artifact.eos_ids(),
        device=device,
        dtype=sample.dtype,
        tokenizer=tokenizer,
    )


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Run with ``count`` threads: promises are probed for the number in use."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
