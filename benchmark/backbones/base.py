"""What every network offers a method: features, a head, and named stages to put a module after."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import nn

from benchmark.errors import UserError, unknown
from benchmark.registry import Registry


class Backbone(nn.Module):
    """A classifier in two parts, `head(features(x))`.

    `features` passes the output of each stage through `tap`, so a method can put its own module
    there with `insert` and no key of the network's state changes its name.
    """

    stages: ClassVar[tuple[str, ...]] = ()
    head_name: ClassVar[str] = "head"

    def __init__(self) -> None:
        super().__init__()
        self.taps = nn.ModuleDict()

    def features(self, images: torch.Tensor) -> torch.Tensor:
        """The (B, feature_size) input of the head."""
        raise NotImplementedError

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images))

    @property
    def classifier(self) -> nn.Linear:
        """The last linear layer."""
        return getattr(self, self.head_name)

    @property
    def feature_size(self) -> int:
        return self.classifier.in_features

    @property
    def class_count(self) -> int:
        return self.classifier.out_features

    def insert(self, stage: str, module: nn.Module) -> None:
        """Let `module` see and change what leaves `stage`; several run in order of insertion."""
        if stage not in self.stages:
            raise unknown(f"stage of {type(self).__name__}", stage, self.stages)
        if stage in self.taps:
            self.taps[stage].append(module)
        else:
            self.taps[stage] = nn.Sequential(module)

    def tap(self, stage: str, x: torch.Tensor) -> torch.Tensor:
        return self.taps[stage](x) if stage in self.taps else x


@dataclasses.dataclass(frozen=True)
class BackboneEntry:
    """A registered network: how to make it and what it has that methods may need."""

    make: Callable[[int], Backbone]
    batchnorm: bool
    doc: str


backbones: Registry[BackboneEntry] = Registry("backbone", "benchmark.backbones")


def register(name: str, *, batchnorm: bool) -> Callable:
    """Decorator of a function from the number of classes to a network."""

    def add(make: Callable[[int], Backbone]) -> Callable[[int], Backbone]:
        backbones.register(name)(BackboneEntry(make, batchnorm, make.__doc__ or ""))
        return make

    return add


def make_backbone(name: str, classes: int, pretrained: str) -> Backbone:
    """A network with fresh or loaded weights, in the memory format that convolutions like."""
    model = backbones[name].make(classes)
    if pretrained != "none":
        raise UserError(f"backbone {name} has no pretrained weights; use --pretrained none")
    return model.to(memory_format=torch.channels_last)
