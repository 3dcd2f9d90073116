"""A client's samples as tensors, gathered a batch at a time from the shared arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from datasets.base import DomainData
from datasets.partition import Shard
from datasets.transforms import Transform


@dataclasses.dataclass
class Batch:
    """Model-ready images (B, 3, H, W), labels (B,) and the numbers of the domains they are from."""

    images: torch.Tensor
    labels: torch.Tensor
    domains: torch.Tensor
    extras: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What a method's `augment` adds for its own loss."""

    def __len__(self) -> int:
        return len(self.labels)


class Samples:
    """The samples of a shard. Images stay where they are; a batch is a gather and a transform."""

    def __init__(
        self,
        shard: Shard,
        domains: Sequence[DomainData | None],
        transform: Transform,
        device: torch.device | str = "cpu",
    ):
        self.shard = shard
        self.transform = transform
        self.device = torch.device(device)
        self._domains = domains
        self.labels = np.empty(len(shard), dtype=np.int64)
        for domain in np.unique(shard.domains):
            chosen = shard.domains == domain
            self.labels[chosen] = domains[domain].labels[shard.rows[chosen]]

    def __len__(self) -> int:
        return len(self.shard)

    def training_batch(self, positions: np.ndarray, generator: torch.Generator) -> Batch:
        images = self._pixels(positions)
        return self._batch(self.transform.train(images, generator), positions)

    def evaluation_batches(self, size: int = 64) -> Iterator[Batch]:
        """All samples in order, without randomness."""
        for start in range(0, len(self), size):
            positions = np.arange(start, min(start + size, len(self)))
            yield self._batch(self.transform.evaluate(self._pixels(positions)), positions)

    def _batch(self, images: torch.Tensor, positions: np.ndarray) -> Batch:
        labels = self._there(self.labels[positions])
        return Batch(images, labels, self._there(self.shard.domains[positions].astype(np.int64)))

    def _pixels(self, positions: np.ndarray) -> torch.Tensor:
        """uint8 images (B, 3, H, W) in channels-last memory, which is how they are stored."""
        domains, rows = self.shard.domains[positions], self.shard.rows[positions]
        present = np.unique(domains)
        if len(present) == 1:
            pixels = self._domains[present[0]].images[rows]
        else:
            first = self._domains[present[0]].images
            pixels = np.empty((len(positions), *first.shape[1:]), dtype=np.uint8)
            for domain in present:
                chosen = domains == domain
                pixels[chosen] = self._domains[domain].images[rows[chosen]]
        return self._there(pixels).permute(0, 3, 1, 2)

    def _there(self, values: np.ndarray) -> torch.Tensor:
        """On the device; to a GPU from page-locked memory, so that copies run beside the steps."""
        tensor = torch.from_numpy(values)
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)


def batch_order(
    count: int, batch_size: int, rng: np.random.Generator, steps: int | None, epochs: int | None
) -> Iterator[np.ndarray]:
    """Positions of each training batch: shuffled passes, incomplete last batches dropped.

    A client with fewer samples than one batch gives all of them at every step.
    """
    per_epoch = max(1, count // batch_size)
    remaining = steps if steps is not None else epochs * per_epoch
    while remaining > 0:
        order = rng.permutation(count)
        for k in range(min(per_epoch, remaining)):
            yield order[k * batch_size : (k + 1) * batch_size]
        remaining -= per_epoch
