"""Host values on the device without waiting for it. Knows tensors only."""

from __future__ import annotations

import torch


def sent(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """``values`` on ``device``. Copies from pinned memory are queued; others would wait for the device."""
    if device.type == "cuda":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)
