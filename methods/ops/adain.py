"""AdaIN style transfer: statistics of feature maps, and coders between images and maps.

Huang and Belongie, Arbitrary Style Transfer in Real-time with Adaptive Instance Normalization, ICCV
2017, as in the code naoto0804/pytorch-AdaIN, whose weight files are read here: `vgg_normalised.pth`
(VGG-19 behind a 1×1 convolution that normalises; the part up to relu4_1 is used) and `decoder.pth`,
in the folder that the environment variable FEDDOMAINBED_ADAIN names.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from benchmark.backbones.base import make_backbone
from benchmark.backbones.weights import read_state
from benchmark.errors import UserError
from datasets.transforms import ImageNet
from methods.ops.style import Style, recolour, style_of

EPSILON = 1e-5
VARIABLE = "FEDDOMAINBED_ADAIN"
FILES = ("vgg_normalised.pth", "decoder.pth")


def style_rows(maps: torch.Tensor) -> torch.Tensor:
    """The style of each image, (B, 2, C): mean and std (unbiased variance) of its maps."""
    return torch.stack([part.flatten(1) for part in style_of(maps, EPSILON)], 1)


class PooledStyle:
    """One style (1, 2, C) of all pixels of all maps added, which is not the mean of the images'
    styles: how images differ from each other counts too."""

    def __init__(self) -> None:
        self.count, self.total, self.squares = 0, 0.0, 0.0

    def add(self, maps: torch.Tensor) -> None:
        exact = maps.double()
        self.total = self.total + exact.sum((0, 2, 3))
        self.squares = self.squares + exact.square().sum((0, 2, 3))
        self.count += len(maps) * maps.shape[2] * maps.shape[3]

    def result(self) -> torch.Tensor:
        mean = self.total / self.count
        variance = (self.squares / self.count - mean.square()).clamp_min(0)
        return torch.stack([mean, (variance + EPSILON).sqrt()])[None].float()


def as_style(rows: torch.Tensor) -> Style:
    """Rows (B, 2, C) as a pair of (B, C, 1, 1)."""
    return rows[:, 0, :, None, None], rows[:, 1, :, None, None]


def transfer(maps: torch.Tensor, rows: torch.Tensor, alpha: float) -> torch.Tensor:
    """Maps with each sample's given style; α between the content's own maps (0) and that (1). The
    content's statistics are constants for the gradient."""
    if alpha == 0:
        return maps
    mean, std = style_of(maps.detach(), EPSILON)
    new = recolour(maps, (mean, std), as_style(rows))
    return new if alpha == 1 else alpha * new + (1 - alpha) * maps


class Coder(nn.Module):
    """From pixels in [0, 1] to the maps whose style is exchanged, and back to pixels."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.encoder(pixels)

    def decode(self, maps: torch.Tensor, size: torch.Size) -> torch.Tensor:
        """Pixels of the size of the image that the maps come from, neither clipped nor rounded."""
        pixels = self.decoder(maps)
        return pixels if pixels.shape[-2:] == size else F.interpolate(pixels, size)


def rgb_coder() -> Coder:
    """Pixels are their own maps: the style is the mean and std of the three colours."""
    return Coder(nn.Identity(), nn.Identity())


def _convolution(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.ReflectionPad2d(1), nn.Conv2d(inputs, outputs, 3), nn.ReLU()]


def _chain(inputs: int, plan: Iterable[int | nn.Module]) -> list[nn.Module]:
    """Convolutions with the given widths and other layers between them."""
    layers: list[nn.Module] = []
    for item in plan:
        if isinstance(item, nn.Module):
            layers.append(item)
        else:
            layers += _convolution(inputs, item)
            inputs = item
    return layers


def vgg_coder() -> Coder:
    """pytorch-AdaIN's networks, under its names of layers, with fresh weights."""
    pool = functools.partial(nn.MaxPool2d, 2, ceil_mode=True)
    up = functools.partial(nn.Upsample, scale_factor=2)
    down = [64, 64, pool(), 128, 128, pool(), 256, 256, 256, 256, pool(), 512]
    back = [256, up(), 256, 256, 256, 128, up(), 128, 64, up(), 64, 3]
    encoder = nn.Sequential(nn.Conv2d(3, 3, 1), *_chain(3, down))
    return Coder(encoder, nn.Sequential(*_chain(512, back)[:-1]))


@functools.lru_cache(maxsize=2)
def _resnet_encoder(device: torch.device | str) -> nn.Module:
    """Stem and first layer of ResNet-18 with ImageNet's weights, frozen, read once."""
    with torch.random.fork_rng(devices=[]):  # being read or being cached must draw the same: none
        network = make_backbone("resnet18", 2, "imagenet")
        normalise = nn.Conv2d(3, 3, 1, groups=3)
    with torch.no_grad():
        mean, std = torch.tensor(ImageNet.mean), torch.tensor(ImageNet.std)
        normalise.weight.copy_((1 / std).view(3, 1, 1, 1))
        normalise.bias.copy_(-mean / std)
    parts = (network.conv1, network.bn1, network.relu, network.maxpool, network.layer1)
    return nn.Sequential(normalise, *parts).eval().requires_grad_(False).to(device)


def resnet_coder(device: torch.device | str) -> Coder:
    """ImageNet's ResNet-18 up to its first layer, and a small fresh decoder to be trained."""
    up = functools.partial(nn.Upsample, scale_factor=2)
    decoder = nn.Sequential(*_chain(64, [64, up(), 32, up(), 3])[:-1])
    return Coder(_resnet_encoder(device), decoder.to(device))


def adain_folder() -> Path:
    """Where the two files are; an error says what is missing."""
    folder = Path(os.environ.get(VARIABLE, "")).expanduser()
    missing = [name for name in FILES if not (folder / name).is_file()]
    if VARIABLE not in os.environ or missing:
        raise UserError(
            f"ccst_encoder=vgg needs pytorch-AdaIN's {' and '.join(FILES)}; set {VARIABLE} to a "
            f"folder with both, or choose ccst_encoder=feat"
        )
    return folder


@functools.lru_cache(maxsize=2)
def load_vgg_coder(folder: Path, digest: str, device: torch.device | str) -> Coder:
    """The trained coder, frozen; files other than those of the digest are refused."""
    content = b"".join((folder / name).read_bytes() for name in FILES)
    found = hashlib.sha256(content).hexdigest()[:16]
    if digest not in ("any", found):
        raise UserError(f"the AdaIN files in {folder} have ccst_digest={found}, not {digest}")
    with torch.random.fork_rng(devices=[]):
        coder = vgg_coder()
    for network, name in zip((coder.encoder, coder.decoder), FILES, strict=True):
        state, own = read_state(str(folder / name)), network.state_dict()
        wrong = [k for k in own if k not in state or state[k].shape != own[k].shape]
        if wrong:
            raise UserError(f"{folder / name} is not pytorch-AdaIN's: {wrong[0]} does not fit")
        network.load_state_dict({key: state[key] for key in own})
    return coder.eval().requires_grad_(False).to(device)
