"""The same random draws twice, for methods that pass one batch through the network again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


def random_state(device: torch.device) -> list[torch.Tensor]:
    """Where torch's global generators stand: the processor's and, on a GPU, the GPU's."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _set(states: list[torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)


@contextlib.contextmanager
def replayed(states: list[torch.Tensor], device: torch.device) -> Iterator[None]:
    """Draw as if the generators still stood at `states`; afterwards they go on from where they are
    now, so what follows is the same with or without the replay."""
    now = random_state(device)
    _set(states, device)
    try:
        yield
    finally:
        _set(now, device)
