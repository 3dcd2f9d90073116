"""DSU: channel statistics become Gaussians whose width is their spread over the batch.

    x' = γ · (x − μ) / σ + β,   β = μ + f ξ Σ(μ),   γ = σ + f ξ' Σ(σ),   ξ, ξ' ~ N(0, 1)

Paper: Li et al., Uncertainty Modeling for Out-of-Distribution Generalization, ICLR 2022; code
lixiaotong97/DSU. Leaves the client besides weights: nothing. Σ is the standard deviation of μ or σ
across the batch; ξ is drawn for every sample and channel. Training only, with probability p at each
place for the whole batch. Nothing is detached, γ may become negative, as in the code. A batch of
one sample has no spread and passes unchanged (the code would give NaN).

Places: after the first convolution, before its normalisation, and after every stage; on a ResNet
these are the code's six (conv1, max-pooling, layer1 to layer4).
"""

from __future__ import annotations

import functools

import torch
from torch import nn

from benchmark.hparams import Uniform, hp
from benchmark.method import Method, register
from methods.ops.centred import rescaled
from methods.ops.chance import happens
from methods.ops.stages import early_stages
from methods.ops.style import centred_style, spread


def perturb_style(maps: torch.Tensor, factor: float) -> torch.Tensor:
    """Maps with statistics drawn around their own."""
    centred, own = centred_style(maps)
    own = torch.stack(own)
    mean, std = torch.addcmul(own, torch.randn_like(own), spread(own, dim=1), value=factor)
    return rescaled(centred, std / own[1], mean)


class StyleUncertainty(nn.Module):
    """Perturbs the styles of a batch of maps, sometimes, in training."""

    def __init__(self, probability: float, factor: float):
        super().__init__()
        self.probability = probability
        self.factor = factor

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        inert = not self.training or self.factor == 0 or len(maps) < 2
        if inert or not happens(self.probability):
            return maps
        return perturb_style(maps, self.factor)


def _pass_on(place: StyleUncertainty, layer: nn.Module, inputs, maps: torch.Tensor):
    """Forward hook: `place` acts behind `layer` without a key of its own in the state."""
    return place.train(layer.training)(maps)


@register(
    "dsu",
    label="DSU",
    paper="Uncertainty Modeling for Out-of-Distribution Generalization",
    venue="ICLR 2022",
    category="augmentation",
)
class DSU(Method):
    """Uncertain channel statistics after the first convolution and every stage."""

    dsu_p: float = hp(0.5, Uniform(0.1, 0.9), "probability at each place", low=0, high=1)
    dsu_factor: float = hp(1.0, Uniform(0.2, 2), "of the spread of the statistics", low=0)

    def build(self, make):
        model = super().build(make)
        early_stages(model, 1)  # refuses a network without convolutional stages
        first = next(part for part in model.modules() if isinstance(part, nn.Conv2d))
        place = StyleUncertainty(self.dsu_p, self.dsu_factor)
        first.register_forward_hook(functools.partial(_pass_on, place))
        for stage in model.stages:
            model.insert(stage, StyleUncertainty(self.dsu_p, self.dsu_factor))
        return model
