"""SFA-S: Gaussian noise on the feature embedding.

    ẑ = a ⊙ z + b,      a ~ N(1, σ₁²),  b ~ N(0, σ₂²) for every number of z

Paper: Li et al., A Simple Feature Augmentation for Domain Generalization, ICCV 2021.
Leaves the client besides weights: nothing. Training only, on every sample, at the input of the
classifier; labels stay. There is no public code and the widths of the paper could not be checked:
σ₁ = σ₂ = 0.5 are defaults to be tuned. The row "SFA" of the FedFD-A paper does not say which of the
two variants it is; we take it to be this one.
"""

from __future__ import annotations

import torch
from torch import nn

from benchmark.hparams import LogUniform, hp
from benchmark.method import Method, register


class FeatureNoise(nn.Module):
    """Multiplicative and additive noise, in training; a width of 0 draws nothing."""

    def __init__(self, scale: float, shift: float):
        super().__init__()
        self.scale = scale
        self.shift = shift

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        noisy = features
        if self.training and self.scale > 0:
            noisy = noisy * (1 + self.scale * torch.randn_like(features))
        if self.training and self.shift > 0:
            noisy = noisy + self.shift * torch.randn_like(features)
        return noisy


@register(
    "sfa_s",
    label="SFA-S",
    paper="A Simple Feature Augmentation for Domain Generalization",
    venue="ICCV 2021",
    category="augmentation",
)
class SFAS(Method):
    """Noise of fixed width on the features."""

    sfa_scale: float = hp(0.5, LogUniform(0.05, 2), "std of the factor around 1", low=0)
    sfa_shift: float = hp(0.5, LogUniform(0.05, 2), "std of the additive noise", low=0)

    def build(self, make):
        model = super().build(make)
        model.insert("features", FeatureNoise(self.sfa_scale, self.sfa_shift))
        return model
