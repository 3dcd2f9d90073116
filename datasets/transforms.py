"""From stored uint8 images to what a network sees, whole batches at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch

from benchmark.registry import Registry


class Transform:
    """A recipe: how training and evaluation images are prepared at one image size."""

    mean: ClassVar[tuple[float, float, float]] = (0.5, 0.5, 0.5)
    std: ClassVar[tuple[float, float, float]] = (0.5, 0.5, 0.5)

    def __init__(self, size: int, device: torch.device | str = "cpu"):
        self.size = size
        scale = torch.tensor(self.std, device=device).view(1, 3, 1, 1)
        shift = torch.tensor(self.mean, device=device).view(1, 3, 1, 1)
        self._factor = 1 / (255 * scale)
        self._offset = -shift / scale

    @property
    def stored_size(self) -> int:
        """The side at which images of varying size are stored, so that nothing is lost here."""
        return self.size

    def train(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """A training batch from uint8 (B, 3, H, W) images; draws come from `generator` alone."""
        return self.evaluate(images)

    def evaluate(self, images: torch.Tensor) -> torch.Tensor:
        """A test batch: no randomness."""
        return self.normalise(images)

    def normalise(self, images: torch.Tensor) -> torch.Tensor:
        """uint8 pixels to the network's scale."""
        return torch.addcmul(self._offset, images, self._factor)

    def to_pixels(self, inputs: torch.Tensor) -> torch.Tensor:
        """Back from the network's scale to [0, 1]."""
        return (inputs - self._offset) / (self._factor * 255)

    def from_pixels(self, pixels: torch.Tensor) -> torch.Tensor:
        """From [0, 1] to the network's scale."""
        return pixels * (self._factor * 255) + self._offset


transforms: Registry[type[Transform]] = Registry("transform", "datasets")


def register(name: str) -> Callable[[type[Transform]], type[Transform]]:
    return transforms.register(name)


@register("digits")
class Digits(Transform):
    """Digits: normalise to [-1, 1], nothing else."""
