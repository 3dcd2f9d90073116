"""MTSSL: the encoder also learns to tell rotations and to predict answers of Gabor filters.

    L = CE(class) + w_r · CE(rotation of a turned copy) + w_g · MSE(answers of a Gabor filter bank)

Paper: Albuquerque et al., Improving Out-of-Distribution Generalization via Multi-Task
Self-Supervised Pretraining, arXiv 2020. Sees the images of all sources in one place, so everything
leaves the client. No public code exists and only the abstract could be read, so this is a stand-in
with the paper's idea and not its recipe. The paper trains an encoder on three tasks without labels
(rotation, Gabor answers, DeepCluster's pseudo-labels) and then fine-tunes it with labels. Here the
tasks are auxiliary losses next to the class, weight 1 each, unless `mtssl_pretrain` gives the share
of rounds in which they come first and alone; after these only the class is learnt, as in the paper.
DeepCluster is left out. Ours are also: 8 orientations × 4 scales of filters, answers averaged in
4 × 4 cells, one random quarter turn per image, linear heads on the features. Turned copies do not
touch the running statistics of batch normalisation while the class is learnt.
"""

from __future__ import annotations

import contextlib
import math

import torch
import torch.nn.functional as F
from torch import nn

from benchmark.hparams import LogUniform, Uniform, hp
from benchmark.method import Batch, register
from methods.erm_pool import ErmPool
from methods.ops.batchnorm import frozen_statistics

ORIENTATIONS, SCALES, GRID = 8, 4, 4


@register(
    "mtssl",
    label="MTSSL",
    paper="Improving Out-of-Distribution Generalization via Multi-Task Self-Supervised Pretraining",
    venue="arXiv 2020",
    category="centralised",
    shares=("images",),
    centralised=True,
)
class MTSSL(ErmPool):
    """Cross-entropy of class and rotation, and the error of predicted filter answers."""

    mtssl_rotation: float = hp(1.0, LogUniform(0.1, 10), "weight of the rotations", low=0)
    mtssl_gabor: float = hp(1.0, LogUniform(0.1, 10), "weight of the filter answers", low=0)
    mtssl_pretrain: float = hp(
        0.0, Uniform(0, 0.5), "share of rounds for these tasks alone; 0: together", low=0, high=1
    )

    def build(self, make):
        model = super().build(make)
        model.rotation = nn.Linear(model.feature_size, 4)
        model.gabor = nn.Linear(model.feature_size, ORIENTATIONS * SCALES * GRID * GRID)
        return model

    def receive(self, server, client) -> None:
        super().receive(server, client)
        client.scratch["gabor"] = gabor_bank(ORIENTATIONS, SCALES).to(client.train.device)

    def loss(self, client, batch: Batch) -> torch.Tensor:
        alone = client.progress < self.mtssl_pretrain
        together = self.mtssl_pretrain == 0
        model = client.model
        features = model.features(batch.images)
        loss = features.new_zeros(())
        if not alone:
            loss = F.cross_entropy(model.classifier(features), batch.labels)
        if not alone and not together:
            return loss
        if self.mtssl_gabor > 0:
            pixels = client.train.transform.to_pixels(batch.images)
            answers = gabor_energy(pixels, client.scratch["gabor"], GRID)
            loss = loss + self.mtssl_gabor * F.mse_loss(model.gabor(features), answers)
        if self.mtssl_rotation > 0:
            turns = torch.randint(0, 4, (len(batch),)).to(batch.images.device)
            with contextlib.nullcontext() if alone else frozen_statistics(model):
                turned = model.rotation(model.features(rotate(batch.images, turns)))
            loss = loss + self.mtssl_rotation * F.cross_entropy(turned, turns)
        return loss


def rotate(images: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Square images, each turned by its number of quarter turns."""
    turned = torch.stack([images.rot90(k, (2, 3)) for k in range(4)], dim=1)
    return turned[torch.arange(len(images), device=images.device), turns]


def gabor_bank(orientations: int, scales: int, side: int = 11) -> torch.Tensor:
    """(orientations · scales, 1, side, side) filters without mean and of length 1, real parts.

    Wavelengths grow from 3 pixels by √2, orientations divide half a turn; the envelope's deviation
    is half the wavelength and its aspect 0.5.
    """
    axis = torch.arange(side) - side // 2
    y, x = torch.meshgrid(axis.float(), axis.float(), indexing="ij")
    filters = []
    for scale in range(scales):
        wavelength = 3 * math.sqrt(2) ** scale
        for k in range(orientations):
            angle = math.pi * k / orientations
            along = x * math.cos(angle) + y * math.sin(angle)
            across = -x * math.sin(angle) + y * math.cos(angle)
            radius = along.square() + 0.25 * across.square()
            envelope = torch.exp(-radius / (2 * (wavelength / 2) ** 2))
            wave = envelope * torch.cos(2 * math.pi * along / wavelength)
            filters.append(F.normalize((wave - wave.mean()).flatten(), dim=0).view(side, side))
    return torch.stack(filters).unsqueeze(1)


def gabor_energy(pixels: torch.Tensor, bank: torch.Tensor, grid: int) -> torch.Tensor:
    """The mean size of each filter's answer in each of grid × grid cells of the grey images,
    (B, filters · grid²); every second pixel is looked at."""
    grey = pixels.mean(1, keepdim=True)
    answers = F.conv2d(grey, bank, stride=2, padding=bank.shape[-1] // 2)
    return F.adaptive_avg_pool2d(answers.abs(), grid).flatten(1)
