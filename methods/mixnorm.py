"""MixNorm: statistics of a sample and spatial augmentations of it, mixed with the federation's.

    μ = m μ_loc + (1 − m) μ_G      σ = m σ_loc + (1 − m) σ_G      _loc over copies × positions

Paper: Hu et al., MixNorm: Test-Time Adaptation Through Online Normalization Estimation, arXiv 2021.
Leaves the client besides weights: nothing, training does not change.

Five copies of each sample go through the network, as the FedFD-A paper counts (84.45 on PACS, five
times the time); the prediction is that of the original. No public code was found and m = 0.05 is
from a secondary source. What the sources leave open is this file's choice: four random resized
crops, each mirrored with probability ½, of at least 70 % of the area (DomainBed's training crops).
They are drawn from a seed made of the run's seed and the image itself, so a prediction depends
neither on the order of the test samples nor on who shares its batch. For the same reason the
original's moving average of the global statistics over the test samples is left out.
"""

from __future__ import annotations

import math
import zlib

import torch
import torch.nn.functional as F
from torch import nn

from benchmark.backbones.base import Backbone
from benchmark.hparams import LogUniform, hp
from benchmark.method import Predictor, register
from benchmark.seeds import seed_for
from methods.ops.inference import NormAtInference, with_mix

WIDEST = math.log(4 / 3)
"""Logarithm of the largest aspect of a crop; the smallest is its inverse."""


def own_uniforms(images: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    """Numbers (B, count) from [0, 1) that each image determines.

    Its coarse levels do: the last bits of the floats may depend on where they were computed.
    """
    levels = (images * 32).round().to(torch.int16).cpu().contiguous().numpy()
    seeds = [seed_for(seed, "mixnorm", zlib.crc32(image.tobytes())) for image in levels]
    draws = [torch.rand(count, generator=torch.Generator().manual_seed(own)) for own in seeds]
    return torch.stack(draws).to(images.device)


def random_views(images: torch.Tensor, draws: torch.Tensor, smallest: float) -> torch.Tensor:
    """Each image cut to a box, brought back to its size and perhaps mirrored, by draws (B, 5)."""
    area = smallest + (1 - smallest) * draws[:, 0]
    aspect = torch.exp(WIDEST * (2 * draws[:, 1] - 1))
    size = torch.stack((area * aspect, area / aspect), 1).sqrt().clamp_max(1)
    centre = (1 - size) * (2 * draws[:, 2:4] - 1)
    mirror = torch.where(draws[:, 4] < 0.5, -1.0, 1.0)
    place = torch.zeros(len(images), 2, 3, device=images.device)
    place[:, 0, 0], place[:, 1, 1], place[:, :, 2] = size[:, 0] * mirror, size[:, 1], centre
    grid = F.affine_grid(place, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


class Copies(nn.Module):
    """Predicts each sample together with views of it; layers of `model` take them as one."""

    def __init__(self, model: Backbone, copies: int, smallest: float, seed: int):
        super().__init__()
        self.model, self.copies, self.smallest, self.seed = model, copies, smallest, seed

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        # No more images at once than were given: memory stays that of ordinary evaluation.
        parts = images.split(max(1, len(images) // self.copies))
        return torch.cat([self._predict(part) for part in parts])

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        draws = own_uniforms(images, 5 * (self.copies - 1), self.seed).split(5, 1)
        views = [random_views(images, draw, self.smallest) for draw in draws if draw.numel()]
        together = torch.stack((images, *views), 1).flatten(0, 1)
        return self.model(together.contiguous(memory_format=torch.channels_last))[:: self.copies]


@register(
    "mixnorm",
    label="MixNorm",
    paper="MixNorm: Test-Time Adaptation Through Online Normalization Estimation",
    venue="arXiv 2021",
    category="inference",
    needs_batchnorm=True,
)
class MixNorm(NormAtInference):
    """Prediction with a small share of the statistics of each sample's augmented copies."""

    mixnorm_m: float = hp(0.05, LogUniform(0.01, 1), "weight of own statistics", low=0, high=1)
    mixnorm_copies: int = hp(5, doc="copies of a sample, the original among them", low=1)
    mixnorm_crop: float = hp(0.7, doc="least share of the area that a copy shows", low=0.05, high=1)

    def predictors(self, server, clients) -> dict[str, Predictor]:
        model = with_mix(
            server.model, lambda local, reference: self.mixnorm_m, copies=self.mixnorm_copies
        )
        own = Copies(model, self.mixnorm_copies, self.mixnorm_crop, server.seed)
        return {"mixnorm": own, **super().predictors(server, clients)}
