"""Datasets of image files: where one is found under a root, and how a domain of it is loaded."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmark.errors import UserError
from datasets.base import Dataset, DomainData
from datasets.cache import decoded, place_for
from datasets.fetch import Download
from datasets.layouts import Listing, class_names, match, nested, read_domain, subfolders


class Absent(UserError):
    """A dataset, or a domain of it, is not where it is looked for; says how to get it."""

    def __init__(self, reason: str, advice: str):
        self.reason = reason
        super().__init__(f"{reason}; {advice}")


class FolderDataset(Dataset):
    """A dataset of image files. A subclass is a page of facts, and says what is special on disk."""

    folders: tuple[str, ...]
    """Its usual names under the root, the preferred one first."""
    homepage: str
    by_hand: str
    """How to get it where the terms leave the download to the user."""
    surplus: str = "remove the images that do not belong to it"
    """What to do when there are more images than there should be."""
    downloads: tuple[Download, ...] = ()
    """What may be fetched automatically."""

    def load(self, domain: str, root: Path, size: int) -> DomainData:
        root = Path(root)
        listing = self.checked_listing(domain, root)
        place = place_for(self.name, domain, self.cache_root(root))
        images = decoded(listing, place, size, self.all_listings(root))
        return DomainData(images, listing.labels, listing.parts)

    def check_present(self, root: Path) -> None:
        self.find_home(Path(root))

    def labels(self, domain: str, root: Path) -> np.ndarray:
        return self.checked_listing(domain, Path(root)).labels

    def checked_listing(self, domain: str, root: Path) -> Listing:
        """The files of a domain, with a warning where a known benchmark has other numbers."""
        self.check_domain(domain)
        listing = self.listing(domain, root)
        expected = (self.counts or {}).get(domain)
        if expected not in (None, len(listing)):
            warn_once(
                f"{self.name} {domain} has {len(listing):,} images in {listing.home}, a complete "
                f"copy has {expected:,}: results will not compare with published ones"
            )
        return listing

    def listing(self, domain: str, root: Path) -> Listing:
        """The files of one domain in order, no image read."""
        home = self.find_home(root)
        folder = match(home, self.domain_names()).get(domain)
        if folder is None:
            raise Absent(f"{self.name}: no folder {domain!r} in {home}", self.advice(root))
        return read_domain(folder, self.classes, home)

    def find_home(self, root: Path) -> Path:
        """The folder that holds the domains' folders: `root/<one of folders>`, or `root`."""
        named = match(root, {name: (name,) for name in self.folders})
        for name in self.folders:
            for place in nested(named.get(name)):
                if self.is_home(place):
                    return place
        for place in nested(root):
            if self.is_home(place, at_least=2):
                return place
        names = ", ".join(self.folders)
        raise Absent(f"{self.name} is not in {root} (looked for {names})", self.advice(root))

    def all_listings(self, root: Path) -> Iterator[Listing]:
        """The files of every domain that is there and can be made out."""
        for domain in self.domains:
            try:
                yield self.listing(domain, root)
            except UserError:
                continue

    def is_home(self, place: Path, at_least: int = 1) -> bool:
        return len(match(place, self.domain_names())) >= at_least

    def domain_names(self) -> dict[str, tuple[str, ...]]:
        return {name: (name, *self.aliases.get(name, ())) for name in self.domains}

    def cache_root(self, root: Path) -> Path:
        return root

    def advice(self, root: Path) -> str:
        """What to do when images are missing."""
        command = f"python -m datasets.prepare {self.name} --root {root}"
        if self.downloads:
            return f"run {command} --download"
        return f"{self.by_hand} ({self.homepage}), then run {command} --from ARCHIVE"


class OwnFolder(FolderDataset):
    """A user's own images, `PATH/<domain>/<class>/<image>`: the folder names are all it takes."""

    citation = "your own images"
    licence = "your own images"
    homepage = ""

    def __init__(self, path: str):
        self.name = f"folder:{path}"
        self.path = Path(path).expanduser()
        self.folders = (str(self.path),)
        if not self.path.is_dir():
            raise UserError(f"{self.name}: there is no folder {self.path}")
        self.domains = tuple(folder.name for folder in subfolders(self.path))
        self.classes = self._common_classes()

    def _common_classes(self) -> tuple[str, ...]:
        shape = f"expected {self.path}/<domain>/<class>/<images>"
        if len(self.domains) < 2:
            raise UserError(f"{self.name} needs two or more domain folders; {shape}")
        found = {domain: class_names(self.path / domain) for domain in self.domains}
        for domain, names in found.items():
            if not names:
                raise UserError(f"{self.path / domain} has no class folders; {shape}")
        union = sorted(set().union(*found.values()))
        for domain, names in found.items():
            for name in union:
                if name not in names:
                    other = next(d for d in self.domains if name in found[d])
                    raise UserError(
                        f"missing class folder {self.path / domain / name}: every domain needs the "
                        f"same classes, and {other} has {name!r}; add it or remove it everywhere"
                    )
        return tuple(union)

    def find_home(self, root: Path) -> Path:
        return self.path

    def cache_root(self, root: Path) -> Path:
        return self.path

    def advice(self, root: Path) -> str:
        return f"put images into {self.path}/<domain>/<class>/"


@functools.cache
def warn_once(text: str) -> None:
    warnings.warn(text, stacklevel=4)
