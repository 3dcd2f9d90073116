"""Running a network only as far as one of its parts."""

from __future__ import annotations

import torch
from torch import nn

from benchmark.backbones.base import Backbone


class _Reached(Exception):
    """Ends a pass at the part that was waited for."""


def entering(model: Backbone, part: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """What `part` gets when `model` sees the images; nothing behind it is computed."""
    seen: list[torch.Tensor] = []

    def stop(_, inputs) -> None:
        seen.append(inputs[0])
        raise _Reached

    handle = part.register_forward_pre_hook(stop)
    try:
        model.maps(images)
    except _Reached:
        pass
    finally:
        handle.remove()
    return seen[0]
