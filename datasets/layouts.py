"""What lies in folders of images: which folder is which class and part, and in which order.

Layouts that are understood, in any spelling of the names (`Real World`, `real_world`):

- DomainBed's: `domain/class/image`;
- Dassl's: `domain/train|val|crossval|test/class/image`, classes named or numbered from 0 (VLCS);
- either, with list files of `path label` beside it (PACS, DomainNet) or a table (Camelyon17).

Samples are ordered as torchvision's ImageFolder does: class, then file name. The parts of a domain
are one domain here; which row is in which part is kept beside it. Hidden files are passed over:
archives made on a Mac carry `._name.jpg`, which is no image.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from benchmark.errors import UserError
from datasets.base import plain

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp")
PARTS = {"train": "train", "val": "val", "valid": "val", "crossval": "val", "test": "test"}
INSIDE = ("images", "kfold", "OfficeHomeDataset_10072016")  # where archives hide the domains

Key = TypeVar("Key")


@dataclasses.dataclass(frozen=True)
class Listing:
    """The files of one domain in order: paths relative to `home`, labels, rows of its parts."""

    home: Path
    files: Sequence[str]
    labels: np.ndarray
    parts: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.files)

    def keep(self, rows: np.ndarray) -> Listing:
        """These rows alone, in their order; no parts."""
        return Listing(self.home, [self.files[row] for row in rows], self.labels[rows])


def read_domain(folder: Path, classes: Sequence[str], home: Path) -> Listing:
    """The files of one domain's folder, in parts or not."""
    whole = class_folders(folder, classes)
    sources = {"": whole} if whole else {}
    if not whole:
        for child in subfolders(folder):
            if child.name.lower() in PARTS:
                sources[PARTS[child.name.lower()]] = class_folders(child, classes)
    if not any(sources.values()):
        held = ", ".join(child.name for child in subfolders(folder)[:5]) or "no folders"
        raise UserError(
            f"cannot make out the layout of {folder}: expected class folders ({classes[0]}, ...) "
            f"or train, val, test folders of them, found {held}"
        )
    for label, name in enumerate(classes):
        if not any(label in found for found in sources.values()):
            raise UserError(f"missing class folder {folder / name}: unpack the dataset again")
    samples = sorted(
        (label, inner, file, part, "/".join(filter(None, (prefix, inner, file))))
        for part, found in sources.items()
        for label, place in found.items()
        for prefix in [place.relative_to(home).as_posix()]
        for inner, file in images_in(place)
    )
    if not samples:
        raise UserError(f"{folder} holds no images ({', '.join(SUFFIXES)})")
    labels, _, _, parts, files = zip(*samples, strict=True)
    rows = {part: np.flatnonzero(np.array(parts) == part) for part in sources if part}
    return Listing(home, files, np.array(labels, dtype=np.int64), rows)


def class_folders(folder: Path, classes: Sequence[str]) -> dict[int, Path]:
    """The folder of each class, by its name or, if all of them are numbered, by its number."""
    found = match(folder, {label: (name,) for label, name in enumerate(classes)})
    if not found:
        numbered = match(folder, {label: (str(label),) for label in range(len(classes))})
        found = numbered if len(numbered) == len(classes) else {}
    return found


def class_names(folder: Path) -> set[str]:
    """The classes in a domain's folder, whether it is in parts or not."""
    children = subfolders(folder)
    if children and all(child.name.lower() in PARTS for child in children):
        children = [grandchild for child in children for grandchild in subfolders(child)]
    return {child.name for child in children}


def images_in(folder: Path) -> list[tuple[str, str]]:
    """(sub-folder, file name) of every image below a folder, in torchvision's order."""
    found = []
    for place, below, files in os.walk(folder, followlinks=True):
        below[:] = [name for name in below if not name.startswith(".")]
        inner = os.path.relpath(place, folder)
        inner = "" if inner == "." else inner
        found += [(inner, name) for name in files if is_image(name)]
    return sorted(found)


def is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def subfolders(folder: Path) -> list[Path]:
    """The visible folders in a folder, sorted; none if it does not exist."""
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith((".", "__")))


def nested(folder: Path | None) -> Iterator[Path]:
    """A folder and the folders in it under which archives hide the domains."""
    if folder is not None:
        yield folder
        yield from match(folder, {name: (name,) for name in INSIDE}).values()


def match(folder: Path, wanted: Mapping[Key, Sequence[str]]) -> dict[Key, Path]:
    """For each key the sub-folder that bears one of its names: exactly, else in another spelling.

    A folder that bears one wanted name exactly is never taken for a spelling of another.
    """
    children = {child.name: child for child in subfolders(folder)}
    found = {
        key: children[name] for key in wanted for name in reversed(wanted[key]) if name in children
    }
    taken = set(found.values())
    others = {plain(name): path for name, path in children.items() if path not in taken}
    for key in wanted:
        for name in wanted[key]:
            if key not in found and plain(name) in others:
                found[key] = others[plain(name)]
    return {key: found[key] for key in wanted if key in found}


def find_lists(places: Sequence[Path], names: Mapping[str, str]) -> dict[str, Path]:
    """The list files of one domain by part, from the first place that has all of them."""
    for place in places:
        found = {part: place / name for part, name in names.items() if (place / name).is_file()}
        if len(found) == len(names):
            return found
    return {}


def listed_rows(path: Path, listing: Listing) -> tuple[list[int], list[int], list[str]]:
    """Rows and labels of the files that a list of `path label` names, and the names not on disk.

    Files are known by class folder and name without suffix: copies exist in other image formats.
    """
    rows, labels, absent = [], [], []
    known = {_identity(file): row for row, file in enumerate(listing.files)}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        file, _, label = line.strip().rpartition(" ")
        if not line.strip():
            continue
        if not file or not label.isdigit():
            raise UserError(f"{path}, line {number}: expected 'path label', found {line.strip()!r}")
        row = known.get(_identity(file))
        if row is None:
            absent.append(file)
        else:
            rows.append(row)
            labels.append(int(label))
    return rows, labels, absent


def _identity(file: str) -> tuple[str, str]:
    folder, _, name = file.rpartition("/")
    return _plain_end(folder), name.rpartition(".")[0]


@functools.lru_cache(maxsize=4096)
def _plain_end(folder: str) -> str:
    return plain(folder.rpartition("/")[2])
