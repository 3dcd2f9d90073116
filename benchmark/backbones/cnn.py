"""Small convolutional networks for 32×32 digits.

`cnn_digitsdg` is the network of the Digits-DG literature (Dassl): four times convolution, ReLU and
2×2 max-pooling, 64 channels each, no normalisation. `cnn_small_bn` adds batch normalisation after
each convolution, and `cnn_tiny_bn` is a narrow one for demonstrations and tests.
"""

from __future__ import annotations

import torch
from torch import nn

from benchmark.backbones.base import Backbone, register


class DigitCNN(Backbone):
    """Four convolution blocks, each halving the image, and a linear head on the flat 2×2 map."""

    stages = ("block1", "block2", "block3", "block4")
    smallest_image = largest_image = 32

    def __init__(self, classes: int, widths: tuple[int, int, int, int], batchnorm: bool):
        super().__init__()
        channels = (3, *widths)
        for k, stage in enumerate(self.stages):
            convolution = nn.Conv2d(channels[k], channels[k + 1], 3, padding=1)
            nn.init.kaiming_normal_(convolution.weight)
            nn.init.zeros_(convolution.bias)
            layers = [convolution, nn.BatchNorm2d(channels[k + 1])] if batchnorm else [convolution]
            setattr(self, stage, nn.Sequential(*layers, nn.ReLU(inplace=True), nn.MaxPool2d(2)))
        self.head = nn.Linear(4 * widths[-1], classes)

    def maps(self, images: torch.Tensor) -> torch.Tensor:
        self.check_size(*images.shape[-2:])
        x = images
        for stage in self.stages:
            x = self.tap(stage, getattr(self, stage)(x))
        return x

    def squeeze(self, maps: torch.Tensor) -> torch.Tensor:
        return maps.flatten(1)


@register("cnn_digitsdg", batchnorm=False)
def cnn_digitsdg(classes: int) -> Backbone:
    """Dassl's digits network: 4 × (conv 64, ReLU, pool), 115,146 parameters at ten classes."""
    return DigitCNN(classes, (64, 64, 64, 64), batchnorm=False)


@register("cnn_small_bn", batchnorm=True)
def cnn_small_bn(classes: int) -> Backbone:
    """The digits network with batch normalisation: 115,658 parameters at ten classes."""
    return DigitCNN(classes, (64, 64, 64, 64), batchnorm=True)


@register("cnn_tiny_bn", batchnorm=True)
def cnn_tiny_bn(classes: int) -> Backbone:
    """A narrow one for demonstrations: widths 16, 32, 32, 64 with batch normalisation."""
    return DigitCNN(classes, (16, 32, 32, 64), batchnorm=True)
