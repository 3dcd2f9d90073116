"""What a dataset is: named domains of uint8 images and labels that share one list of classes."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np

from benchmark.errors import unknown
from benchmark.registry import Registry


@dataclasses.dataclass(frozen=True)
class DomainData:
    """One domain: uint8 images (N, height, width, 3), maybe memory-mapped; int64 labels (N,)."""

    images: np.ndarray
    labels: np.ndarray
    parts: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """Rows of the parts that the dataset's authors published, where they did: train, val, test."""

    def __len__(self) -> int:
        return len(self.labels)


class Dataset:
    """One benchmark dataset. Subclasses say what they hold and how a domain is read."""

    name: ClassVar[str]
    domains: ClassVar[tuple[str, ...]]
    classes: ClassVar[tuple[str, ...]]
    citation: ClassVar[str]
    licence: ClassVar[str]

    def load(self, domain: str, root: Path, size: int) -> DomainData:
        """The images and labels of one domain, found or made under `root`; images that differ in
        size are stored at `size` × `size`."""
        raise NotImplementedError

    def check_domain(self, domain: str) -> None:
        if domain not in self.domains:
            raise unknown(f"domain of {self.name}", domain, self.domains)


datasets: Registry[type[Dataset]] = Registry("dataset", "datasets")


def open_dataset(name: str) -> Dataset:
    """The dataset of a name, e.g. from a spec."""
    return datasets[name]()


def register(name: str) -> Callable[[type[Dataset]], type[Dataset]]:
    """Class decorator: the dataset is known as `name` from now on."""

    def add(cls: type[Dataset]) -> type[Dataset]:
        cls.name = name
        return datasets.register(name)(cls)

    return add


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Make `path` appear whole or not at all, whoever else writes it, whenever this is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
