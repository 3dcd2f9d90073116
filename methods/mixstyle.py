"""MixStyle: each sample takes a mixture of its own and another sample's channel statistics.

    x' = (λ σ + (1 − λ) σ_π) · (x − μ) / σ + λ μ + (1 − λ) μ_π,      λ ~ Beta(α, α) per sample

Paper: Zhou et al., Domain Generalization with MixStyle, ICLR 2021; code of KaiyangZhou
(mixstyle-release, Dassl). Leaves the client besides weights: nothing. Training only, for a whole
batch at a time with probability p, tossed anew after each of the first three stages (layer1 to
layer3 of a ResNet: the paper's PACS setting; its Office-Home setting stops after layer2). The
statistics are constants of the gradient, σ² is unbiased.

Partners are a random permutation of the batch. The code's other pairing takes the halves of a batch
for two domains; a client with one domain has no such halves, so it is left out. gPerXAN and FedFD-A
put MixStyle into federated averaging unchanged, as here.
"""

from __future__ import annotations

import torch
from torch import nn

from benchmark.hparams import Choice, LogUniform, Uniform, hp
from benchmark.method import Method, register
from methods.ops.chance import happens
from methods.ops.stages import early_stages
from methods.ops.style import mix_styles


class StyleMixing(nn.Module):
    """Mixes the styles of a batch of maps, sometimes, in training."""

    def __init__(self, probability: float, alpha: float):
        super().__init__()
        self.probability = probability
        self.shares = torch.distributions.Beta(alpha, alpha, validate_args=False)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        if not self.training or len(maps) < 2 or not happens(self.probability):
            return maps
        share = self.shares.sample((len(maps), 1, 1, 1)).to(maps)
        return mix_styles(maps, torch.randperm(len(maps)).to(maps.device), share)


@register(
    "mixstyle",
    label="MixStyle",
    paper="Domain Generalization with MixStyle",
    venue="ICLR 2021",
    category="augmentation",
)
class MixStyle(Method):
    """Channel statistics mixed between samples after the early stages."""

    mixstyle_p: float = hp(0.5, Uniform(0.1, 0.9), "probability at each stage", low=0, high=1)
    mixstyle_alpha: float = hp(0.1, LogUniform(0.05, 1), "of the Beta distribution", low=1e-3)
    mixstyle_stages: int = hp(3, Choice(1, 2, 3), "after how many of the first stages", low=1)

    def build(self, make):
        model = super().build(make)
        for stage in early_stages(model, self.mixstyle_stages):
            model.insert(stage, StyleMixing(self.mixstyle_p, self.mixstyle_alpha))
        return model
