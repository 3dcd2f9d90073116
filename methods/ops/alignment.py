"""The parts of FedADG: the distribution generator, the local discriminator, and their losses."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


def one_hot(labels: torch.Tensor, classes: int, height: float) -> torch.Tensor:
    """Labels as (B, classes) with `height` at the right place; height 0 means no labels: (B, 0)."""
    codes = height * F.one_hot(labels, classes)
    return codes if height > 0 else codes[:, :0]


class Generator(nn.Module):
    """From noise and a label code to features: two layers; like features after a ReLU, never
    negative."""

    def __init__(self, noise: int, codes: int, hidden: int, features: int):
        super().__init__()
        self.noise = noise
        self.layers = nn.Sequential(
            nn.Linear(noise + codes, hidden), nn.LeakyReLU(), nn.Linear(hidden, features), nn.ReLU()
        )

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Features for each label code, from noise that is uniform in [0, 1)."""
        noise = torch.rand(len(codes), self.noise).to(codes)
        return self.layers(torch.cat([noise, codes], 1))


class Discriminator(nn.Module):
    """The probability that features are generated: a random projection that is drawn once and never
    trained, the label code beside it, two layers."""

    def __init__(self, features: int, codes: int, hidden: int, projected: int | None):
        super().__init__()
        projection = torch.empty(0)
        if projected is not None:  # of this scale, it keeps the length of features on average
            projection = torch.randn(features, projected) / math.sqrt(projected)
        self.register_buffer("projection", projection)
        width = features if projected is None else projected
        self.layers = nn.Sequential(
            nn.Linear(width + codes, hidden), nn.LeakyReLU(), nn.Linear(hidden, 1), nn.Sigmoid()
        )

    def forward(self, features: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        projected = features @ self.projection if self.projection.numel() else features
        return self.layers(torch.cat([projected, codes], 1)).flatten()


def fixed_reference(kind: str, count: int, size: int) -> torch.Tensor:
    """Features (count, size) from a distribution that is not learnt."""
    if kind == "gaussian":
        return torch.randn(count, size)
    if kind == "uniform":
        return 2 * torch.rand(count, size) - 1
    return torch.distributions.Laplace(0.0, 2**-0.5).sample((count, size))


def discriminator_loss(
    extracted: torch.Tensor, generated: torch.Tensor, form: str = "lsgan"
) -> torch.Tensor:
    """L_d from the discriminator's answers: extracted features are 0 and generated ones 1. `lsgan`
    punishes the distance to that, the paper's form rewards the distance to the opposite."""
    if form == "paper":
        return -((1 - extracted).square().mean() + generated.square().mean())
    return extracted.square().mean() + (1 - generated).square().mean()


def extractor_loss(extracted: torch.Tensor) -> torch.Tensor:
    """L_f: extracted features should pass for generated ones."""
    return (1 - extracted).square().mean()


def generator_loss(generated: torch.Tensor, form: str = "toward") -> torch.Tensor:
    """L_g: generated features should pass for extracted ones (`toward`), or the more for generated
    ones (`paper`)."""
    return (generated if form == "toward" else 1 - generated).square().mean()


def smoothing_term(logits: torch.Tensor, labels: torch.Tensor, mass: float) -> torch.Tensor:
    """What label smoothing adds to the cross-entropy: with probability `mass` the label is one of
    the wrong classes, each as likely. (PyTorch's own smoothing gives the right class a share too.)
    """
    logs = F.log_softmax(logits, 1)
    right = logs.gather(1, labels[:, None])[:, 0]
    wrong = (logs.sum(1) - right) / (logits.shape[1] - 1)
    return mass * (right - wrong).mean()
