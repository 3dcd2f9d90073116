"""torchvision's DenseNet-121.

Huang et al., "Densely Connected Convolutional Networks", CVPR 2017. The order is normalisation,
ReLU, convolution, so what leaves a dense block is not yet normalised; stage `norm5` is the last
normalisation with its ReLU, the map that is pooled.

torchvision names two of its parts `features` and `classifier`, which mean something else here:
`features.denseblock1…` is `denseblock1…`, `features.conv0` is `stem.conv0`, `classifier` is `head`.
Files with torchvision's keys are read, also with those of older releases (`norm.1` for `norm1`).
"""

from __future__ import annotations

import re

import torch
from torch import nn

from benchmark.backbones.base import Backbone, register, torchvision_network

STEM = ("conv0", "norm0", "relu0", "pool0")
OLD_NAME = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12])\.")


class DenseNet(Backbone):
    """torchvision's parts, the first four together as the stem."""

    stages = (
        "stem",
        *(f"{part}{k}" for k in (1, 2, 3) for part in ("denseblock", "transition")),
        "denseblock4",
        "norm5",
    )
    smallest_image = 29  # below, nothing is left for the third transition

    def __init__(self, network: nn.Module):
        super().__init__()
        self.stem = nn.Sequential()
        for name, part in network.features.named_children():
            (self.stem if name in STEM else self).add_module(name, part)
        self.head = network.classifier

    def maps(self, images: torch.Tensor) -> torch.Tensor:
        self.check_size(*images.shape[-2:])
        x = images
        for stage in self.stages[:-1]:
            x = self.tap(stage, getattr(self, stage)(x))
        return self.tap("norm5", nn.functional.relu(self.norm5(x), inplace=True))

    def squeeze(self, maps: torch.Tensor) -> torch.Tensor:
        return nn.functional.adaptive_avg_pool2d(maps, 1).flatten(1)

    def own_key(self, key: str) -> str:
        key = OLD_NAME.sub(r"\1\2.", key)
        if key.startswith("classifier."):
            return f"head.{key.removeprefix('classifier.')}"
        key = key.removeprefix("features.")
        return f"stem.{key}" if key.split(".")[0] in STEM else key


@register("densenet121", batchnorm=True, weights="DenseNet121_Weights.IMAGENET1K_V1")
def densenet121(classes: int) -> Backbone:
    """torchvision's DenseNet-121: 1024 features, 6,953,856 parameters without the classifier."""
    return DenseNet(torchvision_network("densenet121", classes))
