"""SFA-A: noise on the feature embedding along the directions in which its class varies.

    ẑ = a ⊙ z + b,    a ~ N(1, σ₁²),  b ~ N(0, Σ_y),  Σ_y = covariance of class y in recent batches

Paper: Li et al., A Simple Feature Augmentation for Domain Generalization, ICCV 2021.
Leaves the client besides weights: nothing; covariances stay where they are. Training only, on every
sample, at the input of the classifier. There is no public code; that the full covariance of each
class is estimated from recent mini-batches (reading notes say 8) is known, the rest is a choice:

- Σ_y is the unbiased covariance of the features that class y had in the last 8 batches, the present
  one included, since the visit began: features of an older model describe another embedding. The
  noise is drawn as Σᵢ εᵢ (zᵢ − z̄_y) / √(n_y − 1), εᵢ ~ N(0, 1), over the n_y features of class y,
  which has exactly that covariance. So no matrix of features × features is stored or factorised
  (65 classes of 2048 features would take a gigabyte), and n_y may be small. A class seen once gets
  no additive noise.
- σ₁ = 0.5 as in `sfa_s`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from benchmark.errors import UserError
from benchmark.hparams import Choice, LogUniform, hp
from benchmark.method import Batch, Method, register


def class_noise(
    features: torch.Tensor, classes: torch.Tensor, labels: torch.Tensor, class_count: int
) -> torch.Tensor:
    """For each of `labels` a draw from N(0, covariance of the features of that class)."""
    members = F.one_hot(classes, class_count).to(features.dtype)
    counts = members.sum(0)
    means = (members.T @ features) / counts.clamp_min(1)[:, None]
    deviations = features - means[classes]
    norms = (counts - 1).clamp_min(1).sqrt()
    chosen = members.T[labels] / norms[labels][:, None]
    return (chosen * torch.randn_like(chosen)) @ deviations


class ClassNoise(nn.Module):
    """Noise that follows the classes of recent features; inert without labels and in testing."""

    def __init__(self, scale: float, strength: float, window: int, class_count: int):
        super().__init__()
        self.scale = scale
        self.strength = strength
        self.window = window
        self.class_count = class_count
        self.labels: torch.Tensor | None = None
        """Of the batch that is about to pass; set by the method."""
        self.recent: list[tuple[torch.Tensor, torch.Tensor]] = []

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if not self.training or self.labels is None:
            return features
        if len(features) != len(self.labels):
            raise UserError("sfa_a stands left of a method that enlarges the batch; write it last")
        noisy = features
        if self.scale > 0:
            noisy = noisy * (1 + self.scale * torch.randn_like(features))
        if self.strength > 0:
            self.recent = [*self.recent, (features.detach(), self.labels)][-self.window :]
            past, classes = (torch.cat(parts) for parts in zip(*self.recent, strict=True))
            noise = class_noise(past, classes, self.labels, self.class_count)
            noisy = noisy + self.strength * noise
        return noisy


def _noise_of(model: nn.Module) -> ClassNoise:
    return next(part for part in model.modules() if isinstance(part, ClassNoise))


@register(
    "sfa_a",
    label="SFA-A",
    paper="A Simple Feature Augmentation for Domain Generalization",
    venue="ICCV 2021",
    category="augmentation",
)
class SFAA(Method):
    """Noise with the covariance of each sample's class on the features."""

    sfa_scale: float = hp(0.5, LogUniform(0.05, 2), "std of the factor around 1", low=0)
    sfa_strength: float = hp(1.0, LogUniform(0.1, 3), "factor of the class noise", low=0)
    sfa_window: int = hp(8, Choice(4, 8, 16), "batches that covariances are estimated from", low=1)

    def build(self, make):
        model = super().build(make)
        noise = ClassNoise(self.sfa_scale, self.sfa_strength, self.sfa_window, model.class_count)
        model.insert("features", noise)
        return model

    def receive(self, server, client) -> None:
        super().receive(server, client)
        _noise_of(client.model).recent = []

    def loss(self, client, batch: Batch) -> torch.Tensor:
        noise = _noise_of(client.model)
        noise.labels = batch.labels
        try:
            return super().loss(client, batch)
        finally:
            noise.labels = None
