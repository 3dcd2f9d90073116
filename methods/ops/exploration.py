"""The places in a network where StableFDG changes a batch, and the plan they follow.

Everything that decides how many samples leave the network, and with which labels, is drawn before
the pass and put into a `Plan`; places without a plan, and all of them in evaluation, do nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import torch
from torch import nn

from methods.ops.centred import rescaled
from methods.ops.shared_styles import shift_styles
from methods.ops.style import Style, blend, centred_style


@dataclasses.dataclass(frozen=True)
class Plan:
    """What one training pass does to its batch."""

    size: int
    """Samples of the batch itself; supplements may stand behind them."""
    labels: torch.Tensor
    """Of the samples that reach the end of the network."""
    kept: int
    """So many of these, the first ones, are classified."""
    fires: tuple[bool, ...] = ()
    """Whether each exploring place acts."""
    rows: torch.Tensor | None = None
    """The samples of the batch that leave the first acting place, in this order, if not all."""
    copies: int = 0
    """So many of the rows, the last ones, are oversampled and explore styles."""
    received: torch.Tensor | None = None
    """The style (4, C) that half of the batch is shifted to, if it is."""


class Slot:
    """Where the places of a network find the plan of the pass."""

    def __init__(self) -> None:
        self.plan: Plan | None = None

    @contextlib.contextmanager
    def following(self, plan: Plan) -> Iterator[None]:
        self.plan = plan
        try:
            yield
        finally:
            self.plan = None


class StyleShifting(nn.Module):
    """Gives half of a batch the style of another client."""

    def __init__(self, slot: Slot, select: str):
        super().__init__()
        self.slot, self.select = slot, select

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        plan = self.slot.plan
        if not self.training or plan is None or plan.received is None:
            return maps
        shifted = shift_styles(maps[: plan.size], plan.received, self.select)
        return torch.cat([shifted, maps[plan.size :]]) if len(maps) > plan.size else shifted


class StyleExploration(nn.Module):
    """Adds copies of samples with styles beyond the batch's, and mixes the styles of all."""

    def __init__(self, slot: Slot, place: int, level: float, mixing: float | None, clamp: bool):
        super().__init__()
        self.slot, self.place, self.level, self.clamp = slot, place, level, clamp
        self.shares = None if mixing is None else torch.distributions.Beta(mixing, mixing)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        plan = self.slot.plan
        if not self.training or plan is None or not any(plan.fires) or not plan.fires[self.place]:
            return maps
        extends = plan.rows is not None and plan.fires.index(True) == self.place
        if extends:
            maps = maps[plan.rows]
        elif self.shares is None:
            return maps
        centred, own = centred_style(maps)
        old = len(maps) - plan.copies if extends else len(maps)
        new = explored((own[0].detach(), own[1].detach()), old, self.level, self.clamp)
        if self.shares is None:  # nothing happens to the samples that were there
            later = rescaled(centred[old:], new[1][old:] / own[1][old:], new[0][old:])
            return torch.cat([maps[:old], later])
        share = self.shares.sample((len(maps), 1)).to(maps)
        order = torch.randperm(len(maps)).to(maps.device)
        mean, std = blend(new, (new[0][order], new[1][order]), share)
        # Only the new styles are constants: the gradient goes through the normalisation.
        return rescaled(centred, std / own[1], mean)


def explored(styles: Style, old: int, level: float, clamp: bool = False) -> Style:
    """Styles from the row `old` on move away from the mean of those before, by `level` times their
    distance from it. A std may become negative, unless it is clamped."""
    if old == len(styles[0]):
        return styles
    moved = []
    for values in styles:
        centre = values[:old].mean(0, keepdim=True)
        moved.append(torch.cat([values[:old], values[old:] + level * (values[old:] - centre)]))
    return moved[0], moved[1].clamp_min(0) if clamp else moved[1]
