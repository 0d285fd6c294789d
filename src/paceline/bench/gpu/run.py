"""Runs the parts one after the other; a part that fails costs its own figures only. Returns one plain document."""

from __future__ import annotations

import platform
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch

from ... import __version__
from . import parts
from .rig import Rig
from .settings import GpuSettings
from .timing import on_cuda

#: Hears of the document after every part: what was measured is never lost.
Listener = Callable[[dict[str, Any], str], None]

_MEASURES: dict[str, Callable[[Rig], dict[str, Any]]] = {
    "bandwidth": parts.bandwidth,
    "forward": parts.forward,
    "plain": parts.plain,
    "table": parts.table,
    "draft": parts.draft,
    "grid": parts.grid,
    "idle": parts.idle,
    "null": parts.null,
    "peers": parts.peers,
}


def measure_gpu(settings: GpuSettings, listen: Listener | None = None) -> dict[str, Any]:
    """Measure the parts asked for. Raises only what cannot be measured around: settings, and loading the model."""
    settings.check()
    begin = time.perf_counter()
    rig = Rig(settings)
    document: dict[str, Any] = {
        "bench": "decode-gpu",
        "version": __version__,
        "machine": machine_facts(settings.device),
        "settings": settings.document(),
        "model": _model_facts(rig) | {"load_seconds": time.perf_counter() - begin},
        "parts": {},
    }
    for name in settings.parts:
        if time.perf_counter() - begin > settings.budget:
            document["parts"][name] = {"failure": f"not started: {settings.budget:.0f} seconds were over"}
        else:
            document["parts"][name] = _run(name, rig)
        document["seconds"] = time.perf_counter() - begin
        if listen is not None:
            listen(document, name)
    rig.close()
    return document


def _run(name: str, rig: Rig) -> dict[str, Any]:
    begin = time.perf_counter()
    try:
        found = _MEASURES[name](rig)
    except Exception as error:
        trail = traceback.format_exc(limit=-6)
        found = {"failure": f"{type(error).__name__}: {error}", "trace": trail}
    if on_cuda(rig.settings.device):
        with suppress(RuntimeError):  # a device that failed for good says so in every part
            torch.cuda.empty_cache()
    return found | {"seconds": time.perf_counter() - begin}


def _model_facts(rig: Rig) -> dict[str, Any]:
    target = rig.target
    return {
        "shape": rig.settings.shape,
        "dtype": target.dtype,
        "exactness": target.exactness,
        "weight_bytes": target.weight_bytes,
        "step_bytes": rig.step.weights,
        "kv_bytes_per_token": rig.step.kv_token,
        "layers": target.num_layers,
    }


def machine_facts(device: str) -> dict[str, Any]:
    """What was measured on: device, memory, library versions."""
    facts: dict[str, Any] = {"torch": torch.__version__, "python": platform.python_version(), "device": device}
    for library in _libraries():
        facts[library.__name__] = getattr(library, "__version__", "")
    if on_cuda(device):
        found = torch.cuda.get_device_properties(device)
        facts |= {"gpu": found.name, "memory": found.total_memory, "processors": found.multi_processor_count}
        facts["cuda"] = torch.version.cuda
    return facts


def _libraries() -> Iterator[Any]:
    with suppress(ImportError):
        import triton

        yield triton
