"""A layer that is the identity forwards and turns the gradient round backwards."""

from __future__ import annotations

import torch


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor, strength: float) -> torch.Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return -ctx.strength * gradient, None


def reverse_gradient(x: torch.Tensor, strength: float) -> torch.Tensor:
    """`x` itself; what flows back is −strength times what comes in."""
    return _Reversal.apply(x, strength)
