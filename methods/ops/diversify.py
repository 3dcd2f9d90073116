"""The pieces of L2D: the module that changes styles, the stochastic head, and the loss terms."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from benchmark.errors import UserError

KERNELS = (9, 13, 17, 5)
"""Sizes of the spatial branches; the fifth branch mixes colours only."""


def correlate(spectrum: torch.Tensor, kernels: torch.Tensor, side: int) -> torch.Tensor:
    """`F.conv2d` of square images with 3 → 3 kernels, from the images' spectrum.

    The kernels are so large and the channels so few that the way through the frequencies is six
    times faster; what would wrap around is exactly what the convolution does not compute.
    """
    kept = side - kernels.shape[-1] + 1
    factors = torch.fft.rfft2(kernels, s=(side, side)).conj()
    changed = torch.fft.irfft2((spectrum[:, None] * factors).sum(2), s=(side, side))
    return changed[..., :kept, :kept]


def spread_out(maps: torch.Tensor, kernels: torch.Tensor, side: int) -> torch.Tensor:
    """`F.conv_transpose2d`, which brings the maps back to the side of the images; see above."""
    factors = torch.fft.rfft2(kernels.transpose(0, 1), s=(side, side))
    spectrum = torch.fft.rfft2(maps, s=(side, side))
    return torch.fft.irfft2((spectrum[:, None] * factors).sum(2), s=(side, side))


class RandomBranches(nn.Module):
    """Convolutions as PyTorch initialises them, never trained: one of colours, four pairs that
    shrink and restore an image."""

    def __init__(self) -> None:
        super().__init__()
        self.colour = nn.Conv2d(3, 3, 1)
        # A bias would vanish in the normalisation that follows.
        self.shrink = nn.ModuleList(nn.Conv2d(3, 3, size, bias=False) for size in KERNELS)
        self.restore = nn.ModuleList(nn.ConvTranspose2d(3, 3, size) for size in KERNELS)
        self.requires_grad_(False)

    def forward(self, images, scales, shifts, dropout: float) -> list[torch.Tensor]:
        side = images.shape[-1]
        outputs = [F.dropout(self.colour(images), dropout).tanh()]
        spectrum = torch.fft.rfft2(images)
        for k, (shrink, restore) in enumerate(zip(self.shrink, self.restore, strict=True)):
            maps = F.instance_norm(correlate(spectrum, shrink.weight, side))
            maps = spread_out(scales[k] * maps + shifts[k], restore.weight, side)
            outputs.append((maps + restore.bias[:, None, None]).tanh())
        return outputs


class StyleComplement(nn.Module):
    """Changes the style of images: learnt noise level, scales and shifts of every place, inside
    random branches that are fixed (to learn) or fresh and randomly weighted (to diversify)."""

    def __init__(self, side: int):
        super().__init__()
        if side <= max(KERNELS):
            raise UserError(
                f"l2d needs images larger than {max(KERNELS)} pixels, not {side}; change image_size"
            )
        shapes = [(3, side - size + 1, side - size + 1) for size in KERNELS]
        self.noise = nn.Parameter(torch.zeros(1))
        self.scales = nn.ParameterList(1 + 0.1 * torch.randn(shape) for shape in shapes)
        self.shifts = nn.ParameterList(0.1 * torch.randn(shape) for shape in shapes)
        self.fixed = RandomBranches()

    def forward(self, images: torch.Tensor, fresh: bool) -> torch.Tensor:
        images = images + 0.01 * self.noise * torch.randn(images.shape, device=images.device)
        count = len(KERNELS) + 1
        weights = torch.full((count,), 1 / count)
        if fresh:
            weights = torch.randn(count)
            total = weights.sum()
            # The sum may come near zero; what is divided by it must stay a number.
            weights = weights / total.abs().clamp_min(1e-3).copysign(total)
        branches = RandomBranches().to(images.device) if fresh else self.fixed
        outputs = branches(images, self.scales, self.shifts, dropout=0.2 if fresh else 0.0)
        return sum(w * output for w, output in zip(weights.tolist(), outputs, strict=True))

    def learnt(self) -> list[nn.Parameter]:
        return [self.noise, *self.scales, *self.shifts]


class GaussianHead(nn.Module):
    """Features to a Gaussian: a draw from it in training (at a fifth of its width), else its mean.

    The parts are modules, so that what they give can be captured.
    """

    def __init__(self, features: int, width: int):
        super().__init__()
        self.mean = nn.Sequential(nn.Linear(features, width), nn.LeakyReLU())
        self.log_variance = nn.Sequential(nn.Linear(features, width), nn.ReLU())

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        mean = self.mean(features)
        if not self.training:
            return mean
        deviation = (self.log_variance(features) / 2).exp()
        return mean + 0.2 * deviation * torch.randn_like(mean)


def surprise(mean, log_variance, samples) -> torch.Tensor:
    """Negative log-likelihood of samples under Gaussians, up to a constant and a half."""
    return ((mean - samples).square() / log_variance.exp() + log_variance).mean()


def information_bound(mean, log_variance, samples, order) -> torch.Tensor:
    """CLUB: how much likelier each sample is under its own Gaussian than under another's. With the
    true conditional it is an upper bound of the mutual information."""
    precision = (-log_variance).exp()
    own = (mean - samples).square() * precision
    others = (mean - samples[order]).square() * precision
    return (others - own).sum(1).mean() / 2


def class_mmd(one: torch.Tensor, other: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Squared maximum mean discrepancy between two sets of features within each class, averaged
    over the classes present: five Gaussian kernels, ¼ to 4 times the class's mean distance."""
    total, classes = torch.cat([one, other]), labels.repeat(2)
    same = (classes[:, None] == classes).to(total.dtype)
    counts = same.sum(1)
    exact = "donot_use_mm_for_euclid_dist"
    distances = torch.cdist(total, total, compute_mode=exact).square()
    within = same @ (distances.detach() * same).sum(1)
    width = (within / (counts * (counts - 1))).clamp_min(1e-12)[:, None]
    kernels = sum((-distances / (width * factor)).exp() for factor in (0.25, 0.5, 1, 2, 4))
    sides = torch.ones_like(counts)
    sides[len(one) :] = -1
    pairs = sides[:, None] * sides * same * kernels / (counts[:, None] / 2).square()
    return pairs.sum() / (1 / counts).sum()


def contrast(one, other, labels, temperature: float = 0.07) -> torch.Tensor:
    """Supervised contrastive loss of two views: all samples of the class are positives."""
    total, classes = F.normalize(torch.cat([one, other])), labels.repeat(2)
    self_pairs = torch.eye(len(total), dtype=torch.bool, device=total.device)
    similarity = (total @ total.T / temperature).masked_fill(self_pairs, -torch.inf)
    log_share = similarity.log_softmax(1).masked_fill(self_pairs, 0)
    positives = (classes[:, None] == classes) & ~self_pairs
    return -((log_share * positives).sum(1) / positives.sum(1)).mean()
