"""Put a dataset's archive, folder or downloads where the dataset looks for them."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from benchmark.errors import UserError
from datasets.fetch import fetch
from datasets.folders import FolderDataset
from datasets.layouts import INSIDE, subfolders
from datasets.unpack import unpack


def install(dataset: FolderDataset, source: str, root: Path) -> str:
    """Take a dataset from a folder, an archive or a URL; says what was done."""
    scheme = urlsplit(source).scheme
    if scheme in ("http", "https"):
        name = Path(urlsplit(source).path).name or "archive"
        archive = fetch(source, root / ".downloads" / name)
        line = install_archive(dataset, archive, root)
        archive.unlink()
        return line
    path = Path(source).expanduser()
    if path.is_dir():
        return link_folder(dataset, path.resolve(), root)
    if path.is_file():
        return install_archive(dataset, path, root)
    raise UserError(f"--from {source}: no such folder or file, nor an http or https address")


def install_downloads(dataset: FolderDataset, root: Path) -> Iterator[str]:
    """Fetch what a dataset's authors offer and is not there yet."""
    if not dataset.downloads:
        raise UserError(
            f"{dataset.name} may not be fetched automatically ({dataset.licence}); "
            f"{dataset.advice(root)}"
        )
    target = home_or_default(dataset, root)
    for download in dataset.downloads:
        if (target / download.provides).exists():
            yield f"{download.provides} is there already"
            continue
        file = fetch(download.url, root / ".downloads" / download.name, download.checksum)
        if file.suffix == ".txt":
            place = target / download.provides
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, place)
            yield f"fetched {place}"
        else:
            yield install_archive(dataset, file, root)
            file.unlink()


def home_or_default(dataset: FolderDataset, root: Path) -> Path:
    """Where the dataset is, or will be."""
    try:
        return dataset.find_home(root)
    except UserError:
        return root / dataset.folders[0]


def install_archive(dataset: FolderDataset, archive: Path, root: Path) -> str:
    """Unpack beside the target and rename, so that a half unpacked dataset is never seen."""
    target = home_or_default(dataset, root)
    fresh = not target.exists()
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".unpacking-") as name:
        folder = Path(name) / "unpacked"
        unpack(archive, folder)
        home = home_in(dataset, folder, archive)
        if fresh and home.name in INSIDE and home != folder:
            home = home.parent  # lists may lie beside the images
        moved = move_into(home, target)
    if not moved:
        return f"{target} has all that {archive.name} holds already"
    return f"unpacked {archive.name} into {target}"


def home_in(dataset: FolderDataset, folder: Path, source: Path) -> Path:
    """The folder in an unpacked archive that holds the domains."""
    level = [folder]
    for _ in range(4):
        for place in level:
            if dataset.is_home(place):
                return place
        level = [child for place in level for child in subfolders(place)]
    wanted = ", ".join(dataset.domains)
    raise UserError(f"{source} holds no {dataset.name}: found none of the folders {wanted}")


def move_into(source: Path, target: Path) -> list[str]:
    """Move a folder to `target`, or what it holds into it; what is there already stays."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.rename(source, target)
            return [target.name]
        except OSError:  # another process was first
            if not target.exists():
                raise
    moved = []
    for child in sorted(source.iterdir()):
        if not (target / child.name).exists():
            with contextlib.suppress(OSError):  # another process was first
                os.rename(child, target / child.name)
                moved.append(child.name)
    return moved


def link_folder(dataset: FolderDataset, folder: Path, root: Path) -> str:
    """Have the root point to a folder that is elsewhere; nothing is copied."""
    home = home_in(dataset, folder, folder)
    home = home.parent if home.name in INSIDE and home != folder else home
    target = root / dataset.folders[0]
    if target.exists() or target.is_symlink():
        if target.resolve() == home.resolve():
            return f"{target} is linked to {home} already"
        raise UserError(f"{target} exists already: remove it to use {folder} instead")
    root.mkdir(parents=True, exist_ok=True)
    target.symlink_to(home, target_is_directory=True)
    return f"linked {target} to {home} (nothing was copied)"
