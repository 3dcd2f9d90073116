"""The style of images or feature maps: mean and standard deviation of each channel.

Maps are (B, C, H, W); a style is a pair (mean, std) of shape (B, C, 1, 1), or anything that
broadcasts to it. MixStyle, DSU and StableFDG all take the unbiased variance and
std = sqrt(variance + 1e-6); AdaIN's code, which CCST uses, has 1e-5.
"""

from __future__ import annotations

import torch

from methods.ops.centred import centred_moments, unbiased

Style = tuple[torch.Tensor, torch.Tensor]
EPSILON = 1e-6


def style_of(maps: torch.Tensor, epsilon: float = EPSILON) -> Style:
    """Mean and std of each channel of each sample; a map of one pixel has variance 0."""
    pixels = maps.shape[2] * maps.shape[3]
    mean = maps.mean((2, 3), keepdim=True)
    # Two vectorised passes; on the CPU `torch.var_mean` takes some ten times longer.
    squares = (maps - mean).square().sum((2, 3), keepdim=True)
    return mean, (squares / max(1, pixels - 1) + epsilon).sqrt()


def centred_style(maps: torch.Tensor) -> tuple[torch.Tensor, Style]:
    """Maps without their means, and their style as a pair of (B, C); for losses that let gradients
    go through styles, about twice as fast as `style_of` there."""
    centred, mean, variance = centred_moments(maps)
    return centred, (mean, (unbiased(variance, maps) + EPSILON).sqrt())


def spread(values: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """Std across the samples of a batch (B ≥ 2), kept as an axis of 1: how far styles vary."""
    squares = (values - values.mean(dim, keepdim=True)).square().sum(dim, keepdim=True)
    return (squares / (values.shape[dim] - 1) + EPSILON).sqrt()


def blend(one: Style, other: Style, share: torch.Tensor | float) -> Style:
    """share · one + (1 − share) · other."""
    mean, std = (share * a + (1 - share) * b for a, b in zip(one, other, strict=True))
    return mean, std


def recolour(maps: torch.Tensor, own: Style, new: Style) -> torch.Tensor:
    """Adaptive instance normalisation: new_std · (maps − own_mean) / own_std + new_mean."""
    scale = new[1] / own[1]
    return torch.addcmul(new[0] - own[0] * scale, maps, scale)


def mix_styles(maps: torch.Tensor, order: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Each sample takes `share` of its own style and the rest from its partner in `order`.

    Styles are constants: the gradient of a pixel is new_std / own_std, as in MixStyle's code.
    """
    own = style_of(maps.detach())
    partner = own[0][order], own[1][order]
    return recolour(maps, own, blend(own, partner, share))
