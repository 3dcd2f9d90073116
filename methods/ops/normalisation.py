"""Normalising with statistics other than the batch's: of each sample, of the federation, or mixed.

Spreads are mixed, not variances, and a spread is sqrt(var + eps) on both sides of a mix. So weight
0 is exactly batch normalisation in evaluation mode and weight 1 exactly instance normalisation.
Batch normalisation of vectors (BatchNorm1d) has no statistics of a sample; nothing here touches it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import nn

from benchmark.backbones.base import replace_norm
from benchmark.errors import UserError
from methods.ops.centred import centred_moments, joint_moments, rescaled

Layer = TypeVar("Layer", bound=nn.BatchNorm2d)


class Statistics(NamedTuple):
    """Means and spreads: (C,), the same for all samples, or (B, C)."""

    mean: torch.Tensor
    std: torch.Tensor

    @classmethod
    def of(cls, mean: torch.Tensor, variance: torch.Tensor, eps: float) -> Statistics:
        return cls(mean, (variance + eps).sqrt())


Mix = Callable[[Statistics, Statistics], torch.Tensor | float]
"""From a sample's own and the reference statistics to the weight of its own: a number, (C,) for
every sample the same, (B, 1) for every channel the same, or (B, C)."""


def pooled_moments(
    mean: torch.Tensor, variance: torch.Tensor, copies: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Moments over each group of `copies` consecutive samples, handed to each of its members."""
    means, variances = (part.unflatten(0, (-1, copies)) for part in (mean, variance))
    pooled = joint_moments(means, variances, dim=1)
    mean, variance = (part.expand_as(means).flatten(0, 1) for part in pooled)
    return mean, variance


def mixed_statistics(
    weight: torch.Tensor | float,
    local: Statistics,
    reference: Statistics,
    on_variance: bool = False,
) -> Statistics:
    """weight · local + (1 − weight) · reference, of means and of spreads (or their squares)."""
    mean = weight * local.mean + (1 - weight) * reference.mean
    if on_variance:
        square = weight * local.std.square() + (1 - weight) * reference.std.square()
        return Statistics(mean, square.sqrt())
    return Statistics(mean, weight * local.std + (1 - weight) * reference.std)


def normalise_with(
    centred: torch.Tensor,
    own_mean: torch.Tensor,
    mean: torch.Tensor,
    std: torch.Tensor,
    layer: nn.BatchNorm2d,
) -> torch.Tensor:
    """γ · (x − mean) / std + β of a layer, with statistics (C,) or (B, C), for maps x that come
    without their own means (B, C): folded into the bias, these would cost digits on nearly flat
    maps."""
    scale = layer.weight / std
    return rescaled(centred, scale, torch.addcmul(layer.bias, own_mean - mean, scale))


class MixedNorm2d(nn.BatchNorm2d):
    """Batch normalisation that, while `mix` is set, uses each sample's mixed statistics instead.

    Entries of the state are BatchNorm2d's. With `mix` set, running statistics are only read and
    no sample sees another one, in training mode too. Subclasses say what is mixed with what.
    """

    mix: Mix | None = None
    on_variance: bool = False
    """Mix variances instead of spreads."""
    copies: int = 1
    """So many consecutive samples are views of one and share their statistics."""

    def local(self, mean: torch.Tensor, variance: torch.Tensor) -> Statistics:
        """The statistics that weight 1 stands for, from the moments (B, C) of each sample."""
        if self.copies > 1:
            mean, variance = pooled_moments(mean, variance, self.copies)
        return Statistics.of(mean, variance, self.eps)

    def reference(self) -> Statistics:
        """The statistics that weight 0 stands for: constants."""
        return Statistics.of(self.running_mean, self.running_var, self.eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mix is None:
            return super().forward(x)
        centred, *own = centred_moments(x)
        local, reference = self.local(*own), self.reference()
        weight = self.mix(local, reference)
        mean, std = mixed_statistics(weight, local, reference, self.on_variance)
        # Weights outside of [0, 1] can make a spread vanish or negative; inside this does nothing.
        return normalise_with(centred, own[0], mean, std.clamp_min(self.eps**0.5), self)


class TrainedMix(nn.BatchNorm2d):
    """A layer that has learnt how to mix statistics, so another rule cannot take its place."""


def converted(kind: type[Layer], old: nn.BatchNorm2d) -> Layer:
    """A layer of another kind with the very parameters and running statistics of `old`."""
    new = kind(old.num_features, old.eps, old.momentum, old.affine, old.track_running_stats)
    for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
        setattr(new, name, getattr(old, name))
    return new


def replace_untrained(
    model: nn.Module,
    factory: Callable[[nn.BatchNorm2d], nn.Module],
    where: Callable[[str, nn.BatchNorm2d], bool] | None = None,
) -> list[str]:
    """`replace_norm`, unless that would throw away a mix that another method trains."""
    refuse_trained(model, where)
    return replace_norm(model, factory, where)


def refuse_trained(
    model: nn.Module, where: Callable[[str, nn.BatchNorm2d], bool] | None = None
) -> None:
    """Raise if layers that should be replaced have learnt a mix of their own."""
    for path, layer in model.named_modules():
        if isinstance(layer, TrainedMix) and (where is None or where(path, layer)):
            raise UserError(
                f"the network's {type(layer).__name__} layers already mix batch and instance "
                f"statistics; leave out one of the two methods"
            )
