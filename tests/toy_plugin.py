"""A plugin as a user would write one: a dataset of tinted blobs, learnt in a few steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from datasets.base import Dataset, DomainData, register


@register("Toy")
class Toy(Dataset):
    """Four tinted domains of four blob positions, 48 images each: learnt in a few steps."""

    domains = ("red", "green", "blue", "grey")
    classes = ("nw", "ne", "sw", "se")
    citation = "none"
    licence = "none"

    def load(self, domain: str, root: Path, size: int) -> DomainData:
        k = self.domains.index(domain)
        rng = np.random.default_rng(k)
        labels = np.arange(48) % 4
        images = rng.integers(0, 80, (48, 32, 32, 3))
        tint = np.eye(3)[k] * 120 if k < 3 else np.full(3, 60)
        for image, label in zip(images, labels, strict=True):
            row, column = 16 * (label // 2), 16 * (label % 2)
            image[row : row + 16, column : column + 16] += tint.astype(int) + 40
        return DomainData(images.clip(0, 255).astype(np.uint8), labels.astype(np.int64))
