"""Training on restyled copies of a client's images: the enlarged list, and the change of styles.

An entry of the list is a position in the client's samples and a style: the number of a row in the
styles it was given, or ORIGINAL for the image as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import nn

from benchmark.backbones.base import Backbone
from benchmark.errors import UserError
from datasets.samples import Batch, Samples
from methods.ops.adain import Coder, transfer
from methods.ops.banks import Bank, draw_rows

ORIGINAL = -1
EXTRA = "ccst"
"""Where a batch carries its images' styles."""


def draw_entries(others: Sequence[Bank], count: int, own: int, copies: int) -> torch.Tensor:
    """The list of `count` images, (count, copies): for each of them as many different clients, the
    own one, which stands at place `own` among all, included; of the others a random row."""
    chosen = torch.rand(count, len(others) + 1).argsort(1)[:, :copies]
    if not others:
        return torch.full_like(chosen, ORIGINAL)
    others_number = (chosen - (chosen > own).long()).clamp_max(len(others) - 1)
    return torch.where(chosen == own, ORIGINAL, draw_rows(others, others_number))


class RestyledSamples(Samples):
    """Several entries for each sample: image i with the styles `entries[i]`, a row of K numbers.

    `change(images, styles)` restyles stored uint8 images before the protocol's own augmentation, as
    if the copies had been made beforehand; None leaves that to the network.
    """

    def __init__(
        self,
        original: Samples,
        entries: np.ndarray,
        change: Callable[[torch.Tensor, np.ndarray], torch.Tensor] | None,
    ):
        count, copies = entries.shape
        shard = original.shard.take(np.tile(np.arange(count), copies))
        super().__init__(shard, original._domains, original.transform, original.device)
        self.styles = entries.T.flatten()
        self.change = change

    def training_batch(self, positions: np.ndarray, generator: torch.Generator) -> Batch:
        images, styles = self._pixels(positions), self.styles[positions]
        if self.change is not None:
            images = self.change(images, styles)
        batch = self._batch(self.transform.train(images, generator), positions)
        batch.extras[EXTRA] = torch.from_numpy(styles).to(self.device)
        return batch


@torch.no_grad()
def restyled(
    images: torch.Tensor, styles: np.ndarray, rows: torch.Tensor, coder: Coder, alpha: float
) -> torch.Tensor:
    """uint8 images with the style of a row where `styles` names one; the others untouched."""
    places = np.flatnonzero(styles != ORIGINAL)
    if not len(places):
        return images
    chosen = torch.from_numpy(places).to(images.device)
    wanted = rows[torch.from_numpy(styles[places]).to(images.device)]
    maps = coder.encode(images[chosen].float() / 255)
    pixels = coder.decode(transfer(maps, wanted, alpha), images.shape[-2:])
    changed = images.clone()
    changed[chosen] = pixels.clamp_(0, 1).mul_(255).round_().to(torch.uint8)
    return changed


class StyleSwap(nn.Module):
    """A place inside a network where samples take given styles while `swapped` says so; otherwise,
    and always in evaluation mode, the identity. It has no state."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: tuple[torch.Tensor, torch.Tensor, float] | None = None

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        if self.wanted is None or not self.training:
            return maps
        styles, rows, alpha = self.wanted
        if len(styles) != len(maps):
            raise UserError(
                "ccst_encoder=feat styles a batch inside the network, but another method changes "
                "how many images there are; choose ccst_encoder=rgb, vgg or resnet"
            )
        changed = transfer(maps, rows[styles.clamp_min(0)], alpha)
        return torch.where((styles != ORIGINAL).view(-1, 1, 1, 1), changed, maps)


def swaps_of(model: Backbone) -> list[StyleSwap]:
    """The network's places for styles, in order."""
    return [part for part in model.modules() if isinstance(part, StyleSwap)]


@contextlib.contextmanager
def swapped(
    model: Backbone, styles: torch.Tensor, rows: Sequence[torch.Tensor], alpha: float
) -> Iterator[None]:
    """Batches that pass through the network meanwhile take these styles, one row for each place."""
    places = swaps_of(model)
    for place, own in zip(places, rows, strict=True):
        place.wanted = styles, own, alpha
    try:
        yield
    finally:
        for place in places:
            place.wanted = None
