"""StableFDG's attention feature highlighter: maps pooled twice, plainly and by attention."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmark.backbones.base import Backbone
from methods.ops.exploration import Slot


class Highlighter(nn.Module):
    """Maps (B, C, H, W) to vectors: [squeezed as the network does it; averaged by attention].

    The weight of a position is the softmax of how well its key agrees with the mean query: of the
    sample itself (`self`), of another one of its class (`cross`), or of both together. Others are
    only asked in training, under a plan; `conv` scores positions without comparing anything.
    """

    def __init__(
        self,
        slot: Slot,
        squeeze: Callable[[torch.Tensor], torch.Tensor],
        channels: int,
        width: int,
        attention: str,
        normalise: bool,
    ):
        super().__init__()
        self.slot, self.squeeze = slot, squeeze
        self.attention, self.normalise = attention, normalise
        self.query = nn.Conv2d(channels, width, 1)
        self.key = nn.Conv2d(channels, width, 1)
        for layer in (self.query, self.key):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(layer.bias)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        plan = self.slot.plan if self.training else None
        partner = None
        if plan is not None and self.attention in ("cross", "both"):
            partner = next_of_class(plan.labels)
        weights = self.attend(maps, partner)
        pooled = torch.cat([self.squeeze(maps), weighted_average(maps, weights)], 1)
        return pooled if plan is None else pooled[: plan.kept]

    def attend(self, maps: torch.Tensor, partner: torch.Tensor | None = None) -> torch.Tensor:
        """The weights (B, H·W) of all positions; each sample's sum to 1."""
        queries, keys = self.query(maps).flatten(2), self.key(maps).flatten(2)
        if self.attention == "conv":
            return torch.cat([queries, keys], 1).relu().mean(1).softmax(1)
        if self.normalise:
            queries, keys = unit(queries), unit(keys)
        question = queries.mean(2, keepdim=True)  # averaging scores over queries is the same
        if partner is not None:
            other = question[partner]
            question = other if self.attention == "cross" else (other + question) / 2
        return (question * keys).sum(1).softmax(1)


def unit(vectors: torch.Tensor) -> torch.Tensor:
    """(B, d, positions) divided by their lengths over d. The root is of a positive number: the
    gradient at a zero vector stays moderate."""
    return vectors * (vectors.square().sum(1, keepdim=True) + 1e-6).rsqrt()


def weighted_average(maps: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Σ over positions of weight · map, (B, C)."""
    return torch.einsum("bcp,bp->bc", maps.flatten(2), weights)


def next_of_class(labels: torch.Tensor) -> torch.Tensor:
    """For each sample the next one of its class, after the last the first; alone, itself."""
    order = labels.argsort(stable=True)
    ranked = labels[order]
    following = torch.arange(1, len(labels) + 1, device=labels.device)
    first = torch.searchsorted(ranked, ranked)
    end = torch.searchsorted(ranked, ranked, right=True)
    partner = torch.empty_like(order)
    partner[order] = order[torch.where(following < end, following, first)]
    return partner


def average(maps: torch.Tensor) -> torch.Tensor:
    """Global average pooling."""
    return maps.mean((2, 3))


def maps_of(model: Backbone) -> torch.Tensor:
    """The maps that a network pools, of one small black image."""
    device = next(model.parameters()).device
    side, mode = model.smallest_image, model.training
    with torch.no_grad():
        maps = model.eval().maps(torch.zeros(1, 3, side, side, device=device))
    model.train(mode)
    return maps
