"""Each image decoded once: one memory-mapped file of uint8 RGB pixels per domain.

Images keep their size if all of the dataset share one; otherwise they are stored at `size` x `size`
(Pillow's bilinear filter, which is torchvision's `Resize((size, size))` of a PIL image). Files are
named by the domain, a digest of the source files (paths, sizes, times of change) and the size, so a
changed source is decoded anew and nothing stale is ever read.

Where: `root/.cache/feddomainbed/<dataset>`. The environment variable FEDDOMAINBED_CACHE names
another folder instead of `root/.cache/feddomainbed`; where neither is set nor `root` may be written
to, it is `~/.cache/feddomainbed`. What a colleague has decoded under a read-only root is used.

How a file is written and checked: `datasets.pixels`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from benchmark.errors import UserError
from datasets.base import write_atomically
from datasets.layouts import Listing
from datasets.pixels import Progress, build, read

FORMAT = 1  # whoever changes what is stored must raise it


@dataclasses.dataclass(frozen=True)
class Place:
    """Where the pixels of one domain may be: folders to read from, the first to write to."""

    folders: tuple[Path, ...]
    domain: str

    def paths(self, listing: Listing, size: int) -> dict[str, list[Path]]:
        """Candidate files for images of their own size and of `size`."""
        stem = f"{self.domain}-{fingerprint(listing)}"
        names = {"native": f"{stem}-native.npy", "resized": f"{stem}-{size}.npy"}
        return {kind: [f / name for f in self.folders] for kind, name in names.items()}


def place_for(dataset: str, domain: str, root: Path) -> Place:
    """The cache of one domain; see the module for where that is."""
    under_root = root / ".cache" / "feddomainbed"
    chosen = os.environ.get("FEDDOMAINBED_CACHE")
    if chosen:
        bases = [Path(chosen).expanduser(), under_root]
    elif may_write(root):
        bases = [under_root]
    else:
        bases = [Path("~/.cache/feddomainbed").expanduser(), under_root]
    return Place(tuple(base / file_name(dataset) for base in bases), file_name(domain))


def may_write(folder: Path) -> bool:
    """Whether a folder is meant to be written to: by its permissions, even for a superuser."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return bool(folder.stat().st_mode & 0o222) and os.access(folder, os.W_OK)


def file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name).strip("_.")


def fingerprint(listing: Listing) -> str:
    """A digest of the source files that changes when one of them does; no image is read."""
    digest = hashlib.blake2b(f"{FORMAT}".encode(), digest_size=8)
    home = str(listing.home)
    for file in listing.files:
        try:
            status = os.stat(f"{home}/{file}")
        except OSError as error:
            raise UserError(f"cannot read {home}/{file}: {error.strerror}") from error
        digest.update(f"{file}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def decoded(
    listing: Listing,
    place: Place,
    size: int,
    dataset: Iterable[Listing],
    progress: Progress | None = None,
) -> np.ndarray:
    """The images of one domain, memory-mapped; decoded now if they have not been before.

    `dataset` are the listings of all its domains, asked only when there is something to decode.
    """
    found = find_decoded(listing, place, size)
    if found is not None:
        return found
    paths = place.paths(listing, size)
    try:
        shared = shared_size(list(dataset), place.folders[0])
        target = paths["native" if shared else "resized"][0]
        build(listing, target, shared or (size, size), resize=not shared, progress=progress)
    except OSError as error:
        raise UserError(
            f"cannot write to the cache {place.folders[0]} ({error.strerror}): make room, or "
            f"set FEDDOMAINBED_CACHE to another folder"
        ) from error
    found = read(target, len(listing))
    if found is None:
        raise UserError(f"{target} cannot be read back: check the disk, or set FEDDOMAINBED_CACHE")
    return found


def find_decoded(
    listing: Listing, place: Place, size: int, thorough: bool = False
) -> np.ndarray | None:
    """The decoded images if they are stored and sound."""
    for candidates in place.paths(listing, size).values():
        for path in candidates:
            found = read(path, len(listing), thorough)
            if found is not None:
                return found
    return None


def shared_size(listings: list[Listing], folder: Path) -> tuple[int, int] | None:
    """Height and width if all images of a dataset have the same; noted in `folder` once known.

    One rule for all domains, because batches mix images of several.
    """
    key = hashlib.blake2b("".join(map(fingerprint, listings)).encode(), digest_size=8).hexdigest()
    note = folder / f"size-{key}.json"
    try:
        shape = json.loads(note.read_text())
    except (OSError, ValueError):
        shape = probe_size(listings)
        write_atomically(note, lambda temporary: temporary.write_text(json.dumps(shape)))
    return None if shape is None else (shape[0], shape[1])


def probe_size(listings: Iterable[Listing]) -> tuple[int, int] | None:
    """The same from the headers of the files, up to the first that differs."""
    from PIL import Image

    sizes: set[tuple[int, int]] = set()
    for listing in listings:
        for file in listing.files:
            try:
                with Image.open(listing.home / file) as image:
                    sizes.add((image.height, image.width))
            except Exception:  # a damaged file is named when it is decoded
                continue
            if len(sizes) > 1:
                return None
    return sizes.pop() if sizes else None
