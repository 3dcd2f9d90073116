"""What every network offers a method: features, a head, and named stages to put a module after."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn

from benchmark.backbones.weights import describe_weights, load_pretrained
from benchmark.errors import UserError, unknown
from benchmark.registry import Registry


class Backbone(nn.Module):
    """A classifier, `classifier(features(images))`, whose features are made in three parts:
    `maps` (all stages), `squeeze` (maps to vectors) and `embed` (layers on vectors, if any).

    What leaves a stage passes through `tap`, so a method can put its own module there with `insert`
    and no key of the network's state changes its name. A stage ends after its last ReLU, and after
    its pooling where it has one; the finished features are a place of their own, `features`.
    """

    stages: tuple[str, ...] = ()
    head_name: ClassVar[str] = "head"
    smallest_image: int = 1
    largest_image: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.taps = nn.ModuleDict()
        self.pooling: nn.Module | None = None
        """Takes the place of `squeeze` when a method sets it."""

    def maps(self, images: torch.Tensor) -> torch.Tensor:
        """What leaves the last stage: maps (B, channels, height, width), or a ViT's tokens."""
        raise NotImplementedError

    def squeeze(self, maps: torch.Tensor) -> torch.Tensor:
        """Maps to vectors, by averaging unless a network does otherwise."""
        return maps.mean((2, 3))

    def embed(self, vectors: torch.Tensor) -> torch.Tensor:
        """Layers between the vectors and the classifier; none unless a network has some."""
        return vectors

    def features(self, images: torch.Tensor) -> torch.Tensor:
        """The (B, feature_size) input of the classifier."""
        return self.features_of(self.maps(images))

    def features_of(self, maps: torch.Tensor) -> torch.Tensor:
        """The second half of `features`, for methods that change the maps."""
        vectors = self.squeeze(maps) if self.pooling is None else self.pooling(maps)
        return self.tap("features", self.embed(vectors))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images))

    @property
    def classifier(self) -> nn.Linear:
        """The last linear layer."""
        return self.get_submodule(self.head_name)

    @property
    def feature_size(self) -> int:
        return self.classifier.in_features

    @property
    def class_count(self) -> int:
        return self.classifier.out_features

    def widen_classifier(self, feature_size: int) -> None:
        """A fresh classifier for features of another size."""
        parent, _, name = self.head_name.rpartition(".")
        new = nn.Linear(feature_size, self.class_count)
        setattr(self.get_submodule(parent), name, new)

    def insert(self, stage: str, module: nn.Module) -> None:
        """Let `module` see and change what leaves `stage`; several run in order of insertion."""
        if stage not in (*self.stages, "features"):
            raise unknown(f"stage of {type(self).__name__}", stage, (*self.stages, "features"))
        if stage in self.taps:
            self.taps[stage].append(module)
        else:
            self.taps[stage] = nn.Sequential(module)

    def tap(self, stage: str, x: torch.Tensor) -> torch.Tensor:
        return self.taps[stage](x) if stage in self.taps else x

    def check_size(self, height: int, width: int) -> None:
        """Raise unless images of this size go through the network."""
        smallest, largest = self.smallest_image, self.largest_image
        if min(height, width) < smallest or (largest is not None and max(height, width) > largest):
            wanted = f"{smallest}×{smallest}" if largest else f"at least {smallest}×{smallest}"
            raise UserError(
                f"{type(self).__name__} takes images of {wanted} pixels, not {height}×{width}; "
                f"change the image size or choose another --backbone"
            )

    def own_key(self, key: str) -> str:
        """The key of this network for a key of torchvision's; its own keys stay as they are."""
        return key

    def optional_parts(self) -> list[tuple[str, ...]]:
        """Groups of modules that a file of weights may lack, each only as a whole: by default what
        is fully connected, which then starts fresh."""
        return [(self.head_name,)]


def replace_norm(
    model: nn.Module,
    factory: Callable[[nn.BatchNorm2d], nn.Module],
    where: Callable[[str, nn.BatchNorm2d], bool] | None = None,
) -> list[str]:
    """Put `factory(old)` in the place of every BatchNorm2d, or of those for which `where(path,
    old)` holds, under the same path. Returns the paths."""
    found = [
        (path, module)
        for path, module in model.named_modules()
        if path and isinstance(module, nn.BatchNorm2d) and (where is None or where(path, module))
    ]
    for path, old in found:
        parent, _, name = path.rpartition(".")
        new = factory(old)
        setattr(model.get_submodule(parent), name, new.train(old.training))
    return [path for path, _ in found]


@dataclasses.dataclass(frozen=True)
class BackboneEntry:
    """A registered network: how to make it and what it has that methods may need."""

    make: Callable[[int], Backbone]
    batchnorm: bool
    doc: str
    tokens: bool = False
    """A transformer, whose stages hand on tokens."""
    weights: str | None = None
    """torchvision's name of the weights that `--pretrained imagenet` loads, if there are any."""


backbones: Registry[BackboneEntry] = Registry("backbone", "benchmark.backbones")


def register(
    name: str, *, batchnorm: bool, tokens: bool = False, weights: str | None = None
) -> Callable:
    """Decorator of a function from the number of classes to a network."""

    def add(make: Callable[[int], Backbone]) -> Callable[[int], Backbone]:
        doc = inspect.getdoc(make) or ""
        backbones.register(name)(BackboneEntry(make, batchnorm, doc, tokens, weights))
        return make

    return add


def torchvision_network(name: str, classes: int, **options: Any) -> nn.Module:
    """torchvision's own network with fresh weights. It is imported only here, because that takes
    most of a second which programs that plan, list or train small networks need not wait."""
    from torchvision.models import get_model

    return get_model(name, num_classes=classes, **options)


def make_backbone(name: str, classes: int, pretrained: str) -> Backbone:
    """A network in the memory format that convolutions like, with fresh weights (`none`), with
    ImageNet's (`imagenet`) or with those of a file (its path); see `benchmark.backbones.weights`.
    """
    entry = backbones[name]
    model = entry.make(classes)
    if pretrained != "none":
        load_pretrained(model, name, entry.weights, pretrained)
    return model.to(memory_format=torch.channels_last)


def weights_used(name: str, pretrained: str) -> str:
    """Which weights a network starts from, as a result should state it."""
    return describe_weights(name, backbones[name].weights, pretrained)


def check_image_size(name: str, size: int) -> None:
    """Raise unless square images of this side fit the network; nothing is allocated for it."""
    with torch.device("meta"):
        backbones[name].make(2).check_size(size, size)
