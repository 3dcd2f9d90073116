"""Attention between the layers of two networks: which layer of one belongs to which of the other.

Maps of several stages of both are brought to one size by convolutions of their own; how strongly a
stage of the first (a query) belongs to one of the second (a key) is the softmax, over the second's
stages, of a mean attention energy: of positions, after 1×1 convolutions, and of channels, averaged.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

Maps = Sequence[torch.Tensor]


class CrossLayerAttention(nn.Module):
    """Projections of the stages of two networks of the same shape, and their attention."""

    def __init__(self, shapes: Sequence[torch.Size], channels: int = 32):
        """`shapes` (channels, height, width) of the stages; all are brought to the last's size."""
        super().__init__()
        size = shapes[-1][1:]
        self.first = nn.ModuleList(_projection(shape, channels, size) for shape in shapes)
        self.second = nn.ModuleList(_projection(shape, channels, size) for shape in shapes)
        self.query = nn.ModuleList(nn.Conv2d(channels, channels, 1) for _ in shapes)
        self.key = nn.ModuleList(nn.Conv2d(channels, channels, 1) for _ in shapes)
        # They only give the weights, which are constants, so no gradient ever reaches them.
        self.query.requires_grad_(False)
        self.key.requires_grad_(False)

    def project(self, first: Maps, second: Maps) -> tuple[torch.Tensor, torch.Tensor]:
        """(stages, B, channels, height, width) of both networks."""
        pairs = ((self.first, first), (self.second, second))
        one, other = (
            torch.stack([layer(x) for layer, x in zip(layers, maps, strict=True)])
            for layers, maps in pairs
        )
        return one, other

    @torch.no_grad()
    def weights(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """(stages, stages): row i says how much stage i of the first belongs to each other one.

        A mean over an outer product is the product of the means, so no energy is written out.
        """
        count = first.shape[1]
        queries, keys = (
            torch.stack([layer(x) for layer, x in zip(layers, maps, strict=True)]).mean((3, 4))
            for layers, maps in ((self.query, first), (self.key, second))
        )
        positions = torch.einsum("ibc,jbc->ij", queries, keys) / count
        maps = first.mean(2).flatten(2), second.mean(2).flatten(2)
        channels = torch.einsum("ibp,jbp->ij", *maps) / count
        return (positions.softmax(1) + channels.softmax(1)) / 2


def _projection(shape: torch.Size, channels: int, size: torch.Size) -> nn.Conv2d:
    """A convolution to so many channels and this size: of stride 2 where that halves it, else as
    large as it must be."""
    given, height, width = shape
    if (height, width) == (2 * size[0], 2 * size[1]):
        return nn.Conv2d(given, channels, 3, stride=2, padding=1)
    return nn.Conv2d(given, channels, (1 + height - size[0], 1 + width - size[1]))
