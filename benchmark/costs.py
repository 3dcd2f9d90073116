"""What a run costs, measured in the run: bytes by direction and kind, time, parameters, memory."""

from __future__ import annotations

import resource
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


def bytes_of(payload: Any) -> int:
    """The size of a message on the wire: tensors by their elements, a number as eight bytes."""
    if isinstance(payload, torch.Tensor):
        return payload.numel() * payload.element_size()
    if isinstance(payload, Mapping):
        return sum(bytes_of(value) for value in payload.values())
    if isinstance(payload, list | tuple):
        return sum(bytes_of(value) for value in payload)
    if isinstance(payload, bool | int | float):
        return 8
    raise TypeError(f"a message may hold tensors and numbers, not {type(payload).__name__}")


class Traffic:
    """A ledger of everything that crosses the client boundary: bytes by direction and kind."""

    def __init__(self, counts: Mapping[str, int] | None = None):
        self.counts = Counter(counts or {})

    def record(self, direction: str, kind: str, payload: Any) -> None:
        self.counts[f"{direction}/{kind}"] += bytes_of(payload)


def peak_memory_mb(device: torch.device) -> float:
    """The most memory this process has held: of the GPU when the run is on one, else resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
