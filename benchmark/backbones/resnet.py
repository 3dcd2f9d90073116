"""Residual networks of torchvision: `resnet18`, `resnet50` and two variants.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016. Keys and numbers are
torchvision's. `imagenet` means the classic V1 checkpoints; the V2 weights of ResNet-50 come from
another recipe and would shift every number of the federated literature.
"""

from __future__ import annotations

import torch
from torch import nn

from benchmark.backbones.base import Backbone, register, torchvision_network


class ResNet(Backbone):
    """torchvision's; a layer ends after the ReLU of its last block, the stem after pooling."""

    stages = ("stem", "layer1", "layer2", "layer3", "layer4")
    head_name = "fc"

    def __init__(self, network: nn.Module):
        super().__init__()
        for name, part in network.named_children():
            self.add_module(name, part)

    def maps(self, images: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.tap("stem", x)
        for stage in self.stages[1:]:
            x = self.tap(stage, getattr(self, stage)(x))
        return x

    def squeeze(self, maps: torch.Tensor) -> torch.Tensor:
        return self.avgpool(maps).flatten(1)


class BottleneckResNet(ResNet):
    """A narrow layer with batch normalisation between the pooled features and the classifier."""

    def __init__(self, network: nn.Module, width: int):
        super().__init__(network)
        wide, classes = self.fc.in_features, self.fc.out_features
        self.bottleneck = nn.Sequential(
            nn.Linear(wide, width), nn.BatchNorm1d(width), nn.ReLU(inplace=True)
        )
        self.fc = nn.Linear(width, classes)

    def embed(self, vectors: torch.Tensor) -> torch.Tensor:
        return self.bottleneck(vectors)

    def optional_parts(self) -> list[tuple[str, ...]]:
        return [("bottleneck", "fc")]


@register("resnet18", batchnorm=True, weights="ResNet18_Weights.IMAGENET1K_V1")
def resnet18(classes: int) -> Backbone:
    """torchvision's ResNet-18: 512 features, 11,180,103 parameters at 7 classes."""
    return ResNet(torchvision_network("resnet18", classes))


@register("resnet18_b256", batchnorm=True, weights="ResNet18_Weights.IMAGENET1K_V1")
def resnet18_b256(classes: int) -> Backbone:
    """ResNet-18 with a 256-d bottleneck: 11,310,151 parameters at 7 classes.

    The network of FedFD-A, as in CSAC's code: Linear(512, 256), BatchNorm1d, ReLU, Linear(256, K).
    ImageNet weights are ResNet-18's; bottleneck and classifier start fresh.
    """
    return BottleneckResNet(torchvision_network("resnet18", classes), 256)


@register("resnet50", batchnorm=True, weights="ResNet50_Weights.IMAGENET1K_V1")
def resnet50(classes: int) -> Backbone:
    """torchvision's ResNet-50: 2048 features, 23,508,032 parameters without the classifier."""
    return ResNet(torchvision_network("resnet50", classes))


@register("resnet50_v1", batchnorm=True)
def resnet50_v1(classes: int) -> Backbone:
    """ResNet-50 with the original paper's strides, in the 1×1 instead of the 3×3 convolutions.

    The keys are the same as torchvision's, which has no weights for these strides; Caffe's and
    Keras's weights are made for them.
    """
    model = ResNet(torchvision_network("resnet50", classes))
    for stage in (model.layer2, model.layer3, model.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    return model
