"""The machine by name: what its processor or accelerator is called and can do. Measures nothing."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

#: CPU features that decide how fast products are, by their names in /proc/cpuinfo.
FEATURES = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "bf16",
    "i8mm",
)


def cpu_name() -> str:
    return _fields().get("model name") or platform.processor() or platform.machine()


def cpu_features() -> list[str]:
    """Those of :data:`FEATURES` that this CPU has."""
    fields = _fields()
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    return [name for name in FEATURES if name in flags]


def device_name(device: torch.device) -> str:
    """What the chip behind a torch device is called."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{cpu_name()} ({device.type})" if device.type != "cpu" else cpu_name()


def _fields() -> dict[str, str]:
    """The first processor's entry in /proc/cpuinfo, empty where there is none."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            entry = file.read().split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in entry.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}
