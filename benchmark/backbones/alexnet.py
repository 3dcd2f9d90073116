"""AlexNet: torchvision's (`alexnet`) and FedBN's with batch normalisation (`alexnet_bn`).

Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014 (torchvision's
widths); Li et al., "FedBN", ICLR 2021 (batch normalisation after every layer but the last, no
dropout, order convolution, normalisation, ReLU, pooling; `nets/models.py` of its public code).

torchvision names two of its parts `features` and `classifier`, which mean something else here, so
the layers go by their stage: `features.3` is `conv2.convolution`, `classifier.1` is `fc1.linear`,
and so on. Both networks read torchvision's files. FedBN itself trains `alexnet_bn` from scratch;
with ImageNet weights its normalisation starts fresh and must first see data.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from benchmark.backbones.base import Backbone, register, torchvision_network

OWN_NAMES = {
    "features.0": "conv1.convolution",
    "features.3": "conv2.convolution",
    "features.6": "conv3.convolution",
    "features.8": "conv4.convolution",
    "features.10": "conv5.convolution",
    "classifier.1": "fc1.linear",
    "classifier.4": "fc2.linear",
    "classifier.6": "head",
}
"""torchvision's layers that have weights, and what they are called here."""


def _sequence(**parts: nn.Module | None) -> nn.Sequential:
    """The parts that there are, in order, under their names."""
    present = {name: part for name, part in parts.items() if part is not None}
    return nn.Sequential(OrderedDict(present))


class AlexNet(Backbone):
    """torchvision's layers in named stages, with batch normalisation instead of dropout or not."""

    stages = ("conv1", "conv2", "conv3", "conv4", "conv5")
    smallest_image = 63  # below, nothing is left for the last pooling

    def __init__(self, network: nn.Module, batchnorm: bool):
        super().__init__()
        for theirs, ours in OWN_NAMES.items():
            layer, name = network.get_submodule(theirs), ours.partition(".")[0]
            if isinstance(layer, nn.Conv2d):
                norm = nn.BatchNorm2d(layer.out_channels) if batchnorm else None
                pool = nn.MaxPool2d(3, 2) if name in ("conv1", "conv2", "conv5") else None
                layer = _sequence(convolution=layer, norm=norm, relu=nn.ReLU(True), pool=pool)
            elif name != self.head_name:
                norm = nn.BatchNorm1d(layer.out_features) if batchnorm else None
                dropout = None if batchnorm else nn.Dropout(0.5)
                layer = _sequence(dropout=dropout, linear=layer, norm=norm, relu=nn.ReLU(True))
            self.add_module(name, layer)
        self.pool = network.avgpool

    def maps(self, images: torch.Tensor) -> torch.Tensor:
        self.check_size(*images.shape[-2:])
        x = images
        for stage in self.stages:
            x = self.tap(stage, getattr(self, stage)(x))
        return x

    def squeeze(self, maps: torch.Tensor) -> torch.Tensor:
        return self.pool(maps).flatten(1)

    def embed(self, vectors: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.fc1(vectors))

    def own_key(self, key: str) -> str:
        layer, dot, entry = key.rpartition(".")
        return OWN_NAMES.get(layer, layer) + dot + entry

    def optional_parts(self) -> list[tuple[str, ...]]:
        norms = [name for name, part in self.named_modules() if isinstance(part, _BatchNorm)]
        return [("fc1", "fc2", "head"), tuple(norms)]


@register("alexnet", batchnorm=False, weights="AlexNet_Weights.IMAGENET1K_V1")
def alexnet(classes: int) -> Backbone:
    """torchvision's AlexNet: 4096 features, dropout, 61,100,840 parameters at 1000 classes."""
    return AlexNet(torchvision_network("alexnet", classes), batchnorm=False)


@register("alexnet_bn", batchnorm=True, weights="AlexNet_Weights.IMAGENET1K_V1")
def alexnet_bn(classes: int) -> Backbone:
    """FedBN's AlexNet: seven batch-norm layers, no dropout, 57,063,498 parameters at 10 classes."""
    return AlexNet(torchvision_network("alexnet", classes), batchnorm=True)
