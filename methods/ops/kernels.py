"""Distances between batches of features, measured with Gaussian kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def kernel_distance(
    one: torch.Tensor, other: torch.Tensor, widths: Sequence[float]
) -> torch.Tensor:
    """Squared maximum mean discrepancy of (…, B, D) and (…, B, D): shape (…).

    The kernel is Σ_u exp(−‖a − b‖²/(2 w_u m)), m the mean squared distance within both batches
    together, a constant for the gradient. All pairs count, those of a sample with itself too
    (V-statistic), so it is never negative and exactly 0 for equal batches.
    """
    centre = torch.cat((one, other), -2).mean(-2, keepdim=True).detach()
    one, other = one - centre, other - centre  # near 0, where squares lose the fewest digits
    blocks = torch.stack((_squares(one, one), _squares(other, other), _squares(one, other)))
    mean = blocks.detach().mean((-2, -1))
    bandwidth = ((mean[0] + mean[1]) / 4 + mean[2] / 2).clamp_min(torch.finfo(one.dtype).tiny)
    exponents = blocks / (-2 * bandwidth[..., None, None])
    within_one, within_other, across = sum((exponents / width).exp() for width in widths).mean(
        (-2, -1)
    )
    return within_one + within_other - 2 * across


def _squares(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Squared distances (…, B, B) of all pairs."""
    lengths = one.square().sum(-1)[..., :, None] + other.square().sum(-1)[..., None, :]
    return (lengths - 2 * one @ other.mT).clamp_min(0)
