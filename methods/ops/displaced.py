"""A loss at other weights than a network's own, with a gradient that reaches its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.func import functional_call


class _Call(nn.Module):
    """A function of no arguments, with a model it uses as its only part."""

    def __init__(self, model: nn.Module, function: Callable[[], torch.Tensor]):
        super().__init__()
        self.model = model
        self.function = function

    def forward(self) -> torch.Tensor:
        return self.function()


def at(
    model: nn.Module,
    parameters: Mapping[str, torch.Tensor],
    function: Callable[[], torch.Tensor],
) -> torch.Tensor:
    """`function()` while tensors stand in the place of some parameters of `model`.

    Whatever the function does with the model sees them, other methods' losses included, and the
    result is differentiable in them. Buffers are the model's own. (Loading the tensors into a copy
    of the model, as a public port of an episodic method does, cuts the gradient off.)
    """
    call = _Call(model, function)
    return functional_call(call, {f"model.{name}": value for name, value in parameters.items()}, ())
