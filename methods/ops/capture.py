"""What a part of a network gives back while another method's loss runs it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn


@contextlib.contextmanager
def captured(part: nn.Module) -> Iterator[list[torch.Tensor]]:
    """A list that gets every output of `part` in the context, in order, with its gradient.

    With it a loss can use logits or features of the pass that `super().loss` makes, instead of
    making a second pass or silencing the methods to its right.
    """
    outputs: list[torch.Tensor] = []
    handle = part.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    try:
        yield outputs
    finally:
        handle.remove()
