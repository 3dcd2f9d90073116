"""What a dataset is: named domains of uint8 images and labels that share one list of classes."""

from __future__ import annotations

import dataclasses
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from benchmark.errors import unknown
from benchmark.registry import Registry

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


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

    name: str
    domains: tuple[str, ...]
    letters: tuple[str, ...] = ()
    """Short names of the domains for the heads of tables; none: the domains' own names."""
    aliases: Mapping[str, tuple[str, ...]] = {}
    """Other names of a domain, in papers and on disk."""
    classes: tuple[str, ...]
    counts: Mapping[str, int] | None = None
    """How many images each domain of a complete copy holds, where that is known."""
    citation: str
    licence: str
    image_size: int = 224
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    """Size and normalisation that papers use: hints for protocols, nothing is applied here."""

    def load(self, domain: str, root: Path, size: int) -> DomainData:
        """The images and labels of one domain, found or made under `root`; images that differ in
        size are stored at `size` × `size`."""
        raise NotImplementedError

    def labels(self, domain: str, root: Path) -> np.ndarray:
        """The labels alone; datasets of image files decode none for it."""
        return self.load(domain, root, 32).labels

    def check_present(self, root: Path) -> None:
        """Raise unless the dataset is there, saying how to get it; quick, nothing is read."""

    def check_domain(self, domain: str) -> None:
        if domain not in self.domains:
            raise unknown(f"domain of {self.name}", domain, self.domains)

    def find_domain(self, text: str) -> str:
        """The domain that a letter or any usual spelling means: `A`, `Art painting`, `SUN`."""
        short = dict(zip(self.letters, self.domains, strict=False))
        spellings = {plain(name): name for name in self.domains}
        spellings |= {plain(other): name for name in self.aliases for other in self.aliases[name]}
        found = text if text in self.domains else short.get(text) or spellings.get(plain(text))
        if found is None:
            raise unknown(f"domain of {self.name}", text, self.domains)
        return found


datasets: Registry[type[Dataset]] = Registry("dataset", "datasets")


def open_dataset(name: str) -> Dataset:
    """The dataset of a name, e.g. from a spec; `folder:PATH` is a user's own image folder."""
    if name.startswith("folder:"):
        from datasets.folders import OwnFolder  # it builds on this module

        return OwnFolder(name.removeprefix("folder:"))
    return datasets[name]()


def register(name: str) -> Callable[[type[Dataset]], type[Dataset]]:
    """Class decorator: the dataset is known as `name` from now on."""

    def add(cls: type[Dataset]) -> type[Dataset]:
        cls.name = name
        return datasets.register(name)(cls)

    return add


def plain(name: str) -> str:
    """A name without what spellings differ in: case, spaces, hyphens and underscores."""
    return "".join(sign for sign in name.casefold() if sign.isalnum())


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Make `path` appear whole or not at all, whoever else writes it, whenever this is killed.

    The temporary file takes the usual permissions, so that colleagues can read what they share.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    temporary.touch(exist_ok=False)
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
