"""RandAugment: N random image operations of a common magnitude M on every training image.

Paper: Cubuk et al., RandAugment: Practical Automated Data Augmentation with a Reduced Search Space,
CVPR workshops 2020. Leaves the client besides weights: nothing. The operations are torchvision's:
14 kinds, identity included, geometric ones with a random sign, nearest-neighbour resampling, black
where an image has moved away; N = 2, M = 9 of 31 bins. They act on 8-bit pixels, on top of the
protocol's own augmentation and before normalisation, each image with its own draws.

The FedFD-A paper, which reports this baseline, gives neither N and M nor the table of operations.
Dassl's table (16 kinds, among them inversion and cut-out; moves in one direction only; N = 2,
M = 10 of 30) is another one and not offered.
"""

from __future__ import annotations

import dataclasses

import torch

from benchmark.hparams import Choice, hp
from benchmark.method import Batch, Method, register


def randomly_augmented(pixels: torch.Tensor, count: int, magnitude: int) -> torch.Tensor:
    """uint8 images (B, 3, H, W), each changed by `count` operations of its own."""
    # Imported here because it takes most of a second that other methods need not wait.
    from torchvision.transforms.v2 import RandAugment

    change = RandAugment(num_ops=count, magnitude=magnitude)
    return torch.stack([change(image) for image in pixels])


@register(
    "randaug",
    label="RandAug",
    paper="RandAugment: Practical Automated Data Augmentation with a Reduced Search Space",
    venue="CVPR Workshops 2020",
    category="augmentation",
)
class RandAug(Method):
    """Random operations on the images."""

    randaug_n: int = hp(2, Choice(1, 2, 3), "operations per image", low=0)
    randaug_m: int = hp(9, Choice(3, 6, 9, 12, 15), "magnitude, of 31 bins", low=0, high=30)

    def augment(self, client, batch: Batch) -> Batch:
        batch = super().augment(client, batch)
        if self.randaug_n == 0:
            return batch
        transform = client.train.transform
        pixels = (transform.to_pixels(batch.images) * 255).round_().clamp_(0, 255)
        changed = randomly_augmented(pixels.to(torch.uint8), self.randaug_n, self.randaug_m)
        images = transform.from_pixels(changed.to(batch.images.dtype) / 255)
        return dataclasses.replace(batch, images=images)
